//! Critical pods and those that make room for them.

use super::*;

const GONE: &str = "Preempting: Preempted in order to admit critical pod";

/// Who is preempted by a critical pod that asks for CPU and memory.
fn victims(node: Node, cpu: &str, memory: &str) -> Vec<String> {
    let lines = node.wants([asks("x", CRITICAL, cpu, memory)]).admits();
    let victims = lines.iter().filter_map(|line| line.strip_suffix(&format!(" {GONE}")));
    victims.filter(|name| !name.starts_with("event ")).map(str::to_owned).collect()
}

#[test]
fn a_critical_pod_waits_for_those_that_make_room() {
    let mut node = node().runs([asks("a", 0, "3", "1Gi"), asks("b", 0, "1", "1Gi")]);
    node = node.wants([asks("x", CRITICAL, "2", "1Gi"), asks("y", 0, "1", "1Gi")]);
    let waits = "x waits: it needs resources of pods that are being stopped: default/a";
    let stopping = [
        format!("a {GONE}"),
        "b admitted".to_owned(),
        waits.to_owned(),
        "y waits: it needs resources of pods that are being stopped: default/a".to_owned(),
        format!("event a {GONE}"),
    ];
    assert_eq!(node.again(), stopping);
    assert_eq!(node.again(), stopping[..4], "the same again, told once");
    // Half-way: nobody else is chosen because one has gone.
    node.set("a", waiting(5));
    let found = node.again();
    assert_eq!(found[1..4], ["b admitted", "x admitted", "y admitted"]);
    assert!(found[0].starts_with("a OutOfcpu: Pod was rejected: "), "{found:?}");
    assert!(found[4].starts_with("event a OutOfcpu: "), "{found:?}");
}

#[test]
fn a_victim_stops_with_its_own_grace_period() {
    let node = node().runs([asks("a", 0, "4", "1Gi")]).wants([asks("x", CRITICAL, "2", "1Gi")]);
    let Ruling { admissions, .. } = admit(&node.input());
    let Some(Decision::Held(hold)) = admissions.get(&node.pods[0].pod.key, &"uid-a".into()) else {
        panic!("{admissions:?}");
    };
    let told = "Pod was preempted by Kubelet to accommodate a critical pod.".to_owned();
    assert_eq!(hold.disruption, Some(("TerminationByKubelet".to_owned(), told)));
    assert_eq!(hold.stop, HoldStop::Within(20));
}

#[test]
fn those_that_are_being_stopped_are_counted_on() {
    // Both have to go. When one has gone, the other is stopped to the end, and c, which would do as
    // well, stays.
    let mut node = node().runs([asks("a", 0, "2", "1Gi"), asks("b", 0, "1500m", "1Gi")]);
    node = node.runs([asks("c", 0, "500m", "1Gi")]);
    node = node.wants([asks("x", CRITICAL, "3", "1Gi")]);
    let first: Vec<String> = node.admits().into_iter().take(4).collect();
    let gone: Vec<&String> = first.iter().filter(|line| line.ends_with(GONE)).collect();
    assert_eq!(gone.len(), 2, "{first:?}");
    assert_eq!(first[2], "c admitted");
    node.before = admit(&node.input()).admissions;
    node.set("a", waiting(1));
    let then = node.admits();
    assert!(then[0].starts_with("a OutOfcpu"), "{then:?}");
    assert_eq!(then[1], format!("b {GONE}"));
    assert_eq!(then[2], "c admitted");
    assert!(then[3].starts_with("x waits"), "{then:?}");
}

#[test]
fn as_few_as_possible_go_and_guaranteed_pods_last() {
    let base = || node().runs([asks("a", 0, "1", "1Gi"), asks("b", 0, "2", "1Gi")]);
    assert_eq!(victims(base(), "1", "1Gi"), [""; 0]);
    assert_eq!(victims(base(), "2", "1Gi"), ["a"]);
    assert_eq!(victims(base(), "3", "1Gi"), ["b"]);
    assert_eq!(victims(base(), "4", "1Gi"), ["a", "b"]);
    // The guaranteed one alone would do; the others go all the same.
    let mixed = || base().runs([guaranteed("g", 0, "1", "1Gi")]);
    assert_eq!(victims(mixed(), "3", "1Gi"), ["a", "b"]);
    assert_eq!(victims(mixed(), "4", "1Gi"), ["a", "b", "g"]);
    // Of two that would do, the one with less memory, then the less important one.
    let same = node().runs([asks("a", 0, "2", "2Gi"), asks("b", 0, "2", "1Gi")]);
    assert_eq!(victims(same, "2", "1Gi"), ["b"]);
    let same = node().runs([asks("a", 5, "2", "1Gi"), asks("b", 0, "2", "1Gi")]);
    assert_eq!(victims(same, "2", "1Gi"), ["b"]);
    // The place of a pod is needed: one that requests nothing will do.
    let mut full = node().runs([asks("a", 0, "1", "1Gi"), pod("b", json!({}))]);
    full.facts.allocatable.pods = 2;
    assert_eq!(victims(full, "1", "1Gi"), ["b"]);
}

