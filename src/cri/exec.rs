//! Commands in containers.

use super::{
    CriError, RuntimeClient,
    client::within,
    v1::{self, runtime_service_client::RuntimeServiceClient},
};
use crate::model::ContainerId;
use std::time::Duration;

/// How much longer than the command the runtime may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the runtime may take to answer another question, when a command got no answer.
const OTHER_ANSWER: Duration = Duration::from_secs(2);
/// The largest answer. A command that writes more fails with the runtime's or this client's error.
const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// The same for a probe. There are many of them at a time, a container chooses what they write, and
/// an answer is in memory twice before it is cut.
const MAX_PROBE_BYTES: usize = 1 << 20;
/// The part of the output that is kept.
const KEPT_BYTES: usize = 10 << 10;

/// What a command in a container has returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecOutput {
    /// Its exit code.
    pub exit_code: i32,
    /// The beginning of what it wrote to stdout, followed by what it wrote to stderr.
    pub output: Vec<u8>,
}

impl RuntimeClient {
    /// Runs a command in a container and waits for its end. After `timeout`, counted in whole
    /// seconds, the runtime kills it; `None`: never.
    ///
    /// containerd kills only the command itself when the time is over, and answers when all processes
    /// have ended that hold its output. So a command counts as timed out, too, when there is no
    /// answer while the runtime answers another question about the container.
    ///
    /// # Errors
    /// `ExecTimedOut` when the time is over and the runtime has killed the command or answers other
    /// questions, up to 7 s later; `DeadlineExceeded` when it answers nothing. Otherwise see
    /// [`CriError`].
    ///
    /// # Cancel safety
    /// The runtime kills the command when the call is dropped.
    pub async fn exec_sync(
        &self,
        id: &ContainerId,
        command: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, CriError> {
        self.exec_within(id, command, timeout, MAX_OUTPUT_BYTES).await
    }

    /// As [`Self::exec_sync`], for a probe: `None` when the command has written more than 1 MiB.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn exec_probe(
        &self,
        id: &ContainerId,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<Option<ExecOutput>, CriError> {
        match self.exec_within(id, command, Some(timeout), MAX_PROBE_BYTES).await {
            Ok(output) => Ok(Some(output)),
            // The code with which a gRPC client refuses an answer by its length.
            Err(CriError::Other { code, .. }) if code == "OutOfRange" => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn exec_within(
        &self,
        id: &ContainerId,
        command: Vec<String>,
        timeout: Option<Duration>,
        max_bytes: usize,
    ) -> Result<ExecOutput, CriError> {
        const CALL: &str = "ExecSync";
        let words = command.join(" ");
        let seconds = timeout.map_or(0, |timeout| timeout.as_secs());
        let request = v1::ExecSyncRequest {
            container_id: id.to_string(),
            cmd: command,
            timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        let mut runtime =
            RuntimeServiceClient::new(self.channel.clone()).max_decoding_message_size(max_bytes);
        let call = runtime.exec_sync(request);
        let answer = match timeout {
            Some(timeout) => within(timeout + PATIENCE, CALL, &self.endpoint, call).await,
            None => self.change(CALL, call).await,
        };
        match answer {
            Ok(answer) => Ok(ExecOutput {
                exit_code: answer.exit_code,
                output: kept(answer.stdout, &answer.stderr, KEPT_BYTES),
            }),
            Err(error) if is_timeout(&error) => {
                Err(CriError::ExecTimedOut { command: words, seconds })
            }
            Err(CriError::DeadlineExceeded { .. })
                if timeout.is_some() && self.answers(id).await =>
            {
                Err(CriError::ExecTimedOut { command: words, seconds })
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the runtime answers another question about the container.
    async fn answers(&self, id: &ContainerId) -> bool {
        let asked = tokio::time::timeout(OTHER_ANSWER, self.container_status(id)).await;
        matches!(asked, Ok(Ok(_)))
    }

    /// As [`Self::exec_sync`], without a timeout and with all of the output.
    ///
    /// # Errors
    /// See [`CriError`].
    ///
    /// # Cancel safety
    /// The runtime kills the command when the call is dropped.
    pub async fn exec_to_end(
        &self,
        id: &ContainerId,
        command: Vec<String>,
    ) -> Result<ExecOutput, CriError> {
        let container_id = id.to_string();
        let request = v1::ExecSyncRequest { container_id, cmd: command, timeout: 0 };
        let mut runtime = RuntimeServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_OUTPUT_BYTES);
        let answer = self.change("ExecSync", runtime.exec_sync(request)).await?;
        let output = kept(answer.stdout, &answer.stderr, MAX_OUTPUT_BYTES);
        Ok(ExecOutput { exit_code: answer.exit_code, output })
    }
}

/// The beginning of both outputs.
fn kept(stdout: Vec<u8>, stderr: &[u8], most: usize) -> Vec<u8> {
    let mut output = stdout;
    output.truncate(most);
    let room = most - output.len();
    output.extend_from_slice(&stderr[..stderr.len().min(room)]);
    output.shrink_to_fit();
    output
}

/// True for the error with which a runtime says that it killed the command. containerd and CRI-O
/// answer with the code `DeadlineExceeded`; older ones with `Unknown` and a text.
fn is_timeout(error: &CriError) -> bool {
    match error {
        CriError::Other { code, message } => {
            code == "DeadlineExceeded"
                || (message.contains("timeout") && message.contains("exceeded"))
                || message.contains("command timed out")
        }
        // The runtime does not answer, which says nothing about the container.
        CriError::DeadlineExceeded { .. }
        | CriError::NotFound { .. }
        | CriError::Unavailable { .. }
        | CriError::NameReserved { .. }
        | CriError::Unimplemented { .. }
        | CriError::ExecTimedOut { .. }
        | CriError::Endpoint { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_both_outputs_is_kept() {
        assert_eq!(kept(b"out".to_vec(), b"err", KEPT_BYTES), b"outerr");
        let long = kept(vec![b'o'; KEPT_BYTES - 1], b"err", KEPT_BYTES);
        assert_eq!((long.len(), long.last()), (KEPT_BYTES, Some(&b'e')));
        assert_eq!(kept(vec![b'o'; KEPT_BYTES + 1], b"err", KEPT_BYTES).len(), KEPT_BYTES);
    }

    #[test]
    fn a_killed_command_is_told_apart() {
        let other = |code: &str, message: &str| CriError::Other {
            code: code.to_owned(),
            message: message.to_owned(),
        };
        let texts = [
            other("DeadlineExceeded", "x"),
            other(
                "Unknown",
                "failed to exec in container: timeout 1s exceeded: context deadline exceeded",
            ),
            other("Unknown", "command timed out"),
        ];
        for error in texts {
            assert!(is_timeout(&error), "{error}");
        }
        assert!(!is_timeout(&other("Unknown", "exec failed: no such file")));
        assert!(!is_timeout(&CriError::DeadlineExceeded { call: "ExecSync", seconds: 6 }));
    }
}
