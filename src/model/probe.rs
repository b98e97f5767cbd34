//! Probes: what an attempt finds, the results that follow from it, and what people see of them.

use super::{ContainerId, PodKey, k8s};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

/// The three probes that a container may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProbeKind {
    /// `startupProbe`: whether the container has started. The others wait for it.
    Startup,
    /// `livenessProbe`: a container that fails it is killed.
    Liveness,
    /// `readinessProbe`: whether the container can serve.
    Readiness,
}

impl ProbeKind {
    /// In the order in which they begin.
    pub const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];

    /// The probe of this kind in the specification of a container.
    #[must_use]
    pub fn of(self, container: &k8s::Container) -> Option<&k8s::Probe> {
        match self {
            Self::Startup => container.startup_probe.as_ref(),
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
        }
    }

    /// The name in messages in the middle of a sentence.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Liveness => "liveness",
            Self::Readiness => "readiness",
        }
    }

    /// The name at the beginning of a message.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// What one attempt of a probe has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The container has passed.
    Success,
    /// It has passed, with something to tell.
    Warning(String),
    /// It has failed, with the output of the probe.
    Failure(String),
    /// The probe could not be made. This counts neither as a success nor as a failure.
    Error(String),
}

/// The results of the probes of one container instance. `None`: no such probe, or not known yet,
/// because neither threshold was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeResults {
    /// Whether it has started.
    pub startup: Option<bool>,
    /// Whether it is alive.
    pub liveness: Option<bool>,
    /// Whether it can serve.
    pub readiness: Option<bool>,
}

impl ProbeResults {
    /// The result of one kind.
    pub fn result_mut(&mut self, kind: ProbeKind) -> &mut Option<bool> {
        match kind {
            ProbeKind::Startup => &mut self.startup,
            ProbeKind::Liveness => &mut self.liveness,
            ProbeKind::Readiness => &mut self.readiness,
        }
    }

    /// The failed probe for which the instance must be killed.
    #[must_use]
    pub fn fatal(&self) -> Option<ProbeKind> {
        if self.liveness == Some(false) {
            Some(ProbeKind::Liveness)
        } else if self.startup == Some(false) {
            Some(ProbeKind::Startup)
        } else {
            None
        }
    }
}

/// The results of one pod, by container instance.
pub type PodProbes = BTreeMap<ContainerId, ProbeResults>;

/// The results of every pod that has probes.
pub type NodeProbes = BTreeMap<PodKey, Arc<PodProbes>>;

/// A probe as people see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeView {
    /// The name of the container.
    pub container: Box<str>,
    /// Which of its probes.
    pub kind: ProbeKind,
    /// The result; `None` before a threshold was reached.
    pub result: Option<bool>,
    /// The last attempt that counted: whether it succeeded, and when it ended.
    pub last: Option<(bool, Timestamp)>,
    /// The output of the last attempt that did not succeed, and when it ended.
    pub last_failure: Option<(Box<str>, Timestamp)>,
}

/// The probes of every pod that has some, as people see them.
pub type ProbeViews = BTreeMap<PodKey, Vec<ProbeView>>;
