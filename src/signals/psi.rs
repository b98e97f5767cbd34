//! Hints from the kernel that memory is short (PSI, Linux 4.20): it tells when tasks have waited
//! for memory for a certain part of a time. They only say "look now": everything works without
//! them.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::Duration,
};
use tokio::io::{Interest, unix::AsyncFd};

/// A trigger on `/proc/pressure/memory`; gone with the value.
#[derive(Debug)]
pub struct PsiTrigger {
    file: AsyncFd<File>,
}

impl PsiTrigger {
    /// Fires when some task has waited for memory for `stall` within `window` (0.5 to 10 s), once
    /// per window at most. To be called within a tokio runtime.
    ///
    /// # Errors
    /// Where the kernel has no PSI, or refuses the trigger: it wants CAP_SYS_RESOURCE, or a window
    /// of whole 2 s.
    pub fn new(proc: &Path, stall: Duration, window: Duration) -> io::Result<Self> {
        let path = proc.join("pressure/memory");
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
        // The kernel wants it in one write, with its end.
        let trigger = format!("some {} {}\0", stall.as_micros(), window.as_micros());
        file.write_all(trigger.as_bytes())?;
        #[expect(
            deprecated,
            reason = "its successor is an unsafe function; File owns its descriptor"
        )]
        let file = AsyncFd::with_interest(file, Interest::PRIORITY)?;
        Ok(Self { file })
    }

    /// The trigger of the kubelet's users: 150 ms within a second, else 300 ms within 2 s, which
    /// needs no capability.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn memory(proc: &Path) -> io::Result<Self> {
        let millis = Duration::from_millis;
        Self::new(proc, millis(150), millis(1000))
            .or_else(|_| Self::new(proc, millis(300), millis(2000)))
    }

    /// Waits until it fires.
    ///
    /// # Errors
    /// When it can't be waited for any more.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn fired(&mut self) -> io::Result<()> {
        let mut ready = self.file.ready(Interest::PRIORITY).await?;
        ready.clear_ready();
        Ok(())
    }
}
