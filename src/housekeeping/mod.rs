//! Maintains the cgroups that all pods share and the agent's own directories, and removes leftovers
//! of crashes and unused images.

mod images;
mod own_directories;
mod shared_cgroups;
mod sweep;

pub use images::{ImageGcParts, ImageGcTask};
pub use own_directories::Keeper;
pub use shared_cgroups::{Housekeeping, HousekeepingParts};
pub use sweep::Sweeper;
