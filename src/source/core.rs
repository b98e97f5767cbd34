//! Decides which pods a source wants: last good revisions, removals, duplicates.

use serde::{Deserialize, Serialize};

/// What outlives the agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saved {}
