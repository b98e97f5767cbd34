//! Measurements: the available resources of the machine, the usage of pods and other processes, and
//! reports of the kernel.
//!
//! Reads `/proc`, cgroup files and file systems, and decides nothing: `pressure::core` decides from
//! these measurements what is short and which pod is evicted. `core` (pure) parses the texts.
//!
//! ```text
//! MachineReader memory and pids              files of the kernel, no thread; cheap ones first
//! Disks         nodefs, imagefs, containerfs    one thread for each file system: it may hang
//! Measurer      one pod's memory, tasks, logs, emptyDirs, layers, files
//! outsiders     who uses it when no pod does
//! PsiTrigger, KernelLog   hints and news from the kernel
//! ```
//!
//! A value that can't be read or makes no sense is reported with a reason instead of a reading, so
//! it never looks like a shortage.

mod core;
mod directory;
mod disk;
mod disk_readings;
mod kept;
mod kmsg;
mod memory;
pub mod outsiders;
mod psi;
mod reclaim;
mod stats;
mod usage;
mod walk;
mod walk_queue;

pub use core::{NoReading, Process, SystemOom};
pub use disk::{Disks, VolumeDisks};
pub use disk_readings::{DiskReadings, DiskSample};
pub use kmsg::KernelLog;
pub use memory::{MachineReader, MemorySignal, SampleRequest, cgroup_memory, cgroup_tasks};
pub use psi::PsiTrigger;
pub use reclaim::{Reclaimed, Reclaiming, reclaim};
pub use stats::{OwnProcess, cgroup_stats, machine_stats, network, own_process, own_stats};
pub use usage::{
    ContainerCgroups, ContainerLogs, ContainerPlaces, FindPlaces, Measured, Measurer, Parts,
    PodPlaces,
};
pub use walk::WalkError;

use crate::model::{Readings, Signal};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Read as _},
    path::Path,
};

/// Readings, and why others are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// What could be read.
    pub readings: Readings,
    /// What could not. No signal is in both.
    pub missing: BTreeMap<Signal, NoReading>,
    /// Signals of which at least as much is available as the reading says: far from every
    /// threshold.
    pub at_least: BTreeSet<Signal>,
    /// Bytes that are taken on the file system of a signal. What is reserved for root is neither
    /// taken nor available.
    pub taken: BTreeMap<Signal, u64>,
}

impl Sample {
    /// Takes in a later sample; signals that it says nothing of stay as they are.
    pub fn update(&mut self, later: Self) {
        for (signal, reading) in later.readings {
            self.missing.remove(&signal);
            self.at_least.remove(&signal);
            self.readings.insert(signal, reading);
        }
        for (signal, why) in later.missing {
            self.readings.remove(&signal);
            self.at_least.remove(&signal);
            self.missing.insert(signal, why);
        }
        self.at_least.extend(later.at_least);
        self.taken.extend(later.taken);
    }

    fn put(&mut self, signal: Signal, read: Result<crate::model::Reading, NoReading>) {
        match read {
            Ok(reading) => drop(self.readings.insert(signal, reading)),
            Err(why) => drop(self.missing.insert(signal, why)),
        }
    }
}

/// A file of the kernel. It has no size, and nearly all fit into one buffer, so this is two calls
/// where `fs::read` needs half a dozen: there are thousands of these files on a full node.
fn read(path: &Path) -> Result<String, NoReading> {
    fs::File::open(path).and_then(read_file).map_err(|error| unreadable(path, &error))
}

fn read_file(mut file: fs::File) -> io::Result<String> {
    let (mut buffer, mut bytes) = ([0; 4096], Vec::new());
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(filled) => bytes.extend_from_slice(&buffer[..filled]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    // Names of processes may be any bytes.
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

fn unreadable(path: &Path, error: &io::Error) -> NoReading {
    NoReading::Unreadable { path: path.to_owned(), message: error.to_string() }
}

fn absurd(path: &Path, what: impl Into<String>) -> NoReading {
    NoReading::Absurd { path: path.to_owned(), what: what.into() }
}

#[cfg(test)]
mod tests;
