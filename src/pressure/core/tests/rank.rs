//! Tables: who goes first, and who is spared.

use super::*;
use serde_json::json;

/// Names of the victims in order, and of the spared with the reason.
fn ranked(
    pods: &[Pod],
    acting: &Acting,
    layout: DiskLayout,
) -> (Vec<String>, Vec<(String, Spare)>) {
    ranked_with(pods, acting, layout, StaticPods::Ranked)
}

fn ranked_with(
    pods: &[Pod],
    acting: &Acting,
    layout: DiskLayout,
    static_pods: StaticPods,
) -> (Vec<String>, Vec<(String, Spare)>) {
    let candidates: Vec<Candidate<'_>> = pods.iter().map(Pod::candidate).collect();
    let ranking = rank(&candidates, acting, layout, static_pods);
    let name = |candidate: &Candidate<'_>| candidate.key.name.to_string();
    (
        ranking.victims.iter().map(|victim| name(&victim.candidate)).collect(),
        ranking.spared.iter().map(|spared| (name(&spared.candidate), spared.why)).collect(),
    )
}

fn memory_order(pods: &[Pod]) -> Vec<String> {
    ranked(pods, &acting(Signal::MemoryAvailable, MI), DiskLayout::Single).0
}

#[test]
fn memory_goes_by_request_then_priority_then_use() {
    let within_low = Pod::requesting("within-low", 0, "2Gi").memory(GI);
    let exactly = Pod::requesting("exactly", 0, "1Gi").memory(GI);
    let over_high = Pod::requesting("over-high", 1000, "0").memory(100 * MI);
    let over_low = Pod::requesting("over-low", -5, "0").memory(90 * MI);
    let over_large = Pod::requesting("over-large", 0, "100Mi").memory(500 * MI);
    // Uses more, and is less above its request.
    let over_small = Pod::requesting("over-small", 0, "500Mi").memory(600 * MI);
    let pods = [within_low, exactly, over_high, over_small, over_large, over_low];
    assert_eq!(
        memory_order(&pods),
        ["over-low", "over-large", "over-small", "over-high", "exactly", "within-low"]
    );
}

#[test]
fn the_request_of_a_pod_has_its_overhead_in_it() {
    let mut spec = json!({"overhead": {"memory": "200Mi"}});
    spec["containers"] =
        json!([{"name": "c", "image": "i", "resources": {"requests": {"memory": "100Mi"}}}]);
    let within = Pod::new("within", spec).memory(300 * MI);
    let over = Pod::requesting("over", 0, "100Mi").memory(150 * MI);
    assert_eq!(memory_order(&[within, over]), ["over", "within"]);
}

#[test]
fn ties_go_by_name_in_whatever_order_they_come() {
    let pod = |name: &str| Pod::requesting(name, 0, "0").memory(50 * MI);
    assert_eq!(memory_order(&[pod("b"), pod("c"), pod("a")]), ["a", "b", "c"]);
    assert_eq!(memory_order(&[pod("c"), pod("a"), pod("b")]), ["a", "b", "c"]);
}

#[test]
fn static_pods_go_after_those_of_an_api_server() {
    let low = Pod::requesting("static", -100, "0").memory(GI);
    let high = Pod::requesting("api", 1000, "1Gi").memory(100 * MI).api();
    let pods = [low, high];
    assert_eq!(memory_order(&pods), ["api", "static"]);
    let acting = acting(Signal::MemoryAvailable, MI);
    let (victims, spared) = ranked_with(&pods, &acting, DiskLayout::Single, StaticPods::Never);
    assert_eq!(victims, ["api"]);
    assert_eq!(spared, [("static".to_owned(), Spare::Static)]);
}

