//! The latest reading of the file systems, published by the task that reads them.

use super::Sample;
use crate::{
    clock,
    model::{DiskLayout, Signal},
};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::{Notify, watch};

/// How long [`DiskReadings::newer`] waits for a reading.
const READ_PATIENCE: Duration = Duration::from_millis(1500);

/// One reading of the file systems.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiskSample {
    /// The signals of disks.
    pub sample: Sample,
    /// On which file systems images and writable layers lie.
    pub layout: DiskLayout,
    /// A path on the file system of images.
    pub images: Option<PathBuf>,
    /// The directories in which the runtime has its images and writable layers, by its own account.
    pub runtime_dirs: Arc<[PathBuf]>,
}

/// Gives the latest reading, and asks for a new one.
#[derive(Clone, Debug)]
pub struct DiskReadings {
    /// The latest reading.
    pub latest: watch::Receiver<Arc<DiskSample>>,
    wanted: Arc<Notify>,
}

impl DiskReadings {
    /// Readings from this channel. The task that reads the disks waits for `wanted` as well.
    #[must_use]
    pub fn new(latest: watch::Receiver<Arc<DiskSample>>, wanted: Arc<Notify>) -> Self {
        Self { latest, wanted }
    }

    /// Has the disks read now, whatever the period is.
    pub fn ask(&self) {
        self.wanted.notify_one();
    }

    /// The available amount by a reading that began after this call. Cancel-safe.
    pub async fn newer(&self, signal: Signal) -> Option<u64> {
        let now = clock::now().boot;
        let mut latest = self.latest.clone();
        self.ask();
        let read = |disks: &DiskSample| {
            disks.sample.readings.get(&signal).filter(|read| read.at > now).map(|r| r.available)
        };
        let newer = latest.wait_for(|disks| read(disks).is_some());
        let newer = tokio::time::timeout(READ_PATIENCE, newer).await.ok()?.ok()?;
        read(&newer)
    }
}