#[test]
fn nobody_goes_who_is_not_needed() {
    // a comes nearest to what is missing; what is missing then, b and c have, and without it as
    // well.
    let running = [asks("a", 0, "1", "2Gi"), asks("b", 0, "2", "0"), asks("c", 0, "0", "4Gi")];
    let node = node().runs(running).runs([asks("d", CRITICAL, "1", "2Gi")]);
    assert_eq!(victims(node, "2", "4Gi"), ["b", "c"]);
}

#[test]
fn only_a_critical_pod_preempts_and_only_lesser_ones() {
    let full = |priority| node().runs([asks("a", priority, "4", "1Gi")]);
    assert_eq!(victims(full(0), "1", "1Gi"), ["a"]);
    assert_eq!(victims(full(CRITICAL - 1), "1", "1Gi"), ["a"]);
    assert_eq!(victims(full(CRITICAL), "1", "1Gi"), [""; 0]);
    let found = full(CRITICAL).wants([asks("x", CRITICAL + 1000, "1", "1Gi")]).admits();
    assert_eq!(found[0], format!("a {GONE}"), "cluster-critical gives way to node-critical");
    let found = full(0).wants([asks("x", CRITICAL - 1, "1", "1Gi")]).admits();
    assert_eq!(found[0], "a admitted");
    assert!(found[1].starts_with("x OutOfcpu: "), "{found:?}");
}

#[test]
fn a_spared_static_pod_without_a_priority_is_not_preempted() {
    let stays = |spares: bool, written: Value| {
        let requests = json!({"requests": {"cpu": "4"}});
        let mut spec = json!({
            "metadata": {"annotations": {"kubernetes.io/config.source": "file"}},
            "containers": [{"name": "c", "image": "i", "resources": requests}],
        });
        spec["priority"] = written;
        let mut node = node().runs([pod("a", spec)]);
        node.facts.spares_static_pods = spares;
        victims(node, "1", "1Gi").is_empty()
    };
    assert!(stays(true, Value::Null));
    // A written one is compared, and a pod that is not spared gives way in any case.
    assert!(!stays(true, json!(0)));
    assert!(!stays(false, Value::Null));
}

#[test]
fn a_critical_pod_preempts_others_until_they_have_begun() {
    let mut node = node().wants([asks("a", CRITICAL, "3", "1Gi")]);
    assert_eq!(node.again(), ["a admitted"]);
    node = node.wants([asks("x", CRITICAL + 1000, "2", "1Gi")]);
    let found = node.admits();
    assert!(found[0].starts_with("a UnexpectedAdmissionError: "), "{found:?}");
    assert_eq!(found[1], "x admitted");
    node.set("a", Standing::Running);
    assert_eq!(node.admits()[0], format!("a {GONE}"));
}

#[test]
fn a_critical_pod_is_refused_when_preemption_can_not_suffice() {
    let mut node = node().runs([asks("a", 0, "1", "1Gi"), asks("b", CRITICAL, "1", "1Gi")]);
    node.facts.allocatable.pods = 2;
    let message = "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 1500), (res: memory, q: 2147483648), ]";
    let found = node.wants([asks("x", CRITICAL, "4500m", "9Gi")]).admits();
    let status = format!("x UnexpectedAdmissionError: Pod was rejected: {message}");
    let event = format!("event x UnexpectedAdmissionError: {message}");
    assert_eq!(found, ["a admitted".to_owned(), "b admitted".to_owned(), status, event]);
}

#[test]
fn nobody_goes_for_a_pod_that_would_be_refused_all_the_same() {
    let amounts = json!({"requests": {"cpu": "1"}});
    let container = json!({
        "name": "c", "image": "i", "resources": amounts,
        "ports": [{"containerPort": 80, "hostPort": 80}],
    });
    for (more, reason) in [
        (json!({"nodeSelector": {"rack": "a"}}), "NodeAffinity"),
        (json!({"nodeName": "n2"}), "NodeName"),
        (json!({"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}), "AppArmor"),
        (json!({"containers": [container]}), "NodePorts"),
    ] {
        let mut spec = json!({
            "priority": CRITICAL,
            "containers": [{"name": "c", "image": "i", "resources": amounts}],
        });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let mut node = node().runs([asks("a", 0, "4", "1Gi"), port("b", CRITICAL, 80)]);
        node.facts.app_armor = false;
        let found = node.wants([pod("x", spec)]).admits();
        assert_eq!(found[..2], ["a admitted", "b admitted"]);
        assert!(found[2].starts_with(&format!("x {reason}: ")), "{found:?}");
    }
}
