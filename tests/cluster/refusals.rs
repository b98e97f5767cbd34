//! A real API server refuses the mirror of a pod, by a quota or by the security policy of a
//! namespace: the pod runs, people are told, and the mirror follows when the refusal ends.

use super::{
    agent::{Member, ready},
    controlplane::Options,
    support::{manifest::Pod, stays},
};
use serde_json::{Value, json};
use std::time::Duration;

/// A pod in a namespace where the API server refuses it, for a reason with these words, until
/// `allow`.
fn refused_until(member: &Member, pod: &str, namespace: &str, words: &str, allow: &[&str]) {
    let world = &member.world;
    world.drop_pod(&Pod::running(pod).meta("namespace", namespace));
    world.wait_running(pod);
    let running = world.running_ids(pod);
    let noted = |notes: &String| notes.contains(words);
    let (notes, _) = member.wait("people are told", || member.notes(), noted);
    let about = format!("{namespace}/{pod}-node1");
    let lines = |text: &str| text.lines().filter(|line| line.contains(words)).count();
    assert!(notes.contains(&about), "{about} in {notes}");
    // A pod beside it is shown meanwhile, and the refusal is no trouble of the whole node.
    let beside = format!("beside-{pod}");
    world.drop_pod(&Pod::running(&beside));
    member.wait("the pod beside it is shown", || member.mirror(&beside), ready);
    member.wait_untroubled();
    stays(
        "it is told once",
        Duration::from_secs(6),
        || (lines(&member.notes()), lines(&world.agent.log())),
        |told| *told == (1, 1),
    );

    member.plane.kubectl_text(allow);
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}-node1");
    let mirror = || member.plane.admin.find(&path).unwrap_or_default();
    member.wait("the mirror follows", mirror, ready);
    member.wait("nothing is noted any more", || member.notes(), |notes| !notes.contains(words));
    assert_eq!(world.running_ids(pod), running, "the pod has not noticed");
    assert_eq!(world.agent.status().unwrap().restarts(pod, "main"), 0);
}

#[test]
fn a_mirror_that_exceeds_a_quota_follows_later() {
    // Its quota controller fills in what is used.
    let options = Options::default().controller_manager(&[]);
    let Some(member) = Member::start(&options) else { return };
    member.plane.kubectl_text(&["create", "namespace", "shop"]);
    let quotas = "/api/v1/namespaces/shop/resourcequotas";
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "none" },
        "spec": { "hard": { "pods": "0" } },
    });
    member.plane.admin.create(quotas, &quota).unwrap().ok();
    let in_force = |quota: &Value| quota["status"]["hard"]["pods"] == "0";
    let look = || member.plane.admin.get(&format!("{quotas}/none"));
    member.wait("the quota is in force", look, in_force);
    let allow = ["delete", "resourcequota", "none", "-n", "shop"];
    refused_until(&member, "capped", "shop", "exceeded quota: none", &allow);
    member.finish();
}

#[test]
fn a_mirror_that_violates_pod_security_follows_later() {
    let Some(member) = Member::start(&Options::default()) else { return };
    let label = "pod-security.kubernetes.io/enforce";
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": "strict", "labels": { label: "restricted" } },
    });
    member.plane.admin.create("/api/v1/namespaces", &namespace).unwrap().ok();
    let without = format!("{label}-");
    let allow = ["label", "namespace", "strict", without.as_str()];
    refused_until(&member, "lax", "strict", "violates PodSecurity", &allow);
    member.finish();
}
