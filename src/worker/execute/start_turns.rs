//! Turns for starting sandboxes and containers.
//!
//! The pod that has come furthest goes first: a container is started before another one is
//! created, and created before another sandbox is made. So on a node where a hundred pods start at
//! once, the first of them run while the last still wait. If all sandboxes came first, nearly all
//! pods would be ready at the end. A sandbox waits as long as any container does. Containers that
//! crash again and again do not keep it waiting, because of their back-off.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::oneshot;

/// The calls of a start that take turns, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartCall {
    RunPodSandbox,
    CreateContainer,
    StartContainer,
}

impl StartCall {
    const COUNT: usize = 3;

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RunPodSandbox => "RunPodSandbox",
            Self::CreateContainer => "CreateContainer",
            Self::StartContainer => "StartContainer",
        }
    }
}

/// The free turns, and the calls that wait for one.
#[derive(Clone, Debug)]
pub struct StartTurns(Arc<Mutex<Turns>>);

#[derive(Debug)]
struct Turns {
    free: usize,
    /// By [`StartCall`], each in the order of requests.
    waiting: [VecDeque<oneshot::Sender<StartTurn>>; StartCall::COUNT],
}

/// Permission to make one call. Dropping it passes the turn on.
#[derive(Debug)]
pub(super) struct StartTurn(StartTurns);

impl StartTurns {
    /// `count` is the number of calls at a time (`startConcurrency`).
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self(Arc::new(Mutex::new(Turns { free: count, waiting: Default::default() })))
    }

    /// Waits for a turn.
    ///
    /// # Cancel safety
    /// When it is dropped, the place in the queue is given up, and a turn that was given at the same
    /// moment is passed on.
    pub(super) async fn turn(&self, call: StartCall) -> Option<StartTurn> {
        let given = {
            let mut turns = self.lock();
            if turns.free > 0 {
                turns.free -= 1;
                return Some(StartTurn(self.clone()));
            }
            let (sender, given) = oneshot::channel();
            turns.waiting[call as usize].push_back(sender);
            given
        };
        // The sender stays in the queue until it is used, so there always is an answer.
        given.await.ok()
    }

    /// Gives a free turn to the next waiting call.
    fn pass_on(&self) {
        loop {
            let next = {
                let mut turns = self.lock();
                let next = turns.waiting.iter_mut().rev().find_map(VecDeque::pop_front);
                if next.is_none() {
                    turns.free += 1;
                }
                next
            };
            let Some(next) = next else { return };
            // A turn that can't be sent is dropped, and passed on by that.
            if !next.is_closed() {
                next.send(StartTurn(self.clone())).ok();
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StartTurn {
    fn drop(&mut self) {
        self.0.pass_on();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[tokio::test]
    async fn later_calls_of_a_start_go_first() {
        let turns = StartTurns::new(1);
        let held = turns.turn(StartCall::RunPodSandbox).await.unwrap();
        let mut sandbox = Box::pin(turns.turn(StartCall::RunPodSandbox));
        let mut create = Box::pin(turns.turn(StartCall::CreateContainer));
        let mut start = Box::pin(turns.turn(StartCall::StartContainer));
        let mut later = Box::pin(turns.turn(StartCall::StartContainer));
        for waiting in [&mut sandbox, &mut create, &mut start, &mut later] {
            assert!(waiting.now_or_never().is_none());
        }
        drop(held);
        assert!(sandbox.as_mut().now_or_never().is_none());
        assert!(create.as_mut().now_or_never().is_none());
        assert!(later.as_mut().now_or_never().is_none());
        drop(start.now_or_never().unwrap());
        assert!(create.as_mut().now_or_never().is_none());
        drop(later.now_or_never().unwrap());
        assert!(sandbox.as_mut().now_or_never().is_none());
        drop(create.now_or_never().unwrap());
        assert!(sandbox.now_or_never().is_some());
    }

    #[tokio::test]
    async fn no_more_turns_are_given_than_there_are() {
        let turns = StartTurns::new(2);
        let first = turns.turn(StartCall::StartContainer).await;
        let _second = turns.turn(StartCall::StartContainer).await;
        assert!(turns.turn(StartCall::StartContainer).now_or_never().is_none());
        drop(first);
        let third = turns.turn(StartCall::RunPodSandbox).now_or_never();
        assert!(third.is_some());
        assert!(turns.turn(StartCall::StartContainer).now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_call_that_stops_waiting_loses_no_turn() {
        let turns = StartTurns::new(1);
        let held = turns.turn(StartCall::RunPodSandbox).await;
        let mut given_up = Box::pin(turns.turn(StartCall::StartContainer));
        assert!(given_up.as_mut().now_or_never().is_none());
        let mut given_up_late = Box::pin(turns.turn(StartCall::CreateContainer));
        assert!(given_up_late.as_mut().now_or_never().is_none());
        drop(given_up);
        // The turn is on its way to one that does not take it any more.
        drop(held);
        drop(given_up_late);
        assert!(turns.turn(StartCall::RunPodSandbox).now_or_never().is_some());
    }
}
