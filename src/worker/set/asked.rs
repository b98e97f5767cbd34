//! What people ask of single pods: it is checked against the pod's view, and becomes an order for
//! the pod's worker. The answer is given when the worker has saved the order.

use super::{State, WorkerSet};
use crate::{
    model::{Ask, AskAnswer, Asked, PodKey, PodView},
    plan::{NoRestart, Restarts, Wish, select_restarts},
};
use std::{collections::BTreeSet, sync::Arc};
use thiserror::Error;
use tokio::sync::oneshot;

/// A request about one pod, and where its answer goes.
#[derive(Debug)]
pub struct Asking {
    pub key: PodKey,
    pub ask: Ask,
    pub reply: oneshot::Sender<AskAnswer>,
}

/// The last requests about one pod.
pub(super) struct Pending {
    pub(super) asked: Arc<Asked>,
    /// The clients that wait until the worker has saved it.
    waiting: Vec<(oneshot::Sender<AskAnswer>, AskAnswer)>,
}

impl Pending {
    /// Answers the clients when the worker has saved the last request.
    pub(super) fn answer(&mut self, saved: u64) {
        if saved < self.asked.number {
            return;
        }
        for (reply, answer) in self.waiting.drain(..) {
            send(reply, answer);
        }
    }
}

fn send(reply: oneshot::Sender<AskAnswer>, answer: AskAnswer) {
    if reply.send(answer).is_err() {
        tracing::debug!("the client of a request has disconnected");
    }
}

/// Why a request is refused. The text completes "POD is not restarted: ".
#[derive(Debug, Error)]
enum NotTaken {
    #[error("there is no such pod")]
    Unknown,
    /// Nothing may be started yet.
    #[error("{0}")]
    Kept(&'static str),
    #[error("its manifest is gone")]
    NotWished,
    #[error("it is being stopped")]
    Terminating,
    #[error("it has ended, and does not run again")]
    Ended,
    #[error("the machine is shutting down")]
    Shutdown,
    #[error(transparent)]
    NoRestart(#[from] NoRestart),
}

impl WorkerSet {
    /// Checks a request and passes it on to the worker of its pod.
    pub(super) fn take_asking(&mut self, asking: Asking) {
        let Asking { key, ask, reply } = asking;
        let view = self.views.borrow().get(&key).cloned();
        let taken = match (view, self.state.workers.get(&key)) {
            (Some(view), Some(_)) => self.state.ask(&view, &ask),
            (_, Some(_) | None) => Err(NotTaken::Unknown),
        };
        match taken {
            Err(why) => {
                let what = match ask {
                    Ask::Restart { .. } => "not restarted",
                    Ask::Retry => "not tried again",
                };
                send(reply, AskAnswer::Refused { message: format!("{key} is {what}: {why}.") });
            }
            Ok(message) => {
                tracing::info!(pod = %key, "{message}");
                if let Some(pending) = self.state.asked.get_mut(&key) {
                    pending.waiting.push((reply, AskAnswer::Taken { message }));
                }
                self.publish_orders();
            }
        }
    }
}

impl State {
    /// Adds a request to those that the worker is to take over, and says what will be done.
    ///
    /// # Errors
    /// Why it can't be done.
    fn ask(&mut self, view: &PodView, ask: &Ask) -> Result<String, NotTaken> {
        let (restart, retry, message) = match ask {
            Ask::Retry => {
                if view.stopped {
                    return Err(NotTaken::Ended);
                }
                let message = format!("{} is tried again at once, without back-offs.", view.key);
                (BTreeSet::new(), true, message)
            }
            Ask::Restart { container } => {
                self.check_restart(view)?;
                let restarts = select_restarts(view, container.as_deref())?;
                let message = describe(&view.key, &restarts);
                (restarts.ids, false, message)
            }
        };
        self.requests += 1;
        let mut asked = Asked { number: self.requests, uid: view.uid.clone(), restart, retry };
        let mut waiting = Vec::new();
        if let Some(earlier) = self.asked.remove(&view.key) {
            // The worker may not have seen the earlier request yet.
            if !earlier.waiting.is_empty() && earlier.asked.uid == asked.uid {
                asked.restart.extend(earlier.asked.restart.iter().cloned());
                asked.retry |= earlier.asked.retry;
            }
            waiting = earlier.waiting;
        }
        self.asked.insert(view.key.clone(), Pending { asked: Arc::new(asked), waiting });
        Ok(message)
    }

    /// # Errors
    /// The pod does not go on running, or may not start anything.
    fn check_restart(&self, view: &PodView) -> Result<(), NotTaken> {
        match self.wish(&view.key) {
            Wish::Run(_) => {}
            Wish::Keep { why, .. } => return Err(NotTaken::Kept(why)),
            Wish::End { end, .. } if end.deleted.is_none() => return Err(NotTaken::Ended),
            Wish::End { .. } => return Err(NotTaken::Terminating),
            Wish::Gone | Wish::Undecided => return Err(NotTaken::NotWished),
        }
        if view.terminating {
            return Err(NotTaken::Terminating);
        }
        if self.machine.shutdown().is_some() {
            return Err(NotTaken::Shutdown);
        }
        Ok(())
    }
}

fn describe(key: &PodKey, restarts: &Restarts) -> String {
    let mut message = match restarts.names.as_slice() {
        [one] => format!("Container {one} of {key} is being restarted."),
        names => format!("Containers {} of {key} are being restarted.", names.join(", ")),
    };
    if !restarts.ended.is_empty() {
        let names = restarts.ended.join(", ");
        message.push_str(&format!(" Ended for good, and not restarted: {names}."));
    }
    message
}
