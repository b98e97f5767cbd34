//! Rolls a new revision back that does not become Ready, if its manifest asks for it.
//!
//! ```text
//!                takes over from a proven revision
//!  (no rollout) ───────────────────────────────────► on trial ──── proven ────► (no rollout)
//!       ▲                                               │
//!       │ the manifest has another revision             │ failed, or not proven in time
//!       └─────────────────────────────────────────── rolled back: the previous revision runs
//! ```
//!
//! A revision is *proven* when it was Ready for `nodelet.dev/min-ready-seconds` without a break, or
//! when its pod has Succeeded. The previous revision runs again with the image ids that it ran with,
//! because a tag may name another image by now. It is not put on trial: if it fails too, it stays,
//! with the usual back-offs.

use super::{Own, PodMemory, Terminal, backoff::Moment};
use crate::model::{
    DesiredPod, MIN_READY, MIN_READY_SECONDS, Now, PROGRESS_DEADLINE, PROGRESS_DEADLINE_SECONDS,
    PodUid, ROLLBACK, TerminalPhase, k8s, short_digest,
};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

/// What is saved about the revisions of a pod name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rollout {
    /// The last proven revision, as it would run again. `None` when nothing is on trial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<Arc<DesiredPod>>,
    /// The revision that was rolled back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedRevision>,
}

/// A revision that was rolled back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedRevision {
    pub revision: Box<str>,
    /// One sentence.
    pub why: String,
}

/// How the trial of a revision stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// The revision is not on trial.
    None,
    /// It has until this boot time, or longer if the machine is suspended before.
    Until(Duration),
    Passed,
    /// Why it is rolled back, one sentence.
    Failed(String),
}

/// What the judgement of a trial depends on, except the time.
#[derive(Clone, Copy, Debug)]
pub struct TrialInput<'a> {
    pub wished: &'a DesiredPod,
    pub memory: &'a PodMemory,
    pub terminal: Option<&'a Terminal>,
    /// The time since this run of the agent first saw the revision run, or held for lack of room.
    /// Time in which the machine was suspended is left out: the pod could not become Ready in it.
    pub tried_for: Duration,
    /// Why the pod is not Ready: the message of its condition.
    pub not_ready: Option<&'a str>,
}

/// How long an incarnation has been Ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) enum Readiness {
    #[default]
    NotReady,
    /// Without a break since then.
    Since(Moment),
    /// For long enough (`nodelet.dev/min-ready-seconds`), or it has Succeeded.
    Proven,
}

impl Rollout {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The pod that runs in place of the wished one, because the wished revision was rolled back.
    #[must_use]
    pub fn in_place_of(&self, wished: &DesiredPod) -> Option<&Arc<DesiredPod>> {
        let failed = self.failed.as_ref()?;
        self.previous.as_ref().filter(|_| failed.revision == wished.revision)
    }

    /// True when the wished pod is the previous revision, which runs again.
    fn runs_previous(&self, wished: &DesiredPod) -> bool {
        self.previous.as_ref().is_some_and(|previous| previous.uid == wished.uid)
    }

    /// Why a later revision was rolled back to this pod, one sentence.
    #[must_use]
    pub fn rolled_back_to(&self, wished: &DesiredPod) -> Option<&str> {
        self.failed.as_ref().filter(|_| self.runs_previous(wished)).map(|failed| &*failed.why)
    }

    /// The rollout when `wished` takes over from `standing`, of which `own` runs.
    #[must_use]
    pub(crate) fn taken_over(
        &self,
        standing: &DesiredPod,
        own: &Own<'_>,
        memory: &PodMemory,
        wished: &DesiredPod,
    ) -> Self {
        if self.runs_previous(wished) {
            return self.clone();
        }
        // Under one uid nothing is replaced: containers change in place.
        if !wants_rollback(&wished.pod) || wished.uid == standing.uid {
            return Self::default();
        }
        let previous = if memory.is_proven(&standing.uid) {
            Some(Arc::new(returning(standing, own, wished)))
        } else {
            self.previous.clone()
        };
        Self { previous, failed: None }
    }

    /// The rollout when there is nothing that `wished` takes over from: an edit during a roll-back
    /// ends it.
    #[must_use]
    pub fn begun_with(&self, wished: &DesiredPod) -> Self {
        let Some(failed) = &self.failed else { return self.clone() };
        if failed.revision == wished.revision || self.runs_previous(wished) {
            return self.clone();
        }
        let previous = self.previous.clone().filter(|_| wants_rollback(&wished.pod));
        Self { previous, failed: None }
    }

