//! The wall clock of a node is set, far ahead and far back: leases and conditions go on, and no pod
//! notices. The node lifecycle controller counts only a renewal that is later than the last, and the
//! status is posted more rarely than it waits for one.

use super::{
    agent::{Member, hasty, ready, restarts},
    controlplane::Options,
    objects,
    support::{manifest::Pod, skips::skip_without},
};
use jiff::Timestamp;
use serde_json::Value;

const DAY: i64 = 24 * 3600;

/// How long after now something was stamped, in seconds.
fn ahead(stamp: &Value) -> Option<i64> {
    let stamp: Timestamp = stamp.as_str()?.parse().ok()?;
    Some(stamp.duration_since(Timestamp::now()).as_secs())
}

/// Whether that is a clock so many seconds ahead, of somebody who stamps every few seconds.
fn is_of(stamp: &Value, clock: i64) -> bool {
    ahead(stamp).is_some_and(|ahead| (clock - 60..=clock + 60).contains(&ahead))
}

fn renewed_at(lease: &Value) -> Timestamp {
    lease["spec"]["renewTime"].as_str().unwrap().parse().unwrap()
}

fn ready_condition(object: &Value) -> &Value {
    let conditions = object["status"]["conditions"].as_array().unwrap();
    conditions.iter().find(|condition| condition["type"] == "Ready").unwrap()
}

#[test]
fn a_clock_that_is_set_costs_no_lease_and_no_condition() {
    let grace = ["--node-monitor-period=1s", "--node-monitor-grace-period=15s"];
    let settings =
        hasty().kubelet("nodeStatusUpdateFrequency: 1s\nnodeStatusReportFrequency: 20s\n");
    let options = Options::default().controller_manager(&grace);
    let Some(member) = Member::prepare(&options, &settings) else { return };
    let world = &member.world;
    let clock = world.agent.has_own_clock();
    if skip_without(&[(clock, "libfaketime (scripts/prerequisites test)")]) {
        return;
    }
    let member = member.started().shows_web();
    let world = &member.world;
    let became_ready = ready_condition(&member.node())["lastTransitionTime"].clone();
    let mut last = renewed_at(&member.lease());
    let mut due = restarts(&member.mirror("web"));
    for (name, clock) in [("ahead", DAY), ("behind", -DAY), ("right", 0)] {
        let running = world.running_ids("web");
        world.agent.set_clock(clock);
        for _ in 0..3 {
            member.wait_renewed();
            let lease = member.lease();
            assert!(renewed_at(&lease) > last, "{name}: {lease:#}");
            last = renewed_at(&lease);
        }
        assert!(
            clock < DAY || is_of(&member.lease()["spec"]["renewTime"], clock),
            "{name}: {last}"
        );
        let heard = |node: &Value| is_of(&ready_condition(node)["lastHeartbeatTime"], clock);
        let (node, _) =
            member.wait(&format!("{name}: the status is posted"), || member.node(), heard);
        assert_eq!(objects::condition(&node, "Ready").unwrap().0, "True");
        // Nothing has changed, so nothing says that it has.
        assert_eq!(ready_condition(&node)["lastTransitionTime"], became_ready, "{name}");
        assert_eq!(world.running_ids("web"), running, "{name}: no pod has noticed");

        // What happens now happens as ever.
        world.kill_container(&world.running_id("web", "main"));
        due += 1;
        let again = |pod: &Value| ready(pod) && restarts(pod) == due;
        member.wait(&format!("{name}: it is restarted"), || member.mirror("web"), again);
        world.drop_pod(&Pod::running(name));
        let (mirror, _) =
            member.wait(&format!("{name}: a new pod is shown"), || member.mirror(name), ready);
        assert!(is_of(&ready_condition(&mirror)["lastTransitionTime"], clock), "{mirror:#}");
    }
    assert_eq!(restarts(&member.mirror("web")), due);
    member.wait_untroubled();
    assert_eq!(
        ready_condition(&member.node())["lastTransitionTime"],
        became_ready,
        "the node controller never gave it up"
    );
    member.finish();
}
