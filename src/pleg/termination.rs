//! The message that a container left when it ended: a file that was mounted into it, or the end of
//! its log.
//!
//! Both are the container's to write, so they are read with bounds, never followed through links,
//! and never waited for: a pipe or device in their place is no message.

use crate::{
    logs,
    model::{ContainerState, ObservedContainer},
};
use nix::fcntl::OFlag;
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Bytes of the file that count, from its end.
const MAX_FILE: u64 = 4096;
/// Bytes and lines of the log that count, from its end.
const MAX_LOG: usize = 2048;
const MAX_LOG_LINES: usize = 80;
/// What is read of a log: enough for [`MAX_LOG`] bytes and the longest line that runtimes write.
const LOG_TAIL: u64 = 32 << 10;

/// What to read for an ended container.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ask {
    file: Option<PathBuf>,
    /// Read when the file has nothing to say.
    log: Option<PathBuf>,
}

impl Ask {
    /// `None` for a container that has not ended or leaves no message.
    pub(super) fn of(container: &ObservedContainer) -> Option<Self> {
        let ContainerState::Exited { exit_code, reason, .. } = &container.state else {
            return None;
        };
        let fallback = &*container.termination_message_policy == "FallbackToLogsOnError"
            && *exit_code != 0
            && &**reason != "ContainerCannotRun"
            && !container.log_path.is_empty();
        let file = container.termination_log.as_deref().map(PathBuf::from);
        let log = fallback.then(|| PathBuf::from(&*container.log_path));
        (file.is_some() || log.is_some()).then_some(Self { file, log })
    }

    /// The message, empty when there is none. Blocks on the disk.
    pub(super) fn read(&self) -> String {
        if let Some(path) = &self.file {
            match tail(path, MAX_FILE) {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => return String::from_utf8_lossy(&bytes).into_owned(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return format!("Error on reading termination log {}: {error}", path.display());
                }
            }
        }
        let Some(path) = &self.log else { return String::new() };
        match tail(path, LOG_TAIL) {
            Ok(bytes) => log_messages(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => format!("Error on reading container log {}: {error}", path.display()),
        }
    }
}

/// The runtime's message with what the container told.
pub(super) fn joined(runtime: &str, told: &str) -> String {
    match (runtime, told) {
        ("", told) => told.to_owned(),
        (runtime, "") => runtime.to_owned(),
        (runtime, told) => format!("{runtime}: {told}"),
    }
}

/// The last bytes of a regular file.
fn tail(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    // O_NONBLOCK: opening a pipe without a writer must not block.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut file: File = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let start = metadata.len().saturating_sub(most);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The messages in the end of a CRI log, as far as they count.
/// A first line that is cut off is passed over.
fn log_messages(bytes: &[u8]) -> String {
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let last = &lines[lines.len().saturating_sub(MAX_LOG_LINES)..];
    let mut told = Vec::new();
    for line in last {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if let Some(record) = logs::parse(line) {
            told.extend_from_slice(record.text);
            told.extend(record.full.then_some(b'\n'));
        }
    }
    let mut out = String::from_utf8_lossy(&told).into_owned();
    let mut start = out.len().saturating_sub(MAX_LOG);
    while !out.is_char_boundary(start) {
        start += 1;
    }
    out.split_off(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ContainerId, PodUid, SandboxId};
    use jiff::Timestamp;
    use nix::sys::stat::Mode;
    use std::fs;

    fn ended(exit_code: i32) -> ObservedContainer {
        ObservedContainer {
            made_with: None,
            id: ContainerId::from("c"),
            sandbox_id: SandboxId::from("s"),
            uid: PodUid::from("u"),
            name: "web".into(),
            restart_count: 0,
            hash: "".into(),
            state: ContainerState::Exited {
                started_at: None,
                finished_at: Timestamp::UNIX_EPOCH,
                exit_code,
                reason: "Error".into(),
                message: "".into(),
            },
            ended_with: None,
            created_at: Timestamp::UNIX_EPOCH,
            image: "".into(),
            image_ref: "".into(),
            termination_message_path: "/dev/termination-log".into(),
            termination_message_policy: "FallbackToLogsOnError".into(),
            termination_log: None,
            log_path: "".into(),
            user: None,
        }
    }

    fn read(exit_code: i32, file: Option<&Path>, log: Option<&Path>) -> String {
        let text = |path: Option<&Path>| path.map(|p| p.to_str().unwrap().to_owned());
        let mut container = ended(exit_code);
        container.termination_log = text(file).map(Into::into);
        container.log_path = text(log).unwrap_or_default().into();
        Ask::of(&container).map(|ask| ask.read()).unwrap_or_default()
    }

    #[test]
    fn the_file_counts_from_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("message");
        fs::write(&file, format!("{}end", "x".repeat(5000))).unwrap();
        let message = read(1, Some(&file), None);
        assert_eq!((message.len(), message.ends_with("xend")), (4096, true));
    }

    #[test]
    fn the_log_stands_in_for_an_empty_file_after_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let (file, log) = (dir.path().join("message"), dir.path().join("0.log"));
        fs::write(&file, "").unwrap();
        let time = "2026-01-02T03:04:05.123456789Z";
        fs::write(
            &log,
            format!(
                "cut off\n{time} stdout P par\n{time} stderr F tial\n{time} stdout F two words\n"
            ),
        )
        .unwrap();
        assert_eq!(read(1, Some(&file), Some(&log)), "partial\ntwo words\n");
        assert_eq!(read(1, Some(&dir.path().join("none")), Some(&log)), "partial\ntwo words\n");
        assert_eq!(read(0, Some(&file), Some(&log)), "");
        fs::write(&file, "told").unwrap();
        assert_eq!(read(1, Some(&file), Some(&log)), "told");
    }

    #[test]
    fn the_end_of_a_log_is_bounded_by_lines_and_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        let line = |n: usize, text: &str| format!("2026-01-02T03:04:05.1Z stdout F {n}{text}\n");
        fs::write(&log, (0..200).map(|n| line(n, "")).collect::<String>()).unwrap();
        let message = read(1, None, Some(&log));
        assert_eq!((message.lines().count(), message.lines().next()), (80, Some("120")));
        fs::write(&log, (0..9).map(|n| line(n, &"é".repeat(500))).collect::<String>()).unwrap();
        assert!(read(1, None, Some(&log)).len() <= 2048);
    }

    #[test]
    fn a_pipe_or_a_link_is_no_message_and_nobody_waits() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, link) = (dir.path().join("pipe"), dir.path().join("link"));
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert!(read(1, Some(&pipe), None).contains("not a regular file"));
        assert!(read(1, Some(&link), None).starts_with("Error on reading termination log"));
    }

    #[test]
    fn messages_are_joined_as_the_kubelet_joins_them() {
        assert_eq!(joined("", "told"), "told");
        assert_eq!(joined("said", ""), "said");
        assert_eq!(joined("said", "told"), "said: told");
    }
}
