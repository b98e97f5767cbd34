//! The root shell in the machine, over a virtio-serial port (`guest/usr/local/lib/machine/shell` is
//! its other end).
//!
//! Every request has a token of its own: what is still on its way of an earlier one (the machine
//! went down in the middle of it, somebody stopped waiting) is read over.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};
use tokio::time::Instant;

/// How a script ended.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its exit code.
    pub code: i32,
    /// stdout and stderr.
    pub output: String,
}

/// A connection to the port.
pub struct Shell {
    stream: BufReader<UnixStream>,
    requests: u64,
}

impl Shell {
    /// Connects to QEMU's end of the port, whether or not anything listens inside.
    ///
    /// # Errors
    /// When QEMU does not run.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        Ok(Self { stream: BufReader::new(UnixStream::connect(socket)?), requests: 0 })
    }

    /// Runs a bash script.
    ///
    /// # Errors
    /// When there is no answer within `deadline`, or the connection breaks. The connection can't be
    /// used after that.
    pub fn run(&mut self, script: &str, deadline: Duration) -> io::Result<Answer> {
        let end = Instant::now() + deadline;
        self.requests += 1;
        let token = format!("{:x}.{}", std::process::id(), self.requests);
        let socket = self.stream.get_mut();
        socket.set_write_timeout(Some(deadline))?;
        socket.write_all(format!("{token} {}\n{script}", script.len()).as_bytes())?;
        let wanted = format!("={token} ");
        loop {
            let line = self.line(end)?;
            let Some(at) = line.find(&wanted) else { continue };
            let mut fields = line[at + wanted.len()..].split_whitespace();
            let (code, length) = (fields.next(), fields.next());
            let (Some(code), Some(length)) = (parse(code), parse(length)) else { continue };
            let mut output = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            self.wait_no_longer_than(end)?;
            self.stream.read_exact(&mut output)?;
            let output = String::from_utf8_lossy(&output).into_owned();
            return Ok(Answer { code, output });
        }
    }

    fn line(&mut self, end: Instant) -> io::Result<String> {
        let mut line = Vec::new();
        self.wait_no_longer_than(end)?;
        self.stream.read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    fn wait_no_longer_than(&self, end: Instant) -> io::Result<()> {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.stream.get_ref().set_read_timeout(Some(left))
    }
}

fn parse(text: Option<&str>) -> Option<i32> {
    text?.parse().ok()
}
