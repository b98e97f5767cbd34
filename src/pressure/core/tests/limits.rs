//! Tables: which limit of its own a pod is above.

use super::*;
use crate::model::{Hold, HoldStop};

fn over(pod: &Pod, layout: DiskLayout) -> Option<(LocalLimit, Hold)> {
    let candidates = [pod.candidate()];
    let mut over = over_limits(&candidates, layout, StaticPods::Ranked);
    assert!(over.len() <= 1);
    over.pop().map(|eviction| (eviction.limit, eviction.hold))
}

fn told(pod: &Pod, layout: DiskLayout) -> Option<(LocalLimit, String)> {
    over(pod, layout).map(|(limit, hold)| (limit, hold.message))
}

fn with_volume(volume: &Value, used: u64) -> Pod {
    let volumes = json!([{"name": "data", "emptyDir": volume}]);
    Pod::new("web", json!({"volumes": volumes})).volume("data", space(used, 1))
}

/// Containers `a` and `b` with these limits on ephemeral storage.
fn limited(a: Option<&str>, b: Option<&str>) -> Pod {
    let container = |name: &str, limit: Option<&str>| {
        let limits = limit.map(|limit| json!({"ephemeral-storage": limit}));
        json!({"name": name, "image": "i", "resources": {"limits": limits}})
    };
    Pod::new("web", json!({"containers": [container("a", a), container("b", b)]}))
}

#[test]
fn an_empty_dir_has_its_size_limit_on_any_medium() {
    let message = "Usage of EmptyDir volume \"data\" exceeds the limit \"1Gi\". ".to_owned();
    for medium in ["", "Memory"] {
        let volume = json!({"sizeLimit": "1Gi", "medium": medium});
        assert_eq!(told(&with_volume(&volume, GI), DiskLayout::Single), None);
        let (limit, hold) = over(&with_volume(&volume, GI + 1), DiskLayout::Single).unwrap();
        assert_eq!((limit, &hold.message), (LocalLimit::EmptyDir, &message));
        assert_eq!((hold.stop, hold.disruption), (HoldStop::Within(1), None));
        assert_eq!(hold.reason, "Evicted");
    }
    for unlimited in [json!({}), json!({"sizeLimit": "0"}), json!({"sizeLimit": null})] {
        assert_eq!(told(&with_volume(&unlimited, GI), DiskLayout::Single), None);
    }
    let mut unknown = with_volume(&json!({"sizeLimit": "1"}), 0);
    unknown.usage.volumes[0].space = None;
    assert_eq!(told(&unknown, DiskLayout::Single), None);
}

#[test]
fn a_pod_has_the_sum_of_its_containers_limits() {
    let mut pod = limited(Some("1Gi"), None);
    pod.container("b").layer = Some(space(GI - 2, 0));
    pod.usage.logs = Some(space(2, 0));
    assert_eq!(told(&pod, DiskLayout::Single), None, "equal is not above");
    pod.usage.logs = Some(space(3, 0));
    let message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ";
    for layout in [DiskLayout::Single, DiskLayout::DedicatedImages, DiskLayout::Split] {
        assert_eq!(told(&pod, layout), Some((LocalLimit::Pod, message.to_owned())));
    }
    assert!(over(&pod, DiskLayout::Single).is_some(), "its logs count");
    let mut two = limited(Some("1Gi"), Some("1Gi"));
    two.container("b").logs = Some(space(1, 0));
    two.container("a").layer = Some(space(GI, 0));
    assert_eq!(told(&two, DiskLayout::DedicatedImages), None, "half of what both have");
    let mut unlimited = limited(None, None);
    unlimited.container("b").layer = Some(space(100 * GI, 0));
    assert_eq!(told(&unlimited, DiskLayout::Single), None);
}

