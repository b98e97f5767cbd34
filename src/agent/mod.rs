//! To be written.

pub use crate::clock;
