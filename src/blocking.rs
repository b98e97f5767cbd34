//! Work that may block (file systems, cgroups), kept off the event loop.
//!
//! Each kind of work has a pool: a fixed number of threads at a time. A pool whose threads all
//! hang, on a dead file system or on a directory with a million entries, delays its own kind of
//! work and no other. The threads are tokio's; they are made when there is work and end a second
//! after it. [`THREADS`] is the limit for tokio: it is never reached by the pools together, so no
//! pool ever waits for another one.

use std::any::Any;
use tokio::sync::Semaphore;

/// A bounded number of threads for one kind of work.
#[derive(Debug)]
pub struct Pool {
    name: &'static str,
    turns: Semaphore,
}

/// Listing and decoding manifests: one job for each source at a time.
pub static SOURCES: Pool = Pool::new("sources", SOURCES_THREADS);
/// Opening and writing state files: `store` has one job for each of its two directories, and one
/// thread that stands by.
pub static STATE: Pool = Pool::new("state", STATE_THREADS);
/// What starting and stopping a pod needs from the file system: directories, logs, links.
pub static PODS: Pool = Pool::new("pods", PODS_THREADS);
/// Reading and writing cgroups.
pub static CGROUPS: Pool = Pool::new("cgroups", CGROUPS_THREADS);
/// Deleting the volumes and logs of pods, whose size is under the control of containers.
pub static REMOVALS: Pool = Pool::new("removals", REMOVALS_THREADS);
/// Unmounting the volumes of pods: it can hang in the kernel for ever, and then removals go on.
pub static UNMOUNTS: Pool = Pool::new("unmounts", UNMOUNTS_THREADS);
/// Reading the credentials of the API server, one reading at a time, and starting its exec plugin.
pub static CREDENTIALS: Pool = Pool::new("credentials", CREDENTIALS_THREADS);
/// Reading the credentials of registries, which may lie in a home directory on another file system,
/// and starting credential provider plugins.
pub static REGISTRIES: Pool = Pool::new("registries", REGISTRIES_THREADS);
/// Writing the records of image pulls.
pub static PULL_RECORDS: Pool = Pool::new("pull records", PULL_RECORDS_THREADS);
/// Looking up the names of hosts that probes and hooks name: a lookup goes on after its caller has
/// stopped waiting.
pub static LOOKUPS: Pool = Pool::new("lookups", LOOKUPS_THREADS);
/// Looking up the name of the API server: one lookup at a time serves all connections, and another
/// thread is for the name of a new kubeconfig.
pub static API_LOOKUPS: Pool = Pool::new("lookups of the API server", API_LOOKUPS_THREADS);
/// Looking up the host of `staticPodURL`, and the host that it redirects to.
pub static URL_LOOKUPS: Pool = Pool::new("lookups of staticPodURL", URL_LOOKUPS_THREADS);
/// Whatever is looked at in the background: leftovers, termination messages, users of memory.
pub static LOOKS: Pool = Pool::new("looks", LOOKS_THREADS);

/// Reading the certificates of the HTTPS API.
pub static SERVING: Pool = Pool::new("serving", SERVING_THREADS);
/// Looking at container logs and renaming them.
pub static LOG_FILES: Pool = Pool::new("log files", LOG_FILES_THREADS);
/// Reading container logs for clients of the HTTPS API.
pub static LOG_READS: Pool = Pool::new("log reads", LOG_READS_THREADS);
/// Reading what cgroups have used, for clients.
pub static STATS: Pool = Pool::new("statistics", STATS_THREADS);
/// Compressing container logs that were set aside.
pub static COMPRESSIONS: Pool = Pool::new("compressions", COMPRESSIONS_THREADS);

const SOURCES_THREADS: usize = 3;
const STATE_THREADS: usize = 3;
const PODS_THREADS: usize = 8;
const CGROUPS_THREADS: usize = 4;
const REMOVALS_THREADS: usize = 2;
const UNMOUNTS_THREADS: usize = 2;
const CREDENTIALS_THREADS: usize = 2;
const REGISTRIES_THREADS: usize = 2;
const PULL_RECORDS_THREADS: usize = 2;
const LOOKUPS_THREADS: usize = 4;
const API_LOOKUPS_THREADS: usize = 2;
const URL_LOOKUPS_THREADS: usize = 2;
const LOOKS_THREADS: usize = 4;
const SERVING_THREADS: usize = 1;
const LOG_FILES_THREADS: usize = 2;
const LOG_READS_THREADS: usize = 4;
const STATS_THREADS: usize = 1;
/// The largest useful `containerLogMaxWorkers`.
pub const COMPRESSIONS_THREADS: usize = 4;
/// For libraries that block on threads of tokio by themselves.
const LIBRARY_THREADS: usize = 4;

