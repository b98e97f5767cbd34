//! Restarts that a person has asked for.
//!
//! What is asked for is a set of instances, not an act: an instance of the set that runs is
//! stopped, and one that has ended starts without its back-off. So a repeated request, another plan
//! or a restart of the agent never restarts the next instance.

use super::{Action, KillPod, KillPurpose, PodPlan, Restart, kill::is_alive, name::Cx};
use crate::{
    model::{ContainerId, PodView, k8s},
    podspec::{is_sidecar, is_static},
};
use std::collections::BTreeSet;
use thiserror::Error;

/// What a restart is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restarts {
    /// The newest instances of the containers.
    pub ids: BTreeSet<ContainerId>,
    /// The names of the containers, in the order of the specification.
    pub names: Vec<String>,
    /// Containers that have ended for good, and stay as they are.
    pub ended: Vec<String>,
}

/// Why nothing is restarted. The text completes "POD is not restarted: ".
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoRestart {
    #[error("its specification is not known")]
    NoSpec,
    #[error("it has no container {name}; there are {}", .known.join(", "))]
    NoSuchContainer { name: String, known: Vec<String> },
    #[error("{name} is an init container, and those run once before the other containers")]
    InitContainer { name: String },
    #[error("{name} is an ephemeral container, and those are started only once")]
    EphemeralContainer { name: String },
    /// The restart policy lets none of the containers start again.
    #[error(
        "{} has ended for good under its restart policy; to run it again, {}", .names.join(", "),
        how_to_run_again(*.is_static)
    )]
    Ended { names: Vec<String>, is_static: bool },
    #[error("none of its containers has started yet")]
    NotStarted,
}

fn how_to_run_again(is_static: bool) -> &'static str {
    if is_static {
        "remove the manifest, wait until the pod is gone, and write the manifest again"
    } else {
        "delete the pod in the API server and create it again"
    }
}

/// Finds the instances that a restart is about: those of `container`, or of all regular containers
/// and sidecars.
///
/// # Errors
/// Nothing can be restarted.
pub fn select_restarts(view: &PodView, container: Option<&str>) -> Result<Restarts, NoRestart> {
    let spec = view.pod.as_ref().and_then(|pod| pod.spec.as_ref()).ok_or(NoRestart::NoSpec)?;
    let sidecars = || spec.init_containers.iter().flatten().filter(|one| is_sidecar(one));
    let all: Vec<&k8s::Container> = sidecars().chain(&spec.containers).collect();
    let wanted: Vec<&k8s::Container> = match container {
        None => all,
        Some(name) => match all.iter().find(|one| one.name == name) {
            Some(found) => vec![*found],
            None if spec.init_containers.iter().flatten().any(|one| one.name == name) => {
                return Err(NoRestart::InitContainer { name: name.to_owned() });
            }
            None if spec.ephemeral_containers.iter().flatten().any(|one| one.name == name) => {
                return Err(NoRestart::EphemeralContainer { name: name.to_owned() });
            }
            None => {
                let known = all.iter().map(|one| one.name.clone()).collect();
                return Err(NoRestart::NoSuchContainer { name: name.to_owned(), known });
            }
        },
    };
    let mut restarts = Restarts::default();
    for one in wanted {
        let name = one.name.clone();
        if has_ended(view, spec, one) {
            restarts.ended.push(name);
        } else if let Some(instance) = view.containers.iter().find(|c| *c.name == *name) {
            restarts.ids.insert(instance.id.clone());
            restarts.names.push(name);
        }
    }
    match (restarts.ids.is_empty(), restarts.ended.is_empty()) {
        (false, _) => Ok(restarts),
        (true, true) => Err(NoRestart::NotStarted),
        (true, false) => {
            let is_static = view.pod.as_deref().is_none_or(is_static);
            Err(NoRestart::Ended { names: restarts.ended, is_static })
        }
    }
}

/// True when a container has ended and its restart policy lets it stay so.
fn has_ended(view: &PodView, spec: &k8s::PodSpec, container: &k8s::Container) -> bool {
    let lists = [&view.status.container_statuses, &view.status.init_container_statuses];
    let mut all = lists.into_iter().flatten().flatten();
    let status = all.find(|status| status.name == container.name);
    let state = status.and_then(|status| status.state.as_ref());
    let Some(ended) = state.and_then(|state| state.terminated.as_ref()) else { return false };
    if view.has_ended() {
        return true;
    }
    let own = container.restart_policy.as_deref();
    match own.or(spec.restart_policy.as_deref()).unwrap_or("Always") {
        "Never" => true,
        "OnFailure" => ended.exit_code == 0,
        _ => false,
    }
}

/// Stops the instances that a person wants restarted, all of them at once. Returns true when it
/// does: what is to start next is planned when they have ended.
pub(crate) fn plan_asked(cx: &Cx<'_>, plan: &mut PodPlan) -> bool {
    let asked = &cx.memory.asked;
    let alive = cx.own.containers.iter().copied().filter(|c| is_alive(c) && asked.contains(&c.id));
    let alive: Vec<_> = alive.collect();
    if alive.is_empty() {
        return false;
    }
    let stop = cx.stop(Restart::AtOnce);
    let mut groups = stop.groups(&alive);
    for kill in groups.iter_mut().flatten() {
        // Also of one that has just ended by itself.
        kill.restart = Restart::AtOnce;
        kill.event.message =
            format!("Container {} will be restarted: a person has asked for it", kill.name);
    }
    plan.actions.push(Action::KillPod(KillPod {
        uid: cx.uid.clone(),
        purpose: KillPurpose::Asked,
        groups,
        sandboxes: Vec::new(),
    }));
    true
}

/// Says that containers are being restarted. Their states say only that they run.
pub(crate) fn show_restart(plan: &mut PodPlan) {
    let asked = plan.actions.iter().find_map(|action| {
        let Action::KillPod(kill) = action else { return None };
        (kill.purpose == KillPurpose::Asked).then_some(kill)
    });
    let Some(kill) = asked else { return };
    let names: Vec<&str> = kill.containers().map(|container| &*container.name).collect();
    let subject = match names.as_slice() {
        [one] => format!("container {one} is"),
        names => format!("containers {} are", names.join(", ")),
    };
    plan.block(&format!("{subject} being restarted: a person has asked for it"));
}
