//! How long it takes until a new node is registered and ready, for `/metrics`.
//!
//! ```text
//!  New ─► Trying ─► Registered ─► Over
//!   └───────┴─ the API server has the Node already ─►┘
//! ```

use crate::metrics::StartupPart;
use std::time::Duration;

/// The way of a new node until it is ready. All times are boot times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Startup {
    /// Nothing was tried yet.
    New { agent_started: Duration },
    /// The registration was tried at that time for the first time.
    Trying { agent_started: Duration, first_try: Duration },
    /// This run of the agent has made the Node.
    Registered { at: Duration },
    /// The node was ready, or another run of the agent has made the Node.
    Over,
}

impl Startup {
    /// Notes a try to register the node.
    pub(super) fn try_at(&mut self, now: Duration) {
        if let Self::New { agent_started } = *self {
            *self = Self::Trying { agent_started, first_try: now };
        }
    }

    /// Notes that the API server has the Node already, whoever has made it.
    pub(super) fn found(&mut self) {
        if let Self::New { .. } | Self::Trying { .. } = self {
            *self = Self::Over;
        }
    }

    /// Notes that the Node was made. Returns what took how long.
    pub(super) fn registered(&mut self, now: Duration) -> Vec<(StartupPart, Duration)> {
        let Self::Trying { agent_started, first_try } = *self else { return Vec::new() };
        *self = Self::Registered { at: now };
        vec![
            (StartupPart::PreKubelet, agent_started),
            (StartupPart::PreRegistration, first_try.saturating_sub(agent_started)),
            (StartupPart::Registration, now.saturating_sub(first_try)),
        ]
    }

    /// Notes that the API server has a status that says ready. Returns what took how long.
    pub(super) fn ready(&mut self, now: Duration) -> Vec<(StartupPart, Duration)> {
        let Self::Registered { at } = *self else { return Vec::new() };
        *self = Self::Over;
        vec![(StartupPart::PostRegistration, now.saturating_sub(at)), (StartupPart::Total, now)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_parts_of_a_start_add_up_to_the_whole() {
        let mut startup = Startup::New { agent_started: 10 * SECOND };
        startup.try_at(11 * SECOND);
        startup.try_at(14 * SECOND);
        let mut parts = startup.registered(15 * SECOND);
        parts.extend(startup.ready(20 * SECOND));
        let total = parts.pop();
        assert_eq!(total, Some((StartupPart::Total, 20 * SECOND)));
        let seconds: Vec<u64> = parts.iter().map(|(_, took)| took.as_secs()).collect();
        assert_eq!(seconds, [10, 1, 4, 5]);
        assert_eq!(startup.ready(30 * SECOND), []);
    }

    #[test]
    fn a_node_that_was_there_is_not_measured() {
        let mut startup = Startup::New { agent_started: SECOND };
        startup.found();
        // Somebody deletes it later.
        startup.try_at(5 * SECOND);
        assert_eq!(startup.registered(6 * SECOND), []);
        assert_eq!(startup.ready(7 * SECOND), []);
    }
}