    /// How the trial of the wished revision stands, which runs or has ended.
    #[must_use]
    pub fn judge(&self, input: &TrialInput<'_>, now: Now) -> Trial {
        let wished = input.wished;
        let tried = self.previous.is_some() && self.failed.is_none();
        if !tried || self.runs_previous(wished) {
            return Trial::None;
        }
        // An edit of the annotation ends the trial.
        if input.memory.is_proven(&wished.uid) || !wants_rollback(&wished.pod) {
            return Trial::Passed;
        }
        if input.terminal.is_some_and(|terminal| terminal.phase == TerminalPhase::Failed) {
            return Trial::Failed("its pod has Failed".to_owned());
        }
        let seconds = seconds_of(&wished.pod, PROGRESS_DEADLINE_SECONDS, PROGRESS_DEADLINE);
        let left = Duration::from_secs(seconds.into()).saturating_sub(input.tried_for);
        if !left.is_zero() {
            return Trial::Until(now.boot + left);
        }
        // One that became Ready in time may stay Ready for long enough.
        if let Readiness::Since(since) = input.memory.of(&wished.uid).readiness {
            return Trial::Until(since.after(min_ready(&wished.pod)));
        }
        let detail = input.not_ready.map(|why| format!(": {why}")).unwrap_or_default();
        Trial::Failed(format!("it was not Ready within {seconds} s{detail}"))
    }

    /// The rollout after `wished` was rolled back.
    #[must_use]
    pub fn rolled_back(&self, wished: &DesiredPod, why: String) -> Self {
        let failed = Some(FailedRevision { revision: wished.revision.clone(), why });
        Self { previous: self.previous.clone(), failed }
    }
}

impl PodMemory {
    /// Notes whether a pod is Ready, or has Succeeded. Returns the boot time at which it is proven
    /// if it stays Ready.
    pub fn note_ready(
        &mut self,
        pod: &DesiredPod,
        ready: bool,
        succeeded: bool,
        now: Now,
    ) -> Option<Duration> {
        let min_ready = min_ready(&pod.pod);
        let memory = self.incarnation(&pod.uid)?;
        let since = match memory.readiness {
            Readiness::Proven => return None,
            Readiness::Since(since) => since,
            Readiness::NotReady => Moment::just(now),
        };
        let long_enough = ready && since.is_older_than(min_ready, now);
        memory.readiness = if succeeded || long_enough {
            Readiness::Proven
        } else if ready {
            Readiness::Since(since)
        } else {
            Readiness::NotReady
        };
        let waits = matches!(memory.readiness, Readiness::Since(_));
        waits.then(|| since.after(min_ready))
    }

    /// True when the incarnation was Ready for long enough.
    #[must_use]
    pub fn is_proven(&self, uid: &PodUid) -> bool {
        self.of(uid).readiness == Readiness::Proven
    }
}

fn wants_rollback(pod: &k8s::Pod) -> bool {
    annotation(pod, ROLLBACK) == Some("true")
}

fn min_ready(pod: &k8s::Pod) -> Duration {
    Duration::from_secs(seconds_of(pod, MIN_READY_SECONDS, MIN_READY).into())
}

/// The value of an annotation that validation has checked.
fn seconds_of(pod: &k8s::Pod, name: &str, default: u32) -> u32 {
    annotation(pod, name).and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn annotation<'a>(pod: &'a k8s::Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The revision as it comes back after `successor`: another incarnation, with image ids in place of
/// image names.
fn returning(standing: &DesiredPod, own: &Own<'_>, successor: &DesiredPod) -> DesiredPod {
    let uid = uid_after(&standing.uid, successor);
    let mut pod = k8s::Pod::clone(&standing.pod);
    pod.metadata.uid = Some(uid.to_string());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert("kubernetes.io/config.hash".to_owned(), uid.to_string());
    if let Some(spec) = &mut pod.spec {
        let init = spec.init_containers.iter_mut().flatten();
        for container in init.chain(&mut spec.containers) {
            let image = own.newest(&container.name).map(|instance| &*instance.image_ref);
            if let Some(image) = image.filter(|image| !image.is_empty()) {
                container.image = Some(image.to_owned());
                container.image_pull_policy = Some("Never".to_owned());
            }
        }
    }
    DesiredPod { uid, pod: Arc::new(pod), ..standing.clone() }
}

/// The uid of a revision that comes back. It differs from the first one, so that the pod begins anew.
fn uid_after(uid: &PodUid, successor: &DesiredPod) -> PodUid {
    let text = format!("{uid} before {}", successor.revision);
    PodUid::from(short_digest(text.as_bytes()))
}
