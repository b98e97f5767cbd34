//! The numbers of a probe, with the API's defaults.

use crate::model::k8s;
use std::time::Duration;

/// How often a probe is made, and how many attempts count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSettings {
    /// How long after the start of the container the first attempt is made.
    pub initial_delay: Duration,
    /// The time between the beginnings of two attempts.
    pub period: Duration,
    /// How long an attempt may take.
    pub timeout: Duration,
    /// The number of successes in a row that make the result a success.
    pub success_threshold: u32,
    /// The number of failures in a row that make the result a failure.
    pub failure_threshold: u32,
}

impl ProbeSettings {
    /// As the specification says. A field that is missing or zero has its default.
    #[must_use]
    pub fn of(probe: &k8s::Probe) -> Self {
        let given = |field: Option<i32>, default: u32| match field.map(u32::try_from) {
            Some(Ok(value)) if value > 0 => value,
            Some(_) | None => default,
        };
        let seconds = |field, default| Duration::from_secs(given(field, default).into());
        Self {
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            success_threshold: given(probe.success_threshold, 1),
            failure_threshold: given(probe.failure_threshold, 3),
        }
    }
}