#[test]
fn pods_of_an_api_server_go_by_request_then_priority_then_excess() {
    let best_effort = |name: &str, used: u64| Pod::new(name, json!({})).memory(used).api();
    let burstable = |name: &str, priority, used: u64| {
        Pod::requesting(name, priority, "100Mi").memory(used).api()
    };
    let amounts = json!({"cpu": "1", "memory": "1Gi"});
    let resources = json!({"requests": amounts, "limits": amounts});
    let containers = json!([{"name": "c", "image": "i", "resources": resources}]);
    let guaranteed = Pod::new("guaranteed", json!({"priority": -7, "containers": containers}));
    let pods = [
        guaranteed.memory(900 * MI).api(),
        burstable("high", 1000, 800 * MI),
        best_effort("best-effort", 200 * MI),
        burstable("burstable", 0, 400 * MI),
        burstable("low", -5, 150 * MI),
        Pod::requesting("static", -9, "0").memory(GI),
    ];
    // The QoS class plays no role: without a priority, `burstable` is the further above its
    // request.
    let order = ["low", "burstable", "best-effort", "high", "guaranteed", "static"];
    assert_eq!(memory_order(&pods), order);
    let processes = pods.map(|pod| pod.processes(1_000));
    let by_processes = ranked(&processes, &acting(Signal::PidAvailable, 1), DiskLayout::Single).0;
    let order = ["guaranteed", "low", "best-effort", "burstable", "high", "static"];
    assert_eq!(by_processes, order, "requests do not count for process ids");
}

#[test]
fn exempt_pods_are_marked_when_their_end_would_help() {
    let pod = |name: &str, used| Pod::requesting(name, 2_000_000_000, "0").memory(used);
    let pods = [pod("hog", GI), pod("idle", MI)];
    let pods: Vec<Candidate<'_>> = pods.iter().map(Pod::candidate).collect();
    let acting = acting(Signal::MemoryAvailable, MI);
    let ranking = rank(&pods, &acting, DiskLayout::Single, StaticPods::Ranked);
    let marked = ranking.spared.iter().map(|spared| (&*spared.candidate.key.name, spared.large));
    assert_eq!(marked.collect::<Vec<_>>(), [("hog", true), ("idle", false)]);
}

#[test]
fn critical_pods_are_never_evicted() {
    let pod = |name: &str, priority| Pod::requesting(name, priority, "0").memory(GI);
    let pods = [
        pod("critical", 2_000_000_000),
        pod("node", 2_000_001_000),
        pod("high", 1_999_999_999),
        pod("api", 2_000_000_000).api(),
    ];
    let (victims, spared) = ranked(&pods, &acting(Signal::MemoryAvailable, MI), DiskLayout::Single);
    assert_eq!(victims, ["high"]);
    let critical = |name: &str| (name.to_owned(), Spare::Critical);
    assert_eq!(spared, [critical("api"), critical("critical"), critical("node")]);
    assert_eq!(Spare::Critical.as_str(), "its priority is system-critical");
}

#[test]
fn a_pod_below_a_twentieth_of_the_threshold_is_spared() {
    let pod = |name: &str, bytes| Pod::requesting(name, 0, "0").memory(bytes);
    let pods = [pod("just", 5 * MI), pod("less", 5 * MI - 1), pod("none", 0)];
    let (victims, spared) =
        ranked(&pods, &acting(Signal::MemoryAvailable, 100 * MI), DiskLayout::Single);
    assert_eq!(victims, ["just"]);
    let little = |name: &str| (name.to_owned(), Spare::TooLittle);
    assert_eq!(spared, [little("less"), little("none")]);
    // Nothing never helps, however little is missing.
    let of = |pods: &[Pod], missing| {
        ranked(pods, &acting(Signal::MemoryAvailable, missing), DiskLayout::Single).0
    };
    let critical = Pod::requesting("critical", 2_000_000_000, "0").memory(GI);
    assert!(of(&[pod("none", 0), critical], 1).is_empty());
    assert_eq!(of(&[pod("one", 5 * MI), pod("many", 100 * MI)], 20), ["many", "one"]);
}

