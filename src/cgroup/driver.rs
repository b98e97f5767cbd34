//! Which driver makes the cgroups: what the runtime tells, else what is configured; and what shows
//! that the two do not agree after all.
//!
//! Nothing is made before the runtime was asked. It is asked again whenever it may be another one
//! (it was restarted), and the newest answer counts for the sandboxes that are made from then on. A
//! pod stays with the driver of its sandbox, and removal looks in the places of both drivers.

use super::{CgroupError, Cgroups};
use crate::model::{CgroupDriver, ToldDriver};
use std::time::Duration;
use tokio::sync::watch;

/// How long something that needs the driver waits for the runtime to tell it. The runtime has
/// listed what runs by then, so that its answer is on its way.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// The driver, and what a person should know of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverState {
    /// The one in use; `None` until the runtime was asked.
    pub driver: Option<CgroupDriver>,
    /// Whether the runtime told it.
    told: bool,
    /// The setting that is not followed.
    overruled: Option<String>,
    /// What shows that the runtime uses the other driver.
    mismatch: Option<String>,
}

/// What runc says that was told to use the systemd driver and gets a directory.
const WANTS_A_SLICE: &str = "for systemd cgroups";

impl DriverState {
    /// What a person should know.
    pub fn warnings(&self) -> impl Iterator<Item = &String> {
        self.overruled.iter().chain(&self.mismatch)
    }

    /// The state after the runtime's answer.
    pub(super) fn after(&self, told: ToldDriver, configured: CgroupDriver) -> Self {
        let (driver, told) = match told {
            ToldDriver::Unknown => return self.clone(),
            ToldDriver::NotOffered => (configured, false),
            ToldDriver::Uses(driver) => (driver, true),
        };
        let default = configured == CgroupDriver::default();
        let overruled = (driver != configured && !default).then(|| {
            format!(
                "cgroupDriver: {configured} is configured, but the container runtime uses {driver}, \
                 which is what counts: set them to the same"
            )
        });
        let same = self.driver == Some(driver) && self.told == told;
        let mismatch = self.mismatch.clone().filter(|_| same);
        Self { driver: Some(driver), told, overruled, mismatch }
    }

    /// The state after the runtime refused to make something in a directory.
    pub(super) fn after_refusal(&self) -> Self {
        if self.driver != Some(CgroupDriver::Cgroupfs) {
            return self.clone();
        }
        let mismatch = "the container runtime uses the systemd cgroup driver, the agent cgroupfs: \
                        set `cgroupDriver: systemd` in the agent's configuration, or the runtime to \
                        cgroupfs (containerd: SystemdCgroup = false)";
        Self { mismatch: Some(mismatch.to_owned()), ..self.clone() }
    }

    /// The state after a sandbox was made. The cgroupfs driver takes the name of a slice for the
    /// name of a directory, and makes it somewhere else, where no limit of the pod's holds.
    pub(super) fn after_sandbox(&self, in_pods_cgroup: bool) -> Self {
        let mismatch = (!in_pods_cgroup && self.driver == Some(CgroupDriver::Systemd)).then(|| {
            "the container runtime puts no process into the pods' slices: it uses the cgroupfs cgroup \
             driver, the agent systemd, and no limit of a pod holds; set `cgroupDriver: cgroupfs` in \
             the agent's configuration, or the runtime to systemd (containerd: SystemdCgroup = true)"
                .to_owned()
        });
        Self { mismatch, ..self.clone() }
    }

    /// Whether there is something to look at after a sandbox was made: a runtime that told its
    /// driver needs no look.
    pub(super) fn doubts(&self) -> bool {
        !self.told && (self.driver == Some(CgroupDriver::Systemd) || self.mismatch.is_some())
    }

    pub(super) fn mismatch(&self) -> Option<&str> {
        self.mismatch.as_deref()
    }
}

impl Cgroups {
    /// The driver in use and what a person should know of it, the latest.
    #[must_use]
    pub fn driver_state(&self) -> watch::Receiver<DriverState> {
        self.inner.driver.subscribe()
    }

    /// Takes in what the runtime says of its driver.
    pub fn runtime_tells(&self, told: ToldDriver) {
        let before = self.inner.driver.borrow().driver;
        self.change_driver(|state| state.after(told, self.inner.configured));
        let after = self.inner.driver.borrow().driver;
        match (before, after) {
            (None, Some(driver)) => tracing::info!(%driver, "cgroup driver"),
            (Some(old), Some(driver)) if old != driver => {
                tracing::warn!(%driver, "the container runtime has changed its cgroup driver, it was {old}");
            }
            (Some(_) | None, _) => {}
        }
    }

