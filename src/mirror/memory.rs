//! What is remembered of one pod name between steps: answers that the watch has not shown yet, and
//! refusals.

use super::{
    Case, Denial, MirrorRefusal, MirrorStep, Refusals, SeenPod,
    contest::Contest,
    plan,
    plan::last_deletion,
    refusal::{minds_a_restart, refused},
};
use crate::{
    echo::Unechoed,
    model::{PodKey, PodUid, PodView, REVISION_ANNOTATION, k8s},
    node::NodeRef,
};
use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

/// How long minor changes wait for others. A sandbox and its containers are made within this time,
/// also when many pods start at once.
const MINOR_DELAY: Duration = Duration::from_millis(500);
/// The same for a pod that was deleted: its end follows, and on a busy node it takes seconds.
const MINOR_DELAY_AT_END: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The object as it is now.
    Pod(Arc<SeenPod>),
    Gone,
    Refused(Denial),
    /// Nobody knows: no answer, or one that says nothing about the pod.
    Unclear(String),
}

/// When to go on with the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Now,
    Later,
}

#[derive(Clone, Debug, Default)]
pub struct MirrorMemory {
    told: Unechoed<SeenPod>,
    /// Of which incarnation and revision.
    refusals: (Option<(PodUid, Option<String>)>, Refusals),
    /// The pod that was declined last.
    declined: Option<String>,
    /// A status that was written without effect: version of the object, hash of the patch.
    futile: Option<(u64, u64)>,
    /// Uid of the mirror that was made here last.
    made: Option<String>,
    /// The status that was written last, and the one that is being written.
    said: [Option<Arc<k8s::PodStatus>>; 2],
    /// Since when there is nothing to be written but minor changes.
    minor_since: Option<Duration>,
    contest: Contest,
    /// The step that was planned last puts right what somebody else wrote.
    answers: bool,
    /// The API server's words about the last refusal.
    pub trouble: Option<String>,
}

/// What a step is planned from, besides what is remembered.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    pub key: &'a PodKey,
    pub view: Option<&'a PodView>,
    /// What the watch shows.
    pub shown: Option<&'a Arc<SeenPod>>,
    /// Whether the watch goes on.
    pub live: bool,
    pub node: Option<&'a NodeRef>,
    /// Pods that the API server has bound to the node are run (`apiPods`).
    pub runs_api_pods: bool,
}

impl MirrorMemory {
    /// What the API server has, by what the watch shows and by what it answered since.
    pub fn seen(&mut self, sight: &Sight<'_>, now: Duration) -> Option<Arc<SeenPod>> {
        self.told.latest(sight.shown, sight.live, now)
    }

    /// Decides what is next. `gone` tells whether there is known to be no pod of this object under
    /// this name: it is gone, or it has another name. It is asked of static pods only where none
    /// has the name, and of a pod whose object is not read.
    pub fn plan(
        &mut self,
        sight: &Sight<'_>,
        gone: impl Fn(&SeenPod) -> bool,
        now: Duration,
    ) -> MirrorStep {
        let seen = self.seen(sight, now);
        let of = sight.view.map(|view| (view.uid.clone(), revision(view.pod.as_deref())));
        if self.refusals.0 != of {
            self.refusals = (of, Refusals::default());
            self.trouble = None;
        }
        let step = plan(&Case {
            key: sight.key,
            view: sight.view,
            seen: seen.as_deref(),
            node: sight.node,
            gone: seen.as_ref().is_some_and(|pod| {
                let is_asked = match &pod.mirrors {
                    Some(_) => sight.view.is_none(),
                    None => pod.unread,
                };
                is_asked && gone(pod)
            }),
            refusals: &self.refusals.1,
            runs_api_pods: sight.runs_api_pods,
        });
        let mut step = self.without_repeats(step);
        // A status that the API server does not keep must not keep the object either.
        let own = seen.as_deref().filter(|pod| sight.runs_api_pods && pod.mirrors.is_none());
        if let (MirrorStep::Wait(_), Some((pod, view))) = (&step, own.zip(sight.view)) {
            step = last_deletion(pod, view).unwrap_or(step);
        }
        let delay = match seen.as_ref().is_some_and(|pod| pod.deletion.is_some()) {
            true => MINOR_DELAY_AT_END,
            false => MINOR_DELAY,
        };
        let step = self.delay_minor_patch(step, delay, now);
        let step = self.with_patience(step, sight, seen.as_deref(), now);
        match &step {
            MirrorStep::Nothing => self.trouble = None,
            MirrorStep::Wait(why) => self.trouble = Some(why.clone()),
            MirrorStep::Decline { uid } => self.declined = Some(uid.clone()),
            MirrorStep::Delay(_)
            | MirrorStep::Create(_)
            | MirrorStep::Delete { .. }
            | MirrorStep::PatchStatus { .. } => {}
        }
        step
    }

    /// Minor changes are written together with what follows them, or when nothing has followed.
    fn delay_minor_patch(
        &mut self,
        step: MirrorStep,
        delay: Duration,
        now: Duration,
    ) -> MirrorStep {
        if !matches!(step, MirrorStep::PatchStatus { is_minor: true, .. }) {
            self.minor_since = None;
            return step;
        }
        let due = *self.minor_since.get_or_insert(now) + delay;
        if now < due { MirrorStep::Delay(due) } else { step }
    }

