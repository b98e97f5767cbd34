//! Reads the log of one run of a container, piece by piece.

use super::{
    Position, Printer, Run,
    find::LogDir,
    follow::next_file,
    line::Wanted,
    read::{LogFile, last_lines},
};
use std::{collections::VecDeque, io, path::PathBuf};
use thiserror::Error;

/// The output that is made at a time, roughly.
const PART: usize = 32 << 10;
/// Blocks of a log that are read at a time: 4 MiB.
const BLOCKS: usize = 64;

/// Why a log can't be read.
#[derive(Debug, Error)]
pub enum LogError {
    /// The run has no log, or it was removed.
    #[error("the log was not found")]
    NotFound,
    /// It can't be opened or read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A log that is being read. Everything blocks on the disk.
#[derive(Debug)]
pub struct RunReader {
    dir: LogDir,
    position: Position,
    /// Newer files of the run, oldest first.
    later: VecDeque<(PathBuf, LogFile)>,
    printer: Printer<Vec<u8>>,
    following: Following,
    /// [`Progress::LastLines`] was told about the file that is read.
    told: bool,
}

/// How far the log of a run is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Following {
    /// To the end of the files that were there at the beginning.
    No,
    /// Over later files, until the run ends.
    Yes,
    /// Over later files. The run has ended: nothing more is written.
    ToTheEnd,
}

/// How far a log was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is more to read.
    More,
    /// Everything that was written so far was read; there may be more later.
    Waits,
    /// The log was rotated, or its run has ended, a moment ago. The runtime may write to the file
    /// for another [`LAST_LINES`](super::LAST_LINES): read on after that.
    LastLines,
    /// Nothing more comes.
    Ended,
}

impl RunReader {
    /// Begins with the last `tail` lines of a run, or with its first file that is not compressed.
    ///
    /// # Errors
    /// When there is no log, or it can't be opened. A link in its place is not followed.
    pub fn open(
        dir: LogDir,
        number: u32,
        tail: Option<u64>,
        wanted: Wanted,
        follow: bool,
    ) -> Result<Self, LogError> {
        let mut later = beginnings(Run::open(&dir, number)?, tail)?;
        let (path, log) = later.pop_front().ok_or(LogError::NotFound)?;
        let printer = Printer::new(Vec::new(), wanted);
        let following = if follow { Following::Yes } else { Following::No };
        let position = Position { number, path, log };
        Ok(Self { dir, position, later, printer, following, told: false })
    }

    /// Reads on, until there is enough output or nothing more to read. When a filter drops nearly
    /// everything, it also returns now and then without output, so that other reads get their turn.
    ///
    /// # Errors
    /// When the log can't be read.
    pub fn advance(&mut self) -> io::Result<Progress> {
        let mut blocks = 0;
        loop {
            if self.printer.is_full() {
                return Ok(Progress::Ended);
            }
            if self.printer.output().len() >= PART || blocks == BLOCKS {
                return Ok(Progress::More);
            }
            if self.position.log.print_some(&mut self.printer)? {
                blocks += 1;
                continue;
            }
            if let Some((path, log)) = self.later.pop_front() {
                self.position.log.finish(&mut self.printer)?;
                (self.position.path, self.position.log) = (path, log);
                continue;
            }
            if self.following == Following::No {
                return self.end();
            }
            let next = next_file(&self.dir, &mut self.position)?;
            let number = self.position.number;
            let is_new = match &next {
                Some(next) => next.newest || next.at.number != number,
                None => self.following == Following::ToTheEnd,
            };
            if is_new && !self.told {
                self.told = true;
                return Ok(Progress::LastLines);
            }
            match next {
                Some(next) if next.at.number == number => {
                    // What was written before the rotation.
                    while self.position.log.print_some(&mut self.printer)? {}
                    self.position.log.finish(&mut self.printer)?;
                    self.position = next.at;
                    self.told = false;
                }
                Some(_) => return self.end(),
                None if self.following == Following::ToTheEnd => return self.end(),
                None => return Ok(Progress::Waits),
            }
        }
    }

    /// The run has ended: reads no further than to the end that its log has now. Files that were
    /// rotated before are still read.
    pub fn stop_following(&mut self) {
        if self.following == Following::Yes {
            self.following = Following::ToTheEnd;
        }
    }

    /// The output so far.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(self.printer.output())
    }

    fn end(&mut self) -> io::Result<Progress> {
        self.position.log.finish(&mut self.printer)?;
        self.printer.finish()?;
        Ok(Progress::Ended)
    }
}

