//! The API server or the way to it fails: no pod notices, and the node comes back by itself.

use super::{
    agent::{Member, figure, ready, restarts},
    controlplane::Options,
    objects,
    support::{agent::Settings, manifest::Pod, stays, world::Kind},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use std::{fs, time::Duration};
use tokio::time::Instant;

/// Longer than a dead connection takes to be noticed.
pub const LONG: Duration = Duration::from_secs(8);

/// Something happens to the API server or the way to it; meanwhile a container crashes and a pod is
/// added.
pub fn goes_and_comes(
    member: &Member,
    what: &str,
    hold: Duration,
    begin: impl FnOnce(),
    end: impl FnOnce(),
) {
    let world = &member.world;
    let before = restarts(&member.mirror("web"));
    begin();
    world.kill_container(&world.running_id("web", "main"));
    let late = format!("late-{}", what.replace(' ', "-"));
    world.drop_pod(&Pod::running(&late));
    world.wait("pods are run all the same", |status| {
        status.runs("web")
            && status.runs(&late)
            && u64::try_from(status.restarts("web", "main")) == Ok(before + 1)
    });
    let running = world.running_ids("web");
    stays("nobody is restarted", hold, || world.running_ids("web"), |ids| *ids == running);
    end();
    let begun = Instant::now();
    member.wait(&format!("{what}: the new pod is mirrored"), || member.mirror(&late), ready);
    member.wait(
        &format!("{what}: the restart is shown"),
        || member.mirror("web"),
        |pod| ready(pod) && restarts(pod) == before + 1,
    );
    member.wait(&format!("{what}: the node is Ready"), || member.node(), ready);
    figure(
        &format!("API server: {what}, healed → node and pods shown as they are"),
        begun.elapsed(),
    );
    world.remove(&format!("{late}.yaml"));
    member.wait("its mirror goes", || member.mirror(&late), Value::is_null);
}

#[test]
fn an_api_server_that_goes_away_costs_no_pod() {
    let Some(member) = Member::with_web() else { return };
    let plane = &member.plane;
    goes_and_comes(
        &member,
        "killed",
        LONG,
        || plane.apiserver.kill(),
        || {
            plane.apiserver.start();
            plane.wait_ready();
        },
    );
    goes_and_comes(
        &member,
        "connections refused",
        LONG,
        || {
            member.link.tcp.refuse(true);
            member.link.tcp.cut();
        },
        || member.link.tcp.heal(),
    );
    goes_and_comes(
        &member,
        "nothing answered",
        LONG,
        || member.link.tcp.silence(true),
        || member.link.tcp.heal(),
    );
    let rule = std::cell::Cell::new(None);
    goes_and_comes(
        &member,
        "all answered with 500",
        LONG,
        || rule.set(Some(member.link.http.on("*", "/").answer(500))),
        || member.link.http.lift_all(),
    );
    goes_and_comes(
        &member,
        "all answered with 429",
        LONG,
        || rule.set(Some(member.link.http.on("*", "/").answer(429))),
        || member.link.http.lift_all(),
    );
    member.finish();
}

#[test]
fn an_api_server_that_lost_its_memory_is_told_everything_again() {
    let Some(member) = Member::with_web() else { return };
    let running = member.world.running_ids("web");
    let snapshot = member.plane.snapshot();
    member.world.drop_pod(&Pod::running("second"));
    member.wait("the mirror is Ready", || member.mirror("second"), ready);
    member.plane.restore(&snapshot);
    let begun = Instant::now();
    member.wait(
        "what is newer than the snapshot is there again",
        || member.mirror("second"),
        ready,
    );
    figure(
        "API server: restored from an older snapshot, answers → node and pods shown as they are",
        begun.elapsed(),
    );
    member.plane.wipe();
    let begun = Instant::now();
    member.wait("the node is there again", || member.node(), ready);
    member.wait(
        "its pods are there again",
        || (member.mirror("web"), member.mirror("second")),
        |(a, b)| ready(a) && ready(b),
    );
    figure(
        "API server: replaced by an empty one, answers → node and pods shown as they are",
        begun.elapsed(),
    );
    assert_eq!(member.world.running_ids("web"), running, "no pod has noticed");
    member.finish();
}

/// The node controller gives up on a node: what it writes is put right, also when the agent was
/// away longer than that.
#[test]
fn what_the_controller_wrote_is_put_right() {
    let grace = ["--node-monitor-period=1s", "--node-monitor-grace-period=6s"];
    let Some(member) = Member::start(&Options::default().controller_manager(&grace)) else {
        return;
    };
    member.world.drop_pod(&Pod::running("web"));
    member.wait("the mirror is Ready", || member.mirror("web"), ready);
    let running = member.world.running_ids("web");
    let pid = Pid::from_raw(i32::try_from(member.world.agent.pid()).unwrap());
    let unknown = |node: &Value| {
        objects::condition(node, "Ready").is_some_and(|(status, _)| status == "Unknown")
    };
    for how in ["stopped", "killed"] {
        match how {
            "stopped" => kill(pid, Signal::SIGSTOP).unwrap(),
            _ => member.world.agent.kill(),
        }
        member.wait("the controller gives up", || member.node(), unknown);
        member.wait("on its pods, too", || member.mirror("web"), |pod| !ready(pod));
        let begun = Instant::now();
        match how {
            "stopped" => kill(pid, Signal::SIGCONT).unwrap(),
            _ => member.world.agent.start(),
        }
        member.wait("the node is Ready", || member.node(), ready);
        member.wait("the pod is Ready", || member.mirror("web"), ready);
        figure(
            &format!("agent {how} for longer than the grace period, goes on → node and pod Ready"),
            begun.elapsed(),
        );
    }
    assert_eq!(member.world.running_ids("web"), running);
    member.finish();
}

/// A kubeconfig that is not there, half there, wrong, and then right.
#[test]
fn a_kubeconfig_is_taken_up_when_it_is_right() {
    let Some(member) = Member::prepare(&Options::default(), &Settings::for_kind(Kind::Fake)) else {
        return;
    };
    let path =
        member.plane.node_kubeconfig(super::support::agent::NODE_NAME, member.link.address());
    let right = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    member.world.drop_pod(&Pod::running("web"));
    member.world.agent.start();
    let trouble = || {
        let status = member.world.agent.status().ok()?;
        let cluster = status.node.cluster.clone()?;
        Some(
            cluster
                .troubles
                .iter()
                .map(|t| format!("{}: {}", t.what, t.error))
                .collect::<Vec<_>>()
                .join("\n"),
        )
    };
    let told = |what: &'static str| {
        move |trouble: &Option<String>| trouble.as_ref().is_some_and(|text| text.contains(what))
    };
    member.wait("it is missed", trouble, told("No such file"));
    member.world.wait_running("web");
    fs::write(&path, &right[..right.len() / 2]).unwrap();
    member.wait("it is half there", trouble, |trouble| {
        trouble.as_ref().is_some_and(|text| !text.is_empty() && !text.contains("No such file"))
    });
    fs::write(&path, &right).unwrap();
    member.wait("the node is Ready", || member.node(), ready);
    member.wait("all is well", trouble, |trouble| trouble.as_ref().is_some_and(String::is_empty));
    // Nonsense again: what was read before is used on.
    fs::write(&path, "nonsense").unwrap();
    member.wait("it is wrong", trouble, told("credentials"));
    member.world.drop_pod(&Pod::running("later"));
    member.wait("the mirror is Ready", || member.mirror("later"), ready);
    member.finish();
}
