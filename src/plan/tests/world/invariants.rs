//! What must hold in the model world, whatever happens.

use super::{OWNER, Want, World};
use crate::{
    model::{ProbeResults, SandboxState},
    plan::{Action, Crashed, StartContainer},
};
use std::time::Duration;

impl World {
    /// Keeps its own account of crash loops and checks that a start is due.
    pub(super) fn check_back_off(&mut self, start: &StartContainer) {
        let Some(exited) = &start.restart_of else { return };
        let key = (start.uid.clone(), start.name.clone());
        let finished = self.finished[&exited.id];
        let mut next = Duration::from_secs(10).min(self.settings.crash_loop_cap);
        let same = |(last, ..): &&(Crashed, _, _)| last.definition == exited.definition;
        if let Some((last, at, delay)) = self.loops.get(&key).filter(same) {
            if last == exited {
                return;
            }
            if finished.saturating_sub(*at) <= Duration::from_secs(600) {
                let waited = self.now.boot.saturating_sub(finished);
                let unhealthy = self.probes.get(&exited.id).and_then(ProbeResults::fatal).is_some();
                let outlived = unhealthy && finished.saturating_sub(*at) >= *delay;
                assert!(
                    outlived || waited >= *delay,
                    "{} after {waited:?}:{}",
                    start.name,
                    self.trace.join("\n")
                );
                next = (*delay * 2).min(self.settings.crash_loop_cap);
            }
        }
        self.loops.insert(key, (exited.clone(), self.now.boot, next));
    }

    /// What must hold after every action.
    pub(super) fn check(&mut self, action: &Action) {
        let ready = self
            .truth
            .sandboxes
            .iter()
            .filter(|s| s.state == SandboxState::Ready && s.owner.as_deref() == Some(OWNER));
        let ready: Vec<_> = ready.collect();
        if matches!(action, Action::CreateSandbox(_)) {
            assert!(ready.len() <= 1, "two live sandboxes: {ready:?}{}", self.trace.join("\n"));
        }
        if matches!(action, Action::CreateSandbox(_) | Action::StartContainer(_)) {
            let Want::Run(pod) = &self.want else { panic!() };
            let others = self.records.keys().filter(|uid| **uid != pod.uid).count();
            let alive = self.truth.containers.iter().any(|c| c.uid != pod.uid)
                || self
                    .truth
                    .sandboxes
                    .iter()
                    .any(|s| s.uid != pod.uid && s.owner.as_deref() == Some(OWNER));
            assert!(!alive && others == 0, "another incarnation is left:{}", self.trace.join("\n"));
        }
        if let Action::StartContainer(start) = action {
            let running = self
                .truth
                .containers
                .iter()
                .filter(|c| c.name == start.name && c.state.is_running())
                .filter(|c| c.ended_with.is_none());
            assert!(running.count() <= 1, "{} runs twice:{}", start.name, self.trace.join("\n"));
        }
    }

    /// The object of a pod that is shown as stopped may go.
    pub(super) fn check_stopped(&self) {
        let Want::Run(pod) = &self.want else { panic!("what nobody wants is stopped") };
        let sandboxes = self.truth.sandboxes.iter().filter(|s| s.uid == pod.uid);
        let containers = self.truth.containers.iter().filter(|c| c.uid == pod.uid);
        let runs = sandboxes.map(|s| s.state == SandboxState::Ready);
        let mut runs = runs.chain(containers.map(|c| c.state.is_running()));
        assert!(!runs.any(|runs| runs), "it runs:{}", self.trace.join("\n"));
        assert!(!self.prepared.contains(&pod.uid), "volumes are left:{}", self.trace.join("\n"));
    }
}