/// A threshold of `percent` of memory, with this much missing (bytes).
fn percent_of(capacity: u64, percent: u64, missing: u64) -> Acting {
    let mut acting = acting(Signal::MemoryAvailable, missing);
    acting.threshold.value = Amount::Number(capacity / 100 * percent);
    acting.reading = Reading { available: 0, capacity, at: seconds(1) };
    acting
}

#[test]
fn a_pod_that_relieves_a_large_threshold_is_a_candidate() {
    let pod = |name: &str, bytes| Pod::requesting(name, 0, "0").memory(bytes);
    let victims = |pods: &[Pod], acting: &Acting| ranked(pods, acting, DiskLayout::Single).0;
    // 10 % of 256 GiB: a twentieth of the threshold is 1.28 GiB.
    let pods = || vec![pod("web", 1200 * MI), pod("small", 63 * MI)];
    assert_eq!(victims(&pods(), &percent_of(256 * GI, 10, GI)), ["web"]);
    assert_eq!(victims(&pods(), &percent_of(256 * GI, 10, 10 * GI)), ["web"]);
    // Nor does a pod of 64 MiB go that is a trifle of what all use and of what is missing.
    let busy = || vec![pod("large", 20 * GI), pod("some", 100 * MI)];
    assert_eq!(victims(&busy(), &percent_of(256 * GI, 10, 10 * GI)), ["large"]);
    assert_eq!(victims(&busy(), &percent_of(256 * GI, 10, 100 * MI)), ["large", "some"]);
    // A threshold of almost all memory: the pod that grows is a candidate at once.
    let growing = || vec![pod("hog", 200 * MI), pod("idle", 10 * MI)];
    assert_eq!(victims(&growing(), &percent_of(23 * GI, 99, 100 * MI)), ["hog"]);
    // 1 GiB with 100 MiB: a twentieth of the threshold is the lowest bar.
    let tiny = || vec![pod("six", 6 * MI), pod("four", 4 * MI)];
    assert_eq!(victims(&tiny(), &percent_of(GI, 10, MI)), ["six"]);
}

#[test]
fn small_pods_are_not_to_blame_for_what_somebody_else_takes() {
    let pod = |name: &str, bytes| Pod::requesting(name, 0, "0").memory(bytes);
    // 100 MiB should be free, and one of them has just been taken.
    let acting = acting(Signal::MemoryAvailable, MI);
    let victims = |pods: &[Pod]| ranked(pods, &acting, DiskLayout::Single).0;
    let small = |count: usize, bytes: u64| -> Vec<Pod> {
        (0..count).map(|n| pod(&format!("small{n:03}"), bytes)).collect()
    };
    // Somebody else is the cause where all of them would not give back what should be free.
    assert!(victims(&small(20, 5 * MI - 1)).is_empty());
    let with = |mut pods: Vec<Pod>, other: Pod| {
        pods.push(other);
        victims(&pods)
    };
    assert_eq!(with(small(10, 5 * MI - 1), pod("large", 20 * MI)), ["large"]);
    // Together they would, however many they are: the largest of them go.
    assert_eq!(victims(&small(21, 5 * MI - 1)).len(), 21);
    assert_eq!(with(small(500, MI), pod("larger", 2 * MI)), ["larger"]);
    // Beside one that uses more than all of them they would not; beside one that uses what it has
    // requested they are the cause.
    assert_eq!(with(small(200, MI), pod("large", GI)), ["large"]);
    let within = Pod::requesting("within", 0, "2Gi").memory(GI);
    let both = with(small(200, MI), within);
    assert_eq!((both.len(), both.last().unwrap().as_str()), (201, "within"));
    // What critical pods use, nobody gets back.
    let critical = Pod::requesting("critical", 2_000_000_000, "0").memory(GI);
    assert!(with(small(20, 4 * MI), critical).is_empty());
}