/// The limit for tokio's blocking threads.
pub const THREADS: usize = SOURCES_THREADS
    + STATE_THREADS
    + PODS_THREADS
    + CGROUPS_THREADS
    + REMOVALS_THREADS
    + UNMOUNTS_THREADS
    + CREDENTIALS_THREADS
    + REGISTRIES_THREADS
    + PULL_RECORDS_THREADS
    + LOOKUPS_THREADS
    + API_LOOKUPS_THREADS
    + URL_LOOKUPS_THREADS
    + LOOKS_THREADS
    + SERVING_THREADS
    + LOG_FILES_THREADS
    + LOG_READS_THREADS
    + STATS_THREADS
    + COMPRESSIONS_THREADS
    + LIBRARY_THREADS;

/// The work panicked, which ends the release build, or the runtime is shutting down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work on the file system has crashed ({pool})")]
pub struct Crashed {
    pool: &'static str,
}

impl Pool {
    const fn new(name: &'static str, threads: usize) -> Self {
        Self { name, turns: Semaphore::const_new(threads) }
    }

    /// One that [`THREADS`] does not count.
    #[cfg(test)]
    pub(crate) const fn of_test(threads: usize) -> Self {
        Self::new("test", threads)
    }

    /// Runs `work` on one of the pool's threads, as soon as one is free.
    ///
    /// # Errors
    /// [`Crashed`] when the work panics.
    ///
    /// # Cancel safety
    /// Work that has begun runs to its end when the future is dropped, and keeps its thread until
    /// then; work that has not begun is never run.
    pub async fn run<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Crashed> {
        let crashed = Crashed { pool: self.name };
        let turn = self.turns.acquire().await.map_err(|_| crashed)?;
        // Boxed: tokio's code for a task is compiled once for each type of work.
        let work: Box<dyn FnOnce() -> Box<dyn Any + Send> + Send> = Box::new(move || {
            // Given back when the work is done, not when the caller stops waiting.
            let _turn = turn;
            Box::new(work())
        });
        let done = tokio::task::spawn_blocking(work).await.map_err(|_| crashed)?;
        done.downcast().map(|done| *done).map_err(|_| crashed)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::{sync::mpsc, time::Duration};

    #[tokio::test]
    async fn a_pool_that_hangs_delays_no_other() {
        static HANGS: Pool = Pool::new("hangs", 2);
        static WORKS: Pool = Pool::new("works", 2);
        let (release, held) = mpsc::channel::<()>();
        let held = std::sync::Arc::new(std::sync::Mutex::new(held));
        let mut hanging = tokio::task::JoinSet::new();
        for _ in 0..5 {
            let held = std::sync::Arc::clone(&held);
            hanging.spawn(HANGS.run(move || held.lock().unwrap().recv().ok()));
        }
        tokio::task::yield_now().await;
        assert_eq!(WORKS.run(|| 1).await, Ok(1));
        let waited = tokio::time::timeout(Duration::from_millis(20), HANGS.run(|| 2)).await;
        assert!(waited.is_err(), "a third job ran beside two that hang");
        drop(release);
        assert_eq!(HANGS.run(|| 3).await, Ok(3));
    }

    #[tokio::test]
    async fn a_dropped_job_keeps_its_thread_until_it_ends() {
        static ONE: Pool = Pool::new("one", 1);
        let (release, held) = mpsc::channel::<()>();
        let first = tokio::time::timeout(Duration::from_millis(20), ONE.run(move || held.recv()));
        assert!(first.await.is_err());
        let second = tokio::time::timeout(Duration::from_millis(20), ONE.run(|| 2));
        assert!(second.await.is_err(), "the thread of a job that runs was given out again");
        drop(release);
        assert_eq!(ONE.run(|| 3).await, Ok(3));
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_gives_the_thread_back() {
        static ONE: Pool = Pool::new("one", 1);
        assert_eq!(ONE.run(|| panic!("as asked")).await, Err::<(), _>(Crashed { pool: "one" }));
        assert_eq!(ONE.run(|| 1).await, Ok(1));
    }
}
