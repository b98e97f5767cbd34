//! Golden texts of evictions.

use super::*;
use crate::model::{HoldStop, Pressure};

fn evicted(pod: &Pod, used: u64, acting: &Acting, max_pod_grace: u32) -> Eviction {
    let victim = Victim { candidate: pod.candidate(), used, requested: 0, suspect: false };
    Eviction::of(&victim, acting, max_pod_grace)
}

fn annotations(eviction: &Eviction) -> Vec<(&str, &str)> {
    eviction.annotations.iter().map(|(key, value)| (*key, value.as_str())).collect()
}

/// A web container over its request, one within, an init container over.
fn pod() -> Pod {
    let container = |name: &str, resource: &str, amount: &str| json!({"name": name, "image": "i", "resources": {"requests": {resource: amount}}});
    let mut pod = Pod::new(
        "web",
        json!({
            "initContainers": [container("setup", "memory", "1Mi")],
            "containers": [container("web", "memory", "64M"), container("log", "memory", "1Gi"),
                           container("new", "memory", "0")],
            "terminationGracePeriodSeconds": 20,
        }),
    );
    for (name, bytes) in [("setup", 2 * MI), ("web", 80 * MI), ("log", GI)] {
        pod.container(name).memory = Some(bytes);
    }
    pod
}

#[test]
fn a_memory_eviction_names_what_is_over_its_request() {
    let mut acting = acting(Signal::MemoryAvailable, 40 * MI);
    acting.reading.available = 62_717_952;
    let eviction = evicted(&pod(), 0, &acting, 0);
    let message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 61248Ki. \
        Container web was using 80Mi, request is 64M, has larger consumption of memory. \
        Container setup was using 2Mi, request is 1Mi, has larger consumption of memory. ";
    assert_eq!(eviction.hold.message, message);
    assert_eq!(eviction.hold.reason, "Evicted");
    let disruption = ("TerminationByKubelet".to_owned(), message.to_owned());
    assert_eq!(eviction.hold.disruption, Some(disruption));
    assert_eq!(
        annotations(&eviction),
        [
            ("offending_containers", "web,setup"),
            ("offending_containers_usage", "80Mi,2Mi"),
            ("starved_resource", "memory"),
        ]
    );
}

#[test]
fn a_pod_with_a_request_of_its_own_is_named_too() {
    let resources = json!({"requests": {"memory": "64Mi"}});
    let mut pod = Pod::new("web", json!({"resources": resources}));
    pod.container("c").memory = Some(80 * MI);
    let acting = acting(Signal::AllocatableMemoryAvailable, MI);
    let eviction = evicted(&pod, 90 * MI, &acting, 0);
    assert_eq!(
        eviction.hold.message,
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 60Mi. \
         Pod web was using 90Mi, request is 64Mi, has larger consumption of memory. \
         Container c was using 80Mi, request is 0, has larger consumption of memory. "
    );
    assert_eq!(
        annotations(&eviction),
        [
            ("offending_containers", "c"),
            ("offending_containers_usage", "80Mi"),
            ("offending_pod", "web"),
            ("offending_pod_usage", "90Mi"),
            ("starved_resource", "memory"),
        ]
    );
    let within = evicted(&pod, 64 * MI, &acting, 0);
    assert!(!within.hold.message.contains("Pod web") && within.annotations.len() == 3);
}

#[test]
fn a_disk_eviction_counts_layers_and_logs() {
    let resources = json!({"requests": {"ephemeral-storage": "1Gi"}});
    let containers = json!([
        {"name": "a", "image": "i", "resources": resources},
        {"name": "b", "image": "i", "resources": resources},
        {"name": "c", "image": "i"},
    ]);
    let mut pod = Pod::new("web", json!({"containers": containers}));
    pod.container("a").layer = Some(space(GI, 1));
    pod.container("a").logs = Some(space(GI, 1));
    pod.container("b").logs = Some(space(GI, 1));
    let mut acting = acting(Signal::ImagefsAvailable, MI);
    acting.threshold.value = Amount::percent(15);
    acting.reading.capacity = 1000 * MI;
    let eviction = evicted(&pod, GI, &acting, 0);
    assert_eq!(
        eviction.hold.message,
        "The node was low on resource: ephemeral-storage. Threshold quantity: 150Mi, available: 60Mi. \
         Container a was using 2Gi, request is 1Gi, has larger consumption of ephemeral-storage. "
    );
}

