//! Agents that are killed while they write, and two of one name.

use super::{
    agent::{Member, figure, hasty, ready, uid},
    controlplane::{Options, link::Moment},
    objects::{NODES, PODS},
    support::{
        agent::NODE_NAME,
        manifest::Pod,
        poll_until, say_loudly,
        skips::{self, skip_without},
        stays,
        world::{Kind, World},
    },
};
use serde_json::Value;
use std::time::Duration;
use tokio::time::Instant;

const SOON: Duration = Duration::from_secs(60);

#[test]
fn an_agent_that_is_killed_while_it_writes_goes_on_where_it_was() {
    let Some(member) = Member::with_web() else { return };
    let (world, http) = (&member.world, &member.link.http);
    let (mirror, running) = (uid(&member.mirror("web")), world.running_ids("web"));
    let cases = [
        ("PATCH", NODES, Moment::Before),
        ("PATCH", NODES, Moment::After),
        ("POST", PODS, Moment::Before),
        ("POST", PODS, Moment::After),
        ("PATCH", PODS, Moment::Before),
        ("PATCH", PODS, Moment::After),
    ];
    for (number, (verb, path, moment)) in cases.into_iter().enumerate() {
        let new = format!("new-{number}");
        if path == NODES {
            // The first thing that an agent does is to say how its node is.
            world.agent.kill();
            member.link.tcp.refuse(true);
            world.agent.start();
            http.on(verb, path).run(moment, world.agent.killer());
            member.link.tcp.refuse(false);
        } else {
            http.on(verb, path).run(moment, world.agent.killer());
            world.drop_pod(&Pod::running(&new));
        }
        let ended = poll_until(SOON, || !world.agent.is_running(), |ended| *ended);
        assert!(ended.is_ok(), "it was not killed at {verb} {path}");
        http.lift_all();
        http.forget();
        world.drop_pod(&Pod::running(&new));
        world.agent.start();
        let begun = Instant::now();
        member.wait("the new pod is mirrored", || member.mirror(&new), ready);
        let again =
            || http.requests().iter().any(|r| r.verb == "PATCH" && r.path.starts_with(NODES));
        member.wait("the node is reported", again, |again| *again);
        member.wait("the node is Ready", || member.node(), ready);
        member.wait_untroubled();
        let took = begun.elapsed();
        say_loudly(&format!("killed {moment:?} {verb} {path}: as it is after {took:.2?}"));
        assert_eq!(
            (uid(&member.mirror("web")), world.running_ids("web")),
            (mirror.clone(), running.clone())
        );
    }
    member.finish();
}

#[test]
fn two_agents_of_one_name_are_told_of_each_other() {
    if skip_without(&[skips::root()]) {
        return;
    }
    // Each answers the other as often as it looks.
    let settings = hasty().kubelet("nodeStatusUpdateFrequency: 1s\n");
    let Some(member) = Member::prepare(&Options::default(), &settings) else { return };
    let member = member.started().shows_web();
    let other = World::prepare(Kind::Fake, &settings);
    let kubeconfig = member.plane.node_kubeconfig(NODE_NAME, member.link.address());
    other.agent.join(&kubeconfig);
    other.agent.on_another_boot("11111111-2222-3333-4444-555555555555");
    // A pod that only it has, one that has the name of another, and one that is the same.
    other.drop_pod(&Pod::running("theirs"));
    other.drop_pod(&Pod::running("web").env("WHOSE", "theirs"));
    for world in [&member.world, &other] {
        world.drop_pod(&Pod::running("same"));
    }
    let running = member.world.running_ids("web");
    other.agent.start();
    let begun = Instant::now();
    let notes = |world: &World| {
        let status = world.agent.status().ok();
        let cluster = status.and_then(|status| status.node.cluster.clone());
        cluster.map(|cluster| cluster.notes.join("\n")).unwrap_or_default()
    };
    let told = |notes: &(String, String)| {
        let rival = "another agent reports a node of this name";
        notes.0.contains(rival) && notes.1.contains(rival)
    };
    member.wait("both are told", || (notes(&member.world), notes(&other)), told);
    figure("a second agent of the same name started → told by both", begun.elapsed());
    other.wait_running("theirs");
    other.wait_running("web");
    let theirs = other.running_ids("web");
    // They do not agree, and do not fight over it for all that the API server has.
    member.link.http.forget();
    let span = Duration::from_secs(10);
    stays(
        "no pod notices",
        span,
        || (member.world.running_ids("web"), other.running_ids("web")),
        |ids| *ids == (running.clone(), theirs.clone()),
    );
    let mut asked: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    for request in member.link.http.requests() {
        *asked.entry(format!("{} {}", request.verb, request.path)).or_default() += 1;
    }
    let about_pods =
        |(what, _): &(&String, &usize)| what.contains(PODS) && !what.starts_with("WATCH");
    let writes: usize = asked.iter().filter(about_pods).map(|(_, count)| count).sum();
    say_loudly(&format!(
        "two agents of one name: {writes} writes about pods in {span:?}: {asked:#?}"
    ));
    // Three answers of each in 10 s for each of the pods; as fast as they can it is several
    // hundred.
    assert!(writes <= 80, "{asked:#?}");
    other.agent.terminate();
    let begun = Instant::now();
    member.wait("it is alone again", || member.mirror("theirs"), Value::is_null);
    member.wait(
        "its pod is shown",
        || member.mirror("web"),
        |pod| {
            ready(pod) && pod["spec"]["containers"][0]["env"].to_string().find("theirs").is_none()
        },
    );
    figure("the second agent is gone → pods shown as they are", begun.elapsed());
    other.agent.start();
    other.finish();
    member.finish();
}