#[test]
fn minimum_reclaim_makes_nobody_small() {
    let pod = |name: &str, bytes| Pod::requesting(name, 0, "0").memory(bytes);
    let mut acting = acting(Signal::MemoryAvailable, 440 * MI);
    acting.threshold.min_reclaim = Some(Amount::Number(400 * MI));
    let pods = [pod("culprit", 10 * MI), pod("small", MI)];
    assert_eq!(ranked(&pods, &acting, DiskLayout::Single).0, ["culprit"]);
}

#[test]
fn what_was_not_measured_evicts_nobody() {
    let unknown = Pod::requesting("unknown", -5, "0");
    let small = Pod::requesting("small", 0, "0").memory(5 * MI);
    let (victims, spared) =
        ranked(&[unknown, small], &acting(Signal::MemoryAvailable, MI), DiskLayout::Single);
    assert_eq!(victims, ["small"]);
    assert_eq!(spared, [("unknown".to_owned(), Spare::NotMeasured)]);
}

#[test]
fn memory_comes_from_the_pods_cgroup_or_its_containers() {
    let containers =
        json!({"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]});
    let mut half = Pod::new("half", containers.clone());
    half.container("a").memory = Some(60 * MI);
    let mut whole = Pod::new("whole", containers.clone());
    whole.container("a").memory = Some(30 * MI);
    whole.container("b").memory = Some(40 * MI);
    let mut cgroup = Pod::new("cgroup", containers.clone()).memory(50 * MI);
    cgroup.container("a").memory = Some(900 * MI);
    let mut tiny = Pod::new("tiny", containers);
    tiny.container("a").memory = Some(1);
    let (victims, spared) = ranked(
        &[half, whole, cgroup, tiny],
        &acting(Signal::AllocatableMemoryAvailable, 100 * MI),
        DiskLayout::Single,
    );
    assert_eq!(victims, ["whole", "half", "cgroup"]);
    assert_eq!(spared, [("tiny".to_owned(), Spare::NotMeasured)], "the rest may be large");
}

#[test]
fn disks_count_what_lies_on_them() {
    let layer = || Pod::new("layer", json!({})).disk(Some(space(0, 0)), Some(space(GI, 10)));
    let logs = || Pod::new("logs", json!({})).disk(Some(space(2 * GI, 20)), Some(space(0, 0)));
    let volumes = || {
        let volumes = json!([
            {"name": "data", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ]);
        Pod::new("volume", json!({"volumes": volumes}))
            .disk(Some(space(0, 0)), Some(space(0, 0)))
            .volume("data", space(3 * GI, 30))
            .volume("shm", space(100 * GI, 1000))
    };
    let pods = [layer(), logs(), volumes()];
    let (nodefs, imagefs, containerfs) = (
        [Signal::NodefsAvailable, Signal::NodefsInodesFree],
        [Signal::ImagefsAvailable, Signal::ImagefsInodesFree],
        [Signal::ContainerfsAvailable, Signal::ContainerfsInodesFree],
    );
    let (all, none) = (&["volume", "logs", "layer"][..], &[][..]);
    for (layout, signals, want) in [
        (DiskLayout::Single, nodefs, all),
        (DiskLayout::Single, imagefs, all),
        (DiskLayout::Single, containerfs, all),
        (DiskLayout::DedicatedImages, nodefs, &["volume", "logs"]),
        (DiskLayout::DedicatedImages, imagefs, &["layer"]),
        (DiskLayout::DedicatedImages, containerfs, &["layer"]),
        (DiskLayout::Split, nodefs, all),
        (DiskLayout::Split, imagefs, none),
        (DiskLayout::Split, containerfs, all),
    ] {
        for signal in signals {
            let (victims, spared) = ranked(&pods, &acting(signal, 1), layout);
            assert_eq!(victims, want, "{layout:?} {signal}");
            assert!(spared.iter().all(|(_, why)| *why == Spare::TooLittle));
        }
    }
    // The tmpfs is memory, which is counted elsewhere.
    let candidates = [volumes()];
    let candidates: Vec<_> = candidates.iter().map(Pod::candidate).collect();
    let acting = acting(Signal::NodefsAvailable, 1);
    let ranking = rank(&candidates, &acting, DiskLayout::Single, StaticPods::Ranked);
    assert_eq!(ranking.victims[0].used, 3 * GI);
}

#[test]
fn disks_go_by_request_priority_and_use_inodes_without_request() {
    let pod = |name: &str, priority, request: &str, gib, inodes| {
        let resources = json!({"requests": {"ephemeral-storage": request}});
        let containers = json!([{"name": "c", "image": "i", "resources": resources}]);
        Pod::new(name, json!({"priority": priority, "containers": containers}))
            .disk(Some(space(gib * GI, inodes)), Some(space(0, 0)))
    };
    let pods = [
        pod("within", -5, "9Gi", 9, 90),
        pod("over", 5, "1Gi", 2, 50),
        pod("more", 5, "1Gi", 4, 40),
    ];
    let order = |signal| ranked(&pods, &acting(signal, 1), DiskLayout::Single).0;
    assert_eq!(order(Signal::NodefsAvailable), ["more", "over", "within"]);
    assert_eq!(order(Signal::NodefsInodesFree), ["within", "over", "more"]);
}

#[test]
fn a_disks_unmeasured_parts_count_as_nothing() {
    let known = Pod::new("known", json!({})).disk(Some(space(GI, 1)), None);
    let unknown = Pod::new("unknown", json!({})).disk(None, None);
    let little = Pod::new("little", json!({})).disk(Some(space(1, 1)), None);
    let mut by_container = Pod::new("container", json!({})).disk(None, Some(space(0, 0)));
    by_container.container("c").logs = Some(space(2 * GI, 1));
    let (victims, spared) = ranked(
        &[known, unknown, little, by_container],
        &acting(Signal::NodefsAvailable, GI),
        DiskLayout::Single,
    );
    assert_eq!(victims, ["container", "known"]);
    let not = |name: &str| (name.to_owned(), Spare::NotMeasured);
    assert_eq!(spared, [not("little"), not("unknown")]);
}

#[test]
fn process_ids_go_by_priority_and_number_alone() {
    let pods = [
        Pod::requesting("few", 0, "0").memory(GI).processes(100),
        Pod::requesting("many", 0, "2Gi").processes(1000),
        Pod::requesting("high", 5, "0").memory(GI).processes(9000),
        Pod::requesting("unknown", -5, "0").memory(GI),
    ];
    let (victims, spared) = ranked(&pods, &acting(Signal::PidAvailable, 10), DiskLayout::Single);
    assert_eq!(victims, ["many", "few", "high"]);
    assert_eq!(spared, [("unknown".to_owned(), Spare::NotMeasured)]);
}

/// A pod with this much in its logs, counted in part.
fn partly(name: &str, bytes: u64) -> Pod {
    let mut pod = Pod::new(name, json!({})).disk(Some(space(bytes, 1)), Some(space(0, 0)));
    pod.usage.partly.root_dir = true;
    pod
}

fn whole(name: &str, bytes: u64) -> Pod {
    Pod::new(name, json!({})).disk(Some(space(bytes, 1)), Some(space(0, 0)))
}

#[test]
fn a_partly_measured_pod_goes_before_innocent_pods() {
    // 100 MiB are to be kept free.
    let pods = || [whole("honest", 10 * MI), partly("suspect", MI), whole("tiny", 1)];
    let hard = acting(Signal::NodefsAvailable, MI);
    let (victims, spared) = ranked(&pods(), &hard, DiskLayout::Single);
    assert_eq!(victims, ["suspect", "honest"]);
    assert_eq!(spared, [("tiny".to_owned(), Spare::TooLittle)]);
    let mut soft = hard;
    soft.threshold.grace = Some(seconds(30));
    let (victims, spared) = ranked(&pods(), &soft, DiskLayout::Single);
    assert_eq!(victims, ["honest"]);
    let unknown = ("suspect".to_owned(), Spare::NotMeasured);
    assert_eq!(spared, [unknown, ("tiny".to_owned(), Spare::TooLittle)]);
}

#[test]
fn a_pod_that_explains_the_shortage_clears_suspects() {
    let hard = acting(Signal::NodefsAvailable, MI);
    let (victims, spared) =
        ranked(&[whole("hog", 50 * MI), partly("slow", MI)], &hard, DiskLayout::Single);
    assert_eq!(victims, ["hog"]);
    assert_eq!(spared, [("slow".to_owned(), Spare::NotMeasured)]);
    // What was counted of a pod explains nothing while the rest of it is not counted.
    let mut slow = partly("slow", 50 * MI);
    Arc::make_mut(&mut slow.pod).spec.as_mut().unwrap().priority = Some(1000);
    let (victims, _) = ranked(&[whole("honest", 40 * MI), slow], &hard, DiskLayout::Single);
    assert_eq!(victims, ["slow", "honest"]);
    // A pod within its request explains nothing, however large it is.
    let resources = json!({"requests": {"ephemeral-storage": "1Gi"}});
    let containers = json!([{"name": "c", "image": "i", "resources": resources}]);
    let within = Pod::new("within", json!({"containers": containers}))
        .disk(Some(space(500 * MI, 1)), Some(space(0, 0)));
    let (victims, _) = ranked(&[within, partly("slow", MI)], &hard, DiskLayout::Single);
    assert_eq!(victims, ["slow", "within"]);
}

#[test]
fn suspects_go_by_priority_and_lower_bound() {
    let mut first = partly("first", MI);
    Arc::make_mut(&mut first.pod).spec.as_mut().unwrap().priority = Some(-5);
    let critical = {
        let mut pod = partly("critical", MI);
        Arc::make_mut(&mut pod.pod).spec.as_mut().unwrap().priority = Some(2_000_000_000);
        pod
    };
    let pods = [partly("small", 2 * MI), critical, partly("large", 3 * MI), first];
    let hard = acting(Signal::NodefsInodesFree, 1);
    let (victims, spared) = ranked(&pods, &hard, DiskLayout::Single);
    assert_eq!(victims, ["first", "large", "small"]);
    assert_eq!(spared, [("critical".to_owned(), Spare::Critical)]);
}

#[test]
fn a_pod_is_a_suspect_only_for_the_disk_that_was_not_counted() {
    let layer = || {
        let mut pod = Pod::new("layer", json!({})).disk(Some(space(0, 0)), Some(space(MI, 1)));
        pod.usage.partly.layers = true;
        pod
    };
    let of = |signal, layout| ranked(&[layer()], &acting(signal, MI), layout).0;
    assert_eq!(of(Signal::ImagefsAvailable, DiskLayout::DedicatedImages), ["layer"]);
    assert!(of(Signal::NodefsAvailable, DiskLayout::DedicatedImages).is_empty());
    assert_eq!(of(Signal::NodefsAvailable, DiskLayout::Single), ["layer"]);
    // Memory has nothing to do with it.
    assert!(of(Signal::MemoryAvailable, DiskLayout::Single).is_empty());
}

#[test]
fn files_of_the_agent_and_of_the_runtime_count() {
    let mut pod = whole("files", 0);
    pod.usage.files = Some(space(20 * MI, 1));
    pod.usage.runtime_files = Some(space(30 * MI, 1));
    let candidates = [pod.candidate()];
    let used = |signal, layout| {
        rank(&candidates, &acting(signal, MI), layout, StaticPods::Ranked).victims[0].used
    };
    assert_eq!(used(Signal::NodefsAvailable, DiskLayout::Single), 50 * MI);
    assert_eq!(used(Signal::NodefsAvailable, DiskLayout::DedicatedImages), 20 * MI);
    assert_eq!(used(Signal::ImagefsAvailable, DiskLayout::DedicatedImages), 30 * MI);
}