#[test]
fn inodes_and_process_ids_name_no_container() {
    for (signal, message) in [
        (
            Signal::PidAvailable,
            "The node was low on resource: pids. Threshold quantity: 100, available: 60k. ",
        ),
        (
            Signal::NodefsInodesFree,
            "The node was low on resource: inodes. Threshold quantity: 100, available: 60k. ",
        ),
    ] {
        let mut acting = acting(signal, 1);
        acting.reading.available = 60_000;
        let eviction = evicted(&pod(), 5, &acting, 0);
        assert_eq!(eviction.hold.message, message);
        assert_eq!(eviction.annotations["offending_containers"], "");
        assert_eq!(eviction.annotations["starved_resource"], signal.resource());
    }
}

#[test]
fn how_fast_a_pod_goes_follows_the_threshold() {
    let soft = |signal, max_pod_grace| {
        let mut acting = acting(signal, 1);
        acting.threshold.grace = Some(seconds(30));
        evicted(&pod(), 1, &acting, max_pod_grace).hold
    };
    let hard = |signal| evicted(&pod(), 1, &acting(signal, 1), 600).hold;
    for signal in Signal::ALL {
        let disk = signal.condition() == Pressure::Disk;
        let stop = if disk { HoldStop::Within(1) } else { HoldStop::AtOnce };
        assert_eq!(hard(signal).stop, stop, "{signal}");
        for (max_pod_grace, seconds) in [(0, 1), (10, 10), (60, 20), (u32::MAX, 20)] {
            let hold = soft(signal, max_pod_grace);
            assert_eq!(hold.stop, HoldStop::Within(seconds));
        }
    }
    let mut long = acting(Signal::MemoryAvailable, 1);
    long.threshold.grace = Some(seconds(30));
    let unnamed = Pod::new("web", json!({}));
    assert_eq!(evicted(&unnamed, 1, &long, 600).hold.stop, HoldStop::Within(30));
}

#[test]
fn a_soft_eviction_bounds_the_grace_period_of_api_pods_alike() {
    let mut acting = acting(Signal::MemoryAvailable, 1);
    acting.threshold.grace = Some(seconds(30));
    for (own, max_pod_grace, seconds) in [(60, 0, 1), (60, 45, 45), (20, 45, 20), (0, 45, 1)] {
        let pod = Pod::new("web", json!({"terminationGracePeriodSeconds": own})).api();
        let hold = evicted(&pod, 1, &acting, max_pod_grace).hold;
        assert_eq!(hold.stop, HoldStop::Within(seconds), "{own} s, at most {max_pod_grace} s");
    }
}

#[test]
fn the_nodes_conditions_and_events_have_the_fields_words() {
    let told = |condition: Pressure, holds| {
        let words = condition.words(holds);
        [words.reason, words.message, words.event]
    };
    for (condition, holds, want) in [
        (
            Pressure::Memory,
            true,
            [
                "KubeletHasInsufficientMemory",
                "kubelet has insufficient memory available",
                "NodeHasInsufficientMemory",
            ],
        ),
        (
            Pressure::Memory,
            false,
            [
                "KubeletHasSufficientMemory",
                "kubelet has sufficient memory available",
                "NodeHasSufficientMemory",
            ],
        ),
        (
            Pressure::Disk,
            true,
            ["KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"],
        ),
        (
            Pressure::Disk,
            false,
            ["KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"],
        ),
        (
            Pressure::Pid,
            true,
            [
                "KubeletHasInsufficientPID",
                "kubelet has insufficient PID available",
                "NodeHasInsufficientPID",
            ],
        ),
        (
            Pressure::Pid,
            false,
            [
                "KubeletHasSufficientPID",
                "kubelet has sufficient PID available",
                "NodeHasSufficientPID",
            ],
        ),
    ] {
        assert_eq!(told(condition, holds), want);
    }
    let resources = Signal::ALL.map(threshold_met_message);
    assert_eq!(resources[0], "Attempting to reclaim memory");
    assert_eq!(resources[2], "Attempting to reclaim ephemeral-storage");
    assert_eq!(resources[3], "Attempting to reclaim inodes");
    assert_eq!(resources[8], "Attempting to reclaim pids");
}