/// The files to print, oldest first, each at the place where printing begins.
///
/// # Errors
/// When a file can't be read.
pub fn beginnings(
    files: Vec<(PathBuf, std::fs::File)>,
    tail: Option<u64>,
) -> io::Result<VecDeque<(PathBuf, LogFile)>> {
    let mut missing = tail;
    let mut logs = VecDeque::new();
    for (path, file) in files.into_iter().rev() {
        let from = match &mut missing {
            None => 0,
            Some(0) if !logs.is_empty() => break,
            Some(missing) => {
                let (from, still_missing) = last_lines(&file, *missing)?;
                *missing = still_missing;
                from
            }
        };
        logs.push_front((path, LogFile::new(file, from)?));
    }
    Ok(logs)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::{super::line::Stream, *};
    use std::{fs, os::unix::fs::symlink, path::Path};

    fn line(n: u32, stream: &str) -> String {
        format!("2026-11-20T10:00:{:02}Z {stream} F line {n}\n", n % 60)
    }

    fn read(
        dir: &Path,
        number: u32,
        tail: Option<u64>,
        wanted: Wanted,
    ) -> Result<String, LogError> {
        let mut reader =
            RunReader::open(LogDir::bounded(dir, "pod/main"), number, tail, wanted, false)?;
        let mut text = Vec::new();
        while reader.advance()? == Progress::More {
            text.extend(reader.take());
        }
        text.extend(reader.take());
        Ok(String::from_utf8(text).unwrap())
    }

    fn world() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let main = dir.path().join("pod/main");
        fs::create_dir_all(&main).unwrap();
        let text = |from, to| (from..to).map(|n| line(n, "stdout")).collect::<String>();
        fs::write(main.join("0.log.20261120-100000"), text(0, 3)).unwrap();
        fs::write(main.join("0.log"), text(3, 5) + &line(5, "stderr")).unwrap();
        fs::write(main.join("1.log"), text(10, 12)).unwrap();
        dir
    }

    #[test]
    fn a_run_is_read_over_its_files() {
        let dir = world();
        let all = Wanted::default();
        let text = |number, tail, wanted| read(dir.path(), number, tail, wanted).unwrap();
        assert_eq!(text(0, None, all), "line 0\nline 1\nline 2\nline 3\nline 4\nline 5\n");
        assert_eq!(text(0, Some(4), all), "line 2\nline 3\nline 4\nline 5\n");
        assert_eq!(text(0, Some(0), all), "");
        assert_eq!(text(1, None, all), "line 10\nline 11\n");
        assert!(matches!(read(dir.path(), 2, None, all), Err(LogError::NotFound)));
        assert_eq!(text(0, None, Wanted { stream: Some(Stream::Stderr), ..all }), "line 5\n");
        assert_eq!(text(0, None, Wanted { limit: Some(10), ..all }), "line 0\nlin");
        let since = Some("2026-11-20T10:00:04Z".parse().unwrap());
        assert_eq!(text(0, None, Wanted { since, ..all }), "line 4\nline 5\n");
        let stamped = text(1, Some(1), Wanted { timestamps: true, limit: Some(35), ..all });
        assert_eq!(stamped, "2026-11-20T10:00:11.000000000Z line");
    }

    #[test]
    fn a_long_log_comes_in_parts_and_its_end_is_found_from_behind() {
        let dir = tempfile::tempdir().unwrap();
        let main = dir.path().join("pod/main");
        fs::create_dir_all(&main).unwrap();
        // 8 TiB of nothing, and then some lines.
        let mut file = fs::File::create(main.join("0.log")).unwrap();
        file.set_len(8 << 40).unwrap();
        io::Seek::seek(&mut file, io::SeekFrom::End(0)).unwrap();
        for n in 0..5000 {
            io::Write::write_all(
                &mut file,
                format!("\n{}", line(n, "stdout").trim_end()).as_bytes(),
            )
            .unwrap();
        }
        let all = Wanted::default();
        let dir = LogDir::bounded(dir.path(), "pod/main");
        let mut reader = RunReader::open(dir, 0, Some(4000), all, false).unwrap();
        let (mut parts, mut text) = (0, Vec::new());
        while reader.advance().unwrap() == Progress::More {
            let part = reader.take();
            assert!(part.len() < 4 * PART, "{}", part.len());
            text.extend(part);
            parts += 1;
        }
        text.extend(reader.take());
        assert!(parts > 0);
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("line 1000\n") && text.ends_with("line 4999\n"));
    }

    #[test]
    fn a_filter_that_drops_everything_returns_now_and_then() {
        let dir = tempfile::tempdir().unwrap();
        let main = dir.path().join("pod/main");
        fs::create_dir_all(&main).unwrap();
        let long = format!("2026-11-20T10:00:00Z stdout F {}\n", "x".repeat(1 << 20));
        fs::write(main.join("0.log"), long.repeat(10)).unwrap();
        let dir = LogDir::bounded(dir.path(), "pod/main");
        let wanted = Wanted { stream: Some(Stream::Stderr), ..Wanted::default() };
        let mut reader = RunReader::open(dir, 0, None, wanted, false).unwrap();
        for progress in [Progress::More, Progress::More, Progress::Ended] {
            assert_eq!(reader.advance().unwrap(), progress);
            assert!(reader.take().is_empty());
        }
    }

    fn append_to(path: &Path, n: u32) {
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        io::Write::write_all(&mut file.unwrap(), line(n, "stdout").as_bytes()).unwrap();
    }

    #[test]
    fn a_run_is_followed_over_rotations_and_ends_with_the_next_run() {
        let dir = tempfile::tempdir().unwrap();
        let main = dir.path().join("pod/main");
        fs::create_dir_all(&main).unwrap();
        let append = |name: &str, n| append_to(&main.join(name), n);
        append("0.log", 1);
        let logs = LogDir::bounded(dir.path(), "pod/main");
        let mut reader = RunReader::open(logs, 0, None, Wanted::default(), true).unwrap();
        let mut next = || (reader.advance().unwrap(), String::from_utf8(reader.take()).unwrap());
        assert_eq!(next(), (Progress::Waits, "line 1\n".to_owned()));
        assert_eq!(next(), (Progress::Waits, String::new()));
        append("0.log", 2);
        fs::rename(main.join("0.log"), main.join("0.log.20261120-100000")).unwrap();
        append("0.log", 3);
        assert_eq!(next(), (Progress::LastLines, "line 2\n".to_owned()));
        // The runtime empties its buffer.
        append("0.log.20261120-100000", 9);
        assert_eq!(next(), (Progress::Waits, "line 9\nline 3\n".to_owned()));
        append("0.log", 4);
        append("1.log", 5);
        assert_eq!(next(), (Progress::LastLines, "line 4\n".to_owned()));
        // The next run began before the last line of this one was written.
        append("0.log", 6);
        assert_eq!(next(), (Progress::Ended, "line 6\n".to_owned()));
    }

    #[test]
    fn a_followed_run_that_has_ended_is_read_over_its_rotations() {
        let dir = tempfile::tempdir().unwrap();
        let main = dir.path().join("pod/main");
        fs::create_dir_all(&main).unwrap();
        append_to(&main.join("0.log"), 1);
        let logs = LogDir::bounded(dir.path(), "pod/main");
        let mut reader = RunReader::open(logs, 0, None, Wanted::default(), true).unwrap();
        for n in [2, 3] {
            fs::rename(main.join("0.log"), main.join(format!("0.log.20261120-10000{n}"))).unwrap();
            append_to(&main.join("0.log"), n);
        }
        reader.stop_following();
        assert_eq!(reader.advance().unwrap(), Progress::LastLines, "of the rotation");
        assert_eq!(reader.advance().unwrap(), Progress::LastLines, "of the run");
        append_to(&main.join("0.log"), 4);
        assert_eq!(reader.advance().unwrap(), Progress::Ended);
        let text = String::from_utf8(reader.take()).unwrap();
        assert_eq!(text, "line 1\nline 2\nline 3\nline 4\n");
    }

    #[test]
    fn no_link_leads_out_of_the_logs() {
        let dir = world();
        let secret = dir.path().join("secret");
        fs::write(&secret, line(7, "stdout")).unwrap();
        let main = dir.path().join("pod/main");
        let refused = |number| read(dir.path(), number, None, Wanted::default()).unwrap_err();
        symlink(&secret, main.join("3.log")).unwrap();
        assert!(matches!(refused(3), LogError::Io(_)));
        nix::unistd::mkfifo(&main.join("4.log"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(matches!(refused(4), LogError::Io(_)));
        fs::create_dir(main.join("5.log")).unwrap();
        assert!(matches!(refused(5), LogError::Io(_)));
        // The container's directory, and the pod's.
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("0.log"), line(7, "stdout")).unwrap();
        fs::rename(&main, dir.path().join("pod/away")).unwrap();
        symlink(other.path(), &main).unwrap();
        assert!(matches!(refused(0), LogError::Io(_)));
    }
}