#[test]
fn volumes_of_a_pod_count_for_its_sum_unless_they_are_memory() {
    let with = |medium: &str| {
        let mut pod = Pod::new(
            "web",
            json!({
                "volumes": [{"name": "data", "emptyDir": {"medium": medium}}],
                "containers": [{"name": "c", "image": "i",
                                "resources": {"limits": {"ephemeral-storage": "1Gi"}}}],
            }),
        );
        pod.usage.logs = Some(space(1, 0));
        pod.volume("data", space(GI, 1))
    };
    assert_eq!(told(&with(""), DiskLayout::Single).unwrap().0, LocalLimit::Pod);
    assert_eq!(told(&with("Memory"), DiskLayout::Single), None);
}

#[test]
fn a_container_has_its_own_limit_on_logs_and_layer() {
    let mut pod = limited(Some("1Gi"), Some("9Gi"));
    pod.container("a").logs = Some(space(GI, 0));
    assert_eq!(told(&pod, DiskLayout::Single), None);
    pod.container("a").layer = Some(space(1, 0));
    let message = "Container a exceeded its local ephemeral storage limit \"1Gi\". ".to_owned();
    let over_own = Some((LocalLimit::Container, message));
    assert_eq!(told(&pod, DiskLayout::Single), over_own);
    assert_eq!(told(&pod, DiskLayout::Split), over_own);
    assert_eq!(told(&pod, DiskLayout::DedicatedImages), None, "layers lie elsewhere");
    pod.container("a").logs = Some(space(GI + 1, 0));
    assert_eq!(told(&pod, DiskLayout::DedicatedImages), over_own);
    assert!(over(&pod, DiskLayout::Single).is_some());
    let mut zero = limited(Some("0"), Some("1Gi"));
    zero.container("a").logs = Some(space(1, 0));
    assert_eq!(told(&zero, DiskLayout::Single), None, "0 is no limit");
}

#[test]
fn the_first_limit_that_applies_is_told() {
    let mut pod = Pod::new(
        "web",
        json!({
            "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}],
            "containers": [{"name": "c", "image": "i",
                            "resources": {"limits": {"ephemeral-storage": "1Mi"}}}],
        }),
    );
    pod.container("c").logs = Some(space(GI, 0));
    assert_eq!(told(&pod, DiskLayout::Single).unwrap().0, LocalLimit::Pod);
    let pod = pod.volume("data", space(GI, 1));
    assert_eq!(told(&pod, DiskLayout::Single).unwrap().0, LocalLimit::EmptyDir);
}

#[test]
fn all_that_are_above_go_except_those_that_never_do() {
    let pod = |name: &str, priority: i32| {
        let volumes = json!([{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}]);
        Pod::new(name, json!({"volumes": volumes, "priority": priority}))
            .volume("data", space(GI, 1))
    };
    let pods = [pod("a", 0), pod("critical", 2_000_000_000), pod("b", 0).api(), pod("c", 5)];
    let candidates: Vec<_> = pods.iter().map(Pod::candidate).collect();
    let names = |static_pods| -> Vec<String> {
        let over = over_limits(&candidates, DiskLayout::Single, static_pods);
        over.iter().map(|eviction| eviction.candidate.key.name.to_string()).collect()
    };
    assert_eq!(names(StaticPods::Ranked), ["a", "b", "c"]);
    assert_eq!(names(StaticPods::Never), ["b"]);
}

#[test]
fn a_lower_bound_above_a_limit_is_enough() {
    let mut pod = with_volume(&json!({"sizeLimit": "1Mi"}), 2 * MI);
    pod.usage.partly.root_dir = true;
    assert_eq!(told(&pod, DiskLayout::Single).unwrap().0, LocalLimit::EmptyDir);
    let mut below = with_volume(&json!({"sizeLimit": "1Mi"}), 1);
    below.usage.partly.root_dir = true;
    assert_eq!(told(&below, DiskLayout::Single), None);
}

#[test]
fn files_of_the_agent_and_of_the_runtime_count_for_a_pods_limit() {
    let mut pod = limited(Some("2Mi"), None);
    pod.usage.files = Some(space(MI, 1));
    pod.usage.runtime_files = Some(space(MI, 1));
    assert_eq!(told(&pod, DiskLayout::Single), None, "equal is not above");
    pod.usage.files = Some(space(MI + 1, 1));
    assert_eq!(told(&pod, DiskLayout::Single).unwrap().0, LocalLimit::Pod);
}
