//! Pods that run and are to have other cpu or memory.

use super::*;

/// A pod that runs with what `before` asks for, and is to have what `after` asks for.
fn resizes(node: &mut Node, before: &DesiredPod, after: Arc<DesiredPod>) {
    let resize_of = Some(Arc::clone(&before.pod));
    node.pods.push(Subject { pod: after, standing: Standing::Running, waits: None, resize_of });
}

fn wait(node: &Node, pod: &DesiredPod) -> Option<(&'static str, String)> {
    let Ruling { admissions, .. } = admit(&node.input());
    assert_eq!(admissions.get(&pod.key, &pod.uid), Some(&Decision::Admitted));
    let wait = admissions.resize_wait(&pod.key, &pod.uid)?;
    Some((wait.reason, wait.message.clone()))
}

#[test]
fn a_pod_grows_into_what_others_leave() {
    for (other, cpu, expected) in [
        ("2", "2", None),
        (
            "3",
            "2",
            Some(("Deferred", "resource: cpu, requested: 2000, used: 3000, capacity: 4000")),
        ),
        ("1", "5", Some(("Infeasible", "capacity: cpu, requested: 5000, capacity: 4000"))),
    ] {
        let mut node = node().runs([asks("other", 0, other, "1Gi")]);
        let after = asks("web", 0, cpu, "1Gi");
        resizes(&mut node, &asks("web", 0, "1", "1Gi"), Arc::clone(&after));
        let expected = expected
            .map(|(reason, message)| (reason, format!("Node didn't have enough {message}")));
        assert_eq!(wait(&node, &after), expected, "{other} {cpu}");
    }
}

#[test]
fn what_is_not_more_needs_no_room() {
    // The node has become smaller than what runs on it.
    let mut node = node().runs([asks("other", 0, "6", "1Gi")]);
    let after = asks("web", 0, "1", "2Gi");
    resizes(&mut node, &asks("web", 0, "2", "1Gi"), Arc::clone(&after));
    assert_eq!(wait(&node, &after), None);
}

#[test]
fn the_pod_with_the_higher_priority_grows_first() {
    let mut node = node();
    let [low, high] = [("a-low", 1), ("b-high", 2)].map(|(name, priority)| {
        let after = asks(name, priority, "3", "1Gi");
        resizes(&mut node, &asks(name, priority, "1", "1Gi"), Arc::clone(&after));
        after
    });
    assert_eq!(wait(&node, &high), None);
    assert_eq!(wait(&node, &low).unwrap().0, "Deferred");
}

#[test]
fn a_pod_that_grows_leaves_less_to_new_ones() {
    let mut node = node().wants([asks("new", 0, "2", "1Gi")]);
    let after = asks("web", 0, "3", "1Gi");
    resizes(&mut node, &asks("web", 0, "1", "1Gi"), Arc::clone(&after));
    assert_eq!(wait(&node, &after), None);
    let Ruling { admissions, .. } = admit(&node.input());
    let new = &node.pods[0].pod;
    assert!(matches!(admissions.get(&new.key, &new.uid), Some(Decision::Held(_))));
}
