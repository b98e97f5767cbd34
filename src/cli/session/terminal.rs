//! The terminal of the person at the command line: passed on key by key while a session goes on, and
//! as it was before afterwards.

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use std::io;

/// Standard input in raw mode, until this is dropped.
pub(super) struct RawMode(Termios);

impl RawMode {
    /// `None` where standard input is no terminal.
    pub(super) fn enter() -> io::Result<Option<Self>> {
        let input = io::stdin();
        if !isatty(&input) {
            return Ok(None);
        }
        let before = tcgetattr(&input)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&input, OptionalActions::Flush, &raw)?;
        Ok(Some(Self(before)))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // There is nothing better to do about a failure than to leave the terminal.
        tcsetattr(io::stdin(), OptionalActions::Flush, &self.0).ok();
    }
}

/// The size of the terminal as the runtime reads it; `None` where standard output is none.
pub(super) fn size() -> Option<Vec<u8>> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    let (width, height) = (size.ws_col, size.ws_row);
    Some(format!("{{\"Width\":{width},\"Height\":{height}}}").into_bytes())
}
