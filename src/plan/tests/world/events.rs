//! What happens to the model world besides what the agent does.

use super::{Fault, Want, World, desired};
use crate::{
    model::{ContainerId, ContainerState, Hold, SandboxState, Shutdown},
    plan::{Picture, PodMemory},
};
use serde_json::Value;
use std::time::Duration;

/// One of the things that can happen at any time, for tests in which anything does.
#[derive(Clone, Debug)]
pub(in crate::plan::tests) enum Happening {
    Advance(u64),
    /// A container ends with this code, if it runs.
    Ends(&'static str, i32),
    /// The same, and the agent acts on the event of it before the runtime's view shows the end.
    EndIsTold(&'static str, i32),
    SandboxDies,
    AgentRestarts,
    /// After so many more actions.
    AgentDiesAfter(usize),
    AgentDiesBefore(usize),
    Reboot,
    Goes,
    /// A pod with this uid is wanted.
    Comes(&'static str),
    Undecided,
    Kept(bool),
    Held(Hold),
    ShutsDown(Shutdown),
    Fails(Fault),
    NetworkGoes,
    NetworkComes,
}

/// Lets it happen to a pod of this spec, and the agent act until it is settled.
pub(in crate::plan::tests) fn happen(world: &mut World, spec: &Value, happening: &Happening) {
    match happening {
        Happening::Advance(seconds) => world.advance(*seconds),
        Happening::Ends(container, code) => {
            if world.running(container).is_some() {
                world.kill(container, *code);
            }
        }
        Happening::EndIsTold(container, code) => {
            if world.running(container).is_some() {
                let id = world.tell_end(container, *code);
                world.run();
                world.end(&id, *code);
            }
        }
        Happening::SandboxDies => {
            if world.truth.sandboxes.iter().any(|s| s.state == SandboxState::Ready) {
                world.sandbox_dies();
            }
        }
        Happening::AgentRestarts => world.restart_agent(),
        Happening::AgentDiesAfter(actions) => world.die_after = Some(world.count + actions),
        Happening::AgentDiesBefore(actions) => world.die_before = Some(world.count + actions),
        Happening::Reboot => world.reboot(),
        Happening::Goes => world.want = Want::Gone,
        Happening::Comes(uid) => world.want = Want::Run(Box::new(desired(uid, spec))),
        Happening::Undecided => world.want = Want::Undecided,
        Happening::Kept(keep) => world.keep = *keep,
        Happening::Held(hold) => world.hold = Some(("a".into(), hold.clone())),
        Happening::ShutsDown(shutdown) => world.shutdown = Some(shutdown.clone()),
        Happening::Fails(fault) => world.fault(*fault),
        Happening::NetworkGoes => world.runtime.network_not_ready = Some("gone".to_owned()),
        Happening::NetworkComes => world.runtime.network_not_ready = None,
    }
    world.run();
}

impl World {
    /// Ends the running instance of a container.
    pub(in crate::plan::tests) fn kill(&mut self, name: &str, code: i32) {
        let running =
            self.truth.containers.iter().find(|c| &*c.name == name && c.state.is_running());
        let id = running.expect("runs").id.clone();
        self.end(&id, code);
    }

    /// A container has ended, as an event tells; the runtime's own view shows it running until
    /// [`Self::end`].
    pub(in crate::plan::tests) fn tell_end(&mut self, name: &str, code: i32) -> ContainerId {
        let running =
            self.truth.containers.iter_mut().find(|c| &*c.name == name && c.state.is_running());
        let container = running.expect("runs");
        container.ended_with = Some(code);
        let id = container.id.clone();
        self.ends.remove(&id);
        self.finished.insert(id.clone(), self.now.boot);
        self.note(&format!("-- {name} ended with {code}, the runtime does not show it yet"));
        id
    }

    pub(in crate::plan::tests) fn end(&mut self, id: &ContainerId, code: i32) {
        self.ends.remove(id);
        let at = self.now.wall;
        let Some(container) = self.truth.containers.iter_mut().find(|c| c.id == *id) else {
            return;
        };
        let ContainerState::Running { started_at } = container.state else { return };
        let reason = if code == 0 { "Completed" } else { "Error" };
        container.state = ContainerState::Exited {
            started_at: Some(started_at),
            finished_at: at,
            exit_code: code,
            reason: reason.into(),
            message: "".into(),
        };
        self.finished.insert(id.clone(), self.now.boot);
        let line = format!("-- {} ended with {code}", container.name);
        self.note(&line);
    }

    /// The pod may run again.
    pub(in crate::plan::tests) fn lift(&mut self) {
        self.hold = None;
        self.status = None;
    }

    /// The pause container and everything in it dies.
    pub(in crate::plan::tests) fn sandbox_dies(&mut self) {
        let ready = self.truth.sandboxes.iter_mut().find(|s| s.state == SandboxState::Ready);
        let sandbox = ready.expect("ready sandbox");
        sandbox.state = SandboxState::NotReady;
        let id = sandbox.id.clone();
        self.note("-- sandbox died");
        let inside: Vec<ContainerId> = self
            .truth
            .containers
            .iter()
            .filter(|c| c.sandbox_id == id && c.state.is_running())
            .map(|c| c.id.clone())
            .collect();
        for id in inside {
            self.end(&id, 137);
        }
    }

    /// kill -9 and start: the picture and the results of probes are lost; records and memory
    /// (through its file) stay.
    pub(in crate::plan::tests) fn restart_agent(&mut self) {
        self.note("-- agent restarted");
        self.picture = Picture::default();
        self.probes.clear();
        self.volumes_current = false;
        let file = serde_json::to_string(&self.memory).unwrap();
        self.memory = serde_json::from_str(&file).unwrap();
    }

    /// The machine went down and came up: nothing runs, `/run` is empty, boot time starts over.
    pub(in crate::plan::tests) fn reboot(&mut self) {
        self.note("-- machine rebooted");
        for sandbox in &mut self.truth.sandboxes {
            sandbox.state = SandboxState::NotReady;
        }
        let running: Vec<ContainerId> = self
            .truth
            .containers
            .iter()
            .filter(|c| c.state.is_running())
            .map(|c| c.id.clone())
            .collect();
        for id in running {
            self.end(&id, 255);
        }
        self.memory = PodMemory::default();
        self.loops.clear();
        self.picture = Picture::default();
        self.pass_time(Duration::from_secs(60));
    }
}
