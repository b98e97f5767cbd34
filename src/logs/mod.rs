//! Container logs as the runtime writes them: the one reader of `nodelet logs` and of the HTTPS API.
//!
//! ```text
//!  find: which runs of a container have which files ─► read: lines, forwards, and the last ones
//!      ─► line: pieces joined, what is not wanted left out ─► the printer's output
//! ```
//!
//! `follow` goes on over rotations and restarts of the container, for a person; [`RunReader`] reads
//! one run of a container, piece by piece, for a server.

mod find;
mod follow;
mod line;
mod query;
mod read;
mod run;

pub use find::{LogDir, PodLogs, Run, containers, pods, runs};
pub use follow::{Hints, LAST_LINES, Position, follow, hints, watch_directory};
pub use line::{Printer, Stream, Wanted, parse};
pub use query::{LogQuery, QueryError};
pub use run::{LogError, Progress, RunReader, beginnings};
