//! Pods of the API server: how they end, what is never started again, and what becomes of them
//! while the API server is away.

mod deletion;
mod ends;
mod kept;
mod properties;

use super::world::{Want, World, container};
use crate::model::{Hold, HoldStop, PodEnd, Shutdown, ShutdownPeriods, TerminalPhase, k8s};
use serde_json::{Value, json};
use std::time::Duration;

fn web() -> Value {
    json!({"containers": [container("web")]})
}

fn running(spec: &Value) -> World {
    let mut world = World::of_api(spec);
    world.run();
    world.advance(5);
    world.take_trace();
    world
}

fn deleted(seconds: u32) -> Option<PodEnd> {
    Some(PodEnd { deleted: Some(seconds), phase: None })
}

fn ended(phase: TerminalPhase) -> Option<PodEnd> {
    Some(PodEnd { deleted: None, phase: Some(phase) })
}

fn hold(reason: &str, stop: HoldStop) -> Hold {
    let disruption = Some(("TerminationByKubelet".to_owned(), "no room".to_owned()));
    Hold { reason: reason.to_owned(), message: "no room".to_owned(), stop, disruption }
}

fn shutdown(turn: usize) -> Shutdown {
    let periods = ShutdownPeriods::of_total(Duration::from_secs(30), Duration::from_secs(10));
    Shutdown { periods, turn }
}

fn actions(world: &mut World) -> Vec<String> {
    world.list();
    world.plan = world.plan();
    world.plan.actions.iter().map(ToString::to_string).collect()
}

/// The actions of all passes until the pod is settled.
fn done(world: &mut World) -> String {
    world.run();
    let trace = world.take_trace();
    let steps = trace.lines().filter_map(|line| Some(line.trim().split_once(' ')?.1));
    let steps = steps.filter(|step| !["=", "-", "event"].iter().any(|mark| step.starts_with(mark)));
    steps.collect::<Vec<_>>().join(", ")
}

fn phase(world: &World) -> Option<TerminalPhase> {
    world.records.values().next()?.terminal.as_ref().map(|terminal| terminal.phase)
}

fn told(world: &World) -> (Option<&str>, Option<&str>) {
    let status = world.status.as_ref().unwrap();
    (status.phase.as_deref(), status.reason.as_deref())
}

fn condition<'a>(world: &'a World, name: &str) -> Option<&'a k8s::PodCondition> {
    let conditions = world.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == name)
}

/// The object of the pod goes, and everything else with it.
fn forget(world: &mut World) {
    (world.want, world.end, world.hold) = (Want::Gone, None, None);
    world.run();
    world.advance(60);
    assert!(world.truth.is_empty() && world.records.is_empty(), "{}", world.take_trace());
    assert!(world.memory.is_empty() && world.prepared.is_empty());
}