    /// Takes in that the runtime refused to make something with these words. Returns what is to be
    /// set, when they say that the drivers do not agree.
    #[must_use]
    pub fn runtime_refused(&self, message: &str) -> Option<String> {
        if !message.contains(WANTS_A_SLICE) {
            return None;
        }
        self.change_driver(DriverState::after_refusal);
        self.inner.driver.borrow().mismatch().map(str::to_owned)
    }

    /// Looks whether a sandbox that was just made is in its pod's cgroup, where that is in doubt.
    ///
    /// # Errors
    /// When its processes can't be listed.
    pub fn sandbox_made(&self, name: &[impl AsRef<str>]) -> Result<(), CgroupError> {
        if self.inner.driver.borrow().doubts() {
            let there = !self.inner.per_qos || !self.processes(name)?.is_empty();
            self.change_driver(|state| state.after_sandbox(there));
        }
        Ok(())
    }

    fn change_driver(&self, change: impl FnOnce(&DriverState) -> DriverState) {
        self.inner.driver.send_if_modified(|state| {
            let new = change(state);
            let changed = new != *state;
            if let Some(mismatch) = new.mismatch().filter(|_| new.mismatch() != state.mismatch()) {
                tracing::error!("{mismatch}");
            }
            *state = new;
            changed
        });
    }

    /// The driver, waiting for the runtime to tell it.
    pub(super) async fn driver(&self) -> Result<CgroupDriver, CgroupError> {
        let mut state = self.inner.driver.subscribe();
        let told = tokio::time::timeout(TOLD_WITHIN, state.wait_for(|s| s.driver.is_some())).await;
        let driver = told.ok().and_then(Result::ok).and_then(|state| state.driver);
        driver.ok_or(CgroupError::DriverUnknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CgroupDriver::{Cgroupfs, Systemd};

    fn warnings(state: &DriverState) -> Vec<&str> {
        state.warnings().map(String::as_str).collect()
    }

    #[test]
    fn the_runtime_wins_over_the_configuration() {
        for (told, configured, driver, warned) in [
            (ToldDriver::NotOffered, Cgroupfs, Cgroupfs, 0),
            (ToldDriver::NotOffered, Systemd, Systemd, 0),
            (ToldDriver::Uses(Cgroupfs), Cgroupfs, Cgroupfs, 0),
            (ToldDriver::Uses(Systemd), Systemd, Systemd, 0),
            // Nobody has to have written the default.
            (ToldDriver::Uses(Systemd), Cgroupfs, Systemd, 0),
            (ToldDriver::Uses(Cgroupfs), Systemd, Cgroupfs, 1),
        ] {
            let state = DriverState::default().after(told, configured);
            assert_eq!(state.driver, Some(driver), "{told:?} {configured:?}");
            assert_eq!(warnings(&state).len(), warned, "{told:?} {configured:?}");
        }
        let state = DriverState::default().after(ToldDriver::Unknown, Systemd);
        assert_eq!(state, DriverState::default());
        let known = state.after(ToldDriver::Uses(Systemd), Cgroupfs);
        assert_eq!(known.after(ToldDriver::Unknown, Cgroupfs), known, "what it said last counts");
    }

    #[test]
    fn a_runtime_that_wants_slices_is_recognized() {
        let state = DriverState::default().after(ToldDriver::NotOffered, Cgroupfs);
        let after = state.after_refusal();
        assert!(warnings(&after)[0].contains("`cgroupDriver: systemd`"), "{after:?}");
        let systemd = state.after(ToldDriver::Uses(Systemd), Cgroupfs);
        assert_eq!(systemd.after_refusal(), systemd);
        // Gone with the first sandbox that works, and with another answer.
        assert!(after.doubts());
        assert_eq!(after.after_sandbox(true), state);
        assert!(warnings(&after.after(ToldDriver::Uses(Systemd), Cgroupfs)).is_empty());
        assert_eq!(after.after(ToldDriver::NotOffered, Cgroupfs), after);
    }

    #[test]
    fn a_runtime_that_takes_slices_for_directories_is_recognized() {
        let state = DriverState::default().after(ToldDriver::NotOffered, Systemd);
        assert!(state.doubts());
        let after = state.after_sandbox(false);
        assert!(warnings(&after)[0].contains("SystemdCgroup = true"), "{after:?}");
        assert_eq!(after.after_sandbox(true), state);
        assert!(!state.after(ToldDriver::Uses(Systemd), Systemd).doubts());
    }
}