    /// What was said once, or written without effect, is not done again.
    pub(super) fn without_repeats(&self, step: MirrorStep) -> MirrorStep {
        match &step {
            MirrorStep::Decline { uid } if self.declined.as_ref() == Some(uid) => {
                MirrorStep::Nothing
            }
            MirrorStep::PatchStatus { version, .. }
                if self.futile == Some((*version, hash(&step))) =>
            {
                MirrorStep::Wait("the API server does not keep the status as written".to_owned())
            }
            MirrorStep::Nothing
            | MirrorStep::Wait(_)
            | MirrorStep::Delay(_)
            | MirrorStep::Decline { .. }
            | MirrorStep::Create(_)
            | MirrorStep::Delete { .. }
            | MirrorStep::PatchStatus { .. } => step,
        }
    }

    /// Whoever writes something else again and again is answered once in a while.
    fn with_patience(
        &mut self,
        step: MirrorStep,
        sight: &Sight<'_>,
        seen: Option<&SeenPod>,
        now: Duration,
    ) -> MirrorStep {
        self.answers = match &step {
            // Made by another, or by an earlier agent.
            MirrorStep::Delete { uid, .. } => {
                self.made.as_ref() != Some(uid) && seen.is_some_and(|seen| seen.deletion.is_none())
            }
            MirrorStep::PatchStatus { .. } => {
                self.said[1] = sight.view.map(|view| Arc::clone(&view.status));
                self.said[0] == self.said[1]
            }
            MirrorStep::Nothing
            | MirrorStep::Wait(_)
            | MirrorStep::Delay(_)
            | MirrorStep::Create(_)
            | MirrorStep::Decline { .. } => false,
        };
        if self.answers && self.contest.must_wait(now) {
            return MirrorStep::Wait("another client keeps changing its mirror pod".to_owned());
        }
        step
    }

    /// Takes an answer in.
    pub fn settle(&mut self, step: &MirrorStep, answer: &Answer, now: Duration) -> Next {
        if self.answers && matches!(answer, Answer::Pod(_) | Answer::Gone) {
            self.contest.answered(now);
        }
        match (step, answer) {
            (_, Answer::Unclear(_)) => return Next::Later,
            (MirrorStep::Create(pod), Answer::Pod(made)) => {
                self.made = Some(made.uid.clone());
                self.said[0] = None;
                self.told.wrote(Arc::clone(made), now);
                self.refusals.1 = Refusals::default();
                if !is_as_sent(made, pod) {
                    self.trouble =
                        Some("the API server changes the marks of the mirror pod".to_owned());
                    return Next::Later;
                }
            }
            (MirrorStep::PatchStatus { .. }, Answer::Pod(pod)) => {
                self.said[0] = self.said[1].take();
                self.futile = Some((pod.version, hash(step)));
                self.told.wrote(Arc::clone(pod), now);
            }
            (MirrorStep::Delete { .. }, Answer::Pod(pod)) if pod.is_held() => {
                self.told.wrote(Arc::clone(pod), now);
            }
            (
                MirrorStep::Delete { uid, .. } | MirrorStep::PatchStatus { uid, .. },
                Answer::Gone,
            ) => {
                self.told.deleted(uid.clone(), now);
            }
            (MirrorStep::Delete { uid, .. }, Answer::Pod(_)) => {
                self.told.deleted(uid.clone(), now);
            }
            (MirrorStep::PatchStatus { uid, of_mirror: true, .. }, Answer::Refused(denial))
                if minds_a_restart(denial) =>
            {
                self.refusals.1.stuck = Some(uid.clone());
            }
            (MirrorStep::Create(_), Answer::Refused(denial)) => {
                match refused(denial, &self.refusals.1) {
                    MirrorRefusal::Part(part) => {
                        self.refusals.1.parts.insert(part);
                    }
                    MirrorRefusal::Text(text) => return self.later(text),
                }
            }
            (_, Answer::Refused(denial)) => return self.later(denial.message.clone()),
            (
                MirrorStep::Create(_)
                | MirrorStep::Nothing
                | MirrorStep::Wait(_)
                | MirrorStep::Delay(_)
                | MirrorStep::Decline { .. },
                _,
            ) => {
                return Next::Later;
            }
        }
        self.trouble = None;
        Next::Now
    }

    /// Something else than was thought is there; the watch will tell.
    fn later(&mut self, trouble: String) -> Next {
        self.told.forget();
        self.trouble = Some(trouble);
        Next::Later
    }

    /// Whether there is nothing worth keeping once neither a view nor a pod is left.
    #[must_use]
    pub fn is_settled(&mut self, now: Duration) -> bool {
        self.told.is_empty() && self.contest.is_over(now)
    }
}

fn revision(pod: Option<&k8s::Pod>) -> Option<String> {
    pod?.metadata.annotations.as_ref()?.get(REVISION_ANNOTATION).cloned()
}

/// Whether the API server has made of a mirror pod what it was sent, as far as it is looked at
/// later.
fn is_as_sent(made: &SeenPod, sent: &k8s::Pod) -> bool {
    let owner = sent.metadata.owner_references.as_ref().and_then(|owners| owners.first());
    let annotations = sent.metadata.annotations.as_ref();
    let uid = annotations.and_then(|all| all.get(super::seen::MIRROR));
    made.mirrors.as_ref().map(PodUid::as_str) == uid.map(String::as_str)
        && made.revision == revision(Some(sent))
        && made.owner.as_ref() == owner.map(|owner| &owner.uid)
}

fn hash(step: &MirrorStep) -> u64 {
    let mut hasher = DefaultHasher::new();
    step.body().map(|body| body.to_string()).hash(&mut hasher);
    hasher.finish()
}
