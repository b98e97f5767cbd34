//! Keeps the machine in order: the cgroups that all pods share, what crashes have left of pods,
//! unused images, and the agent's own directories.

mod images;
mod own_directories;
mod shared_cgroups;
mod sweep;

pub use images::{ImageGcParts, ImageGcTask};
pub use own_directories::Keeper;
pub use shared_cgroups::{Housekeeping, HousekeepingParts};
pub use sweep::Sweeper;
