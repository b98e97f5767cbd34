//! What the runtime says about itself, with the kubelet's patience: a question that fails changes
//! nothing until the last good answer is 30 s old.

use super::Health;
use crate::{
    cri::{CriError, Readiness, RuntimeClient, RuntimeVersion},
    model::{ToldDriver, format_duration},
};
use std::time::Duration;

/// Age of the last good answer from which on the runtime counts as down.
const DOWN_AFTER: Duration = Duration::from_secs(30);
/// Age of the last full listing from which on the loop counts as unhealthy.
const LISTED_WITHIN: Duration = Duration::from_secs(180);

/// Conditions, with what does not change while the runtime runs where it was asked for.
pub(super) struct Answer {
    readiness: Readiness,
    about: Option<About>,
}

/// What a runtime says of itself once.
struct About {
    version: RuntimeVersion,
    driver: Result<ToldDriver, CriError>,
}

impl Answer {
    /// Why the cgroup driver is not known, if that was asked for.
    pub(super) fn driver_error(&self) -> Option<&CriError> {
        self.about.as_ref()?.driver.as_ref().err()
    }
}

/// Asks for the conditions, and for version and cgroup driver if they are not known.
pub(super) async fn ask(client: &RuntimeClient, about: bool) -> Result<Answer, CriError> {
    let about = if about {
        let version = client.version().await?;
        Some(About { version, driver: client.cgroup_driver().await })
    } else {
        None
    };
    Ok(Answer { readiness: client.status().await?, about })
}

/// Takes an answer in. `last_good` is the time of the last answer with a ready runtime. Times are
/// those of [`crate::clock::awake`]: nothing is asked while the machine is suspended.
pub(super) fn take(
    health: &mut Health,
    last_good: &mut Option<Duration>,
    answer: Result<Answer, CriError>,
    now: Duration,
) {
    match answer {
        Ok(answer) => {
            if let Some(about) = answer.about {
                health.runtime_number += 1;
                health.runtime.name = about.version.name;
                health.runtime.version = about.version.version;
                // What it said last counts until it says something else.
                health.cgroup_driver = about.driver.unwrap_or(health.cgroup_driver);
            }
            if answer.readiness.runtime_not_ready.is_none() {
                *last_good = Some(now);
            }
            health.runtime.not_ready = answer.readiness.runtime_not_ready;
            health.runtime.network_not_ready = answer.readiness.network_not_ready;
            health.runtime.handlers = answer.readiness.handlers;
            health.runtime.features = answer.readiness.features;
        }
        // Until there was one good answer, the reason why there is none says most.
        Err(error) if last_good.is_none() => health.runtime.not_ready = Some(error.to_string()),
        Err(_) => aged(health, *last_good, now),
    }
}

/// Lets time pass while no answer comes.
pub(super) fn aged(health: &mut Health, last_good: Option<Duration>, now: Duration) {
    let down = last_good.is_some_and(|good| now.saturating_sub(good) >= DOWN_AFTER);
    if down && health.runtime.not_ready.is_none() {
        health.runtime.not_ready = Some("container runtime is down".to_owned());
    }
}

/// Why the loop is unhealthy, in the kubelet's words; `None` when it is not. The time is in whole
/// minutes, because each new text is a write of the Node.
pub(super) fn unhealthy(last_relist: Option<Duration>, now: Duration) -> Option<String> {
    let Some(last) = last_relist else {
        return Some("pleg has yet to be successful".to_owned());
    };
    let elapsed = now.saturating_sub(last);
    (elapsed > LISTED_WITHIN).then(|| {
        let elapsed = Duration::from_secs(elapsed.as_secs() / 60 * 60);
        let (elapsed, threshold) = (format_duration(elapsed), format_duration(LISTED_WITHIN));
        format!("pleg was last seen active {elapsed} ago; threshold is {threshold}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RuntimeView;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn health() -> Health {
        Health {
            last_relist: None,
            unhealthy: None,
            events_connected: false,
            hung: Vec::new(),
            runtime: RuntimeView {
                not_ready: Some("never asked".to_owned()),
                ..Default::default()
            },
            cgroup_driver: ToldDriver::Unknown,
            runtime_number: 0,
        }
    }

    fn refused() -> Result<Answer, CriError> {
        Err(CriError::DeadlineExceeded { call: "Status", seconds: 120 })
    }

    fn good(network: Option<&str>) -> Result<Answer, CriError> {
        let network_not_ready = network.map(str::to_owned);
        Ok(Answer { readiness: Readiness { network_not_ready, ..Default::default() }, about: None })
    }

    #[test]
    fn a_failed_question_counts_after_half_a_minute() {
        let (mut health, mut last_good) = (health(), None);
        assert_eq!(health.runtime.not_ready.as_deref(), Some("never asked"));
        take(&mut health, &mut last_good, refused(), at(100));
        assert!(health.runtime.not_ready.as_ref().is_some_and(|why| why.contains("Status")));
        take(&mut health, &mut last_good, good(Some("no cni")), at(101));
        take(&mut health, &mut last_good, refused(), at(130));
        assert_eq!(health.runtime.not_ready, None);
        take(&mut health, &mut last_good, refused(), at(131));
        assert_eq!(health.runtime.not_ready.as_deref(), Some("container runtime is down"));
        assert_eq!(health.runtime.network_not_ready.as_deref(), Some("no cni"));
        take(&mut health, &mut last_good, good(None), at(132));
        assert_eq!((health.runtime.not_ready, health.runtime.network_not_ready), (None, None));
    }

    #[test]
    fn a_runtime_that_is_not_ready_counts_at_once() {
        let (mut health, mut last_good) = (health(), None);
        let answer = Readiness { runtime_not_ready: Some("no".to_owned()), ..Default::default() };
        take(&mut health, &mut last_good, Ok(Answer { readiness: answer, about: None }), at(1));
        assert_eq!((health.runtime.not_ready.as_deref(), last_good), (Some("no"), None));
    }

    #[test]
    fn listing_counts_as_dead_after_three_minutes() {
        assert_eq!(unhealthy(None, at(9)).unwrap(), "pleg has yet to be successful");
        let last = Some(Duration::from_secs(100));
        assert_eq!(unhealthy(last, at(280)), None);
        let after = |millis: u64| {
            let now = Duration::from_millis(100_000 + millis);
            unhealthy(last, now).unwrap()
        };
        assert_eq!(after(180_512), "pleg was last seen active 3m0s ago; threshold is 3m0s");
        assert_eq!(after(180_512), after(239_999), "each new text is a write of the Node");
        assert_eq!(after(240_000), "pleg was last seen active 4m0s ago; threshold is 3m0s");
    }
}
