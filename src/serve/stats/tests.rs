#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::metrics::{Family, Metrics};
use crate::model::{
    CgroupStats, ClaimStats, ContainerStats, CpuStats, DeviceIo, FsStats, InterfaceStats,
    MeasuredSpace, MemoryStats, NodeStats, PodKey, PodStats, Psi, Space, Stall, SwapStats,
    Throttling, Traffic, VolumeStats,
};
use jiff::Timestamp;
use serde_json::json;
use std::time::Duration;

fn at() -> Timestamp {
    Timestamp::from_millisecond(1_700_000_000_500).unwrap()
}

fn used() -> CgroupStats {
    let stall = Stall { total: Duration::from_nanos(5000), averages: [1.5, 0.0, 0.0] };
    CgroupStats {
        at: at(),
        cpu: Some(CpuStats {
            usage: Duration::from_millis(2500),
            throttling: Some(Throttling {
                quota_micros: 10_000,
                period_micros: 100_000,
                periods: 9,
                throttled_periods: 3,
                throttled: Duration::from_millis(250),
            }),
            ..CpuStats::default()
        }),
        cpu_rate: Some(1000),
        memory: Some(MemoryStats {
            usage: 300,
            working_set: 200,
            rss: 100,
            page_faults: 7,
            limit: Some(1000),
            ..MemoryStats::default()
        }),
        swap: Some(SwapStats { usage: 1, limit: None }),
        processes: Some(3),
        tasks: Some(4),
        io: vec![DeviceIo {
            device: (8, 16),
            path: "/dev/sdb".into(),
            read_bytes: 4096,
            written_bytes: 512,
            ..DeviceIo::default()
        }],
        memory_pressure: Some(Psi { some: stall, full: Stall::default() }),
        ..CgroupStats::default()
    }
}

fn stats() -> Stats {
    let traffic = Traffic { bytes: 10, packets: 1, errors: 0, dropped: 0 };
    let eth0 = InterfaceStats { name: "eth0".into(), received: traffic, sent: traffic };
    let none = CgroupStats { at: at(), ..CgroupStats::default() };
    let layer = MeasuredSpace { space: Space { bytes: 4096, inodes: 2 }, at: at() };
    Stats {
        node: NodeStats { booted_at: at(), machine: used(), agent: none, ..NodeStats::default() },
        pods: vec![PodStats {
            key: PodKey::new("default", "a"),
            uid: "u1".into(),
            started_at: Some(at()),
            cgroup: "/kubepods/podu1".into(),
            stats: Some(used()),
            containers: vec![ContainerStats {
                name: "main".into(),
                id: "c1".into(),
                image: "i\"1".into(),
                started_at: at(),
                cgroup: "/kubepods/podu1/c1".into(),
                stats: Some(used()),
                layer: Some(layer),
                logs: None,
            }],
            network: vec![eth0],
            volumes: vec![VolumeStats { name: "data".into(), in_memory: false, space: layer }],
            claims: Vec::new(),
            ephemeral_storage: None,
        }],
    }
}

#[test]
fn the_volume_of_a_claim_names_its_claim() {
    let mut stats = stats();
    stats.pods[0].claims = vec![ClaimStats {
        key: PodKey::new("default", "a"),
        uid: "u1".into(),
        volume: "v".into(),
        claim: "web-v".into(),
        fs: FsStats { at: at(), bytes: (40, 100), used_bytes: 50, inodes: Some((3, 10)) },
    }];
    assert_eq!(
        summary::pod(&stats.node, &stats.pods[0], false)["volume"][1],
        json!({
            "name": "v", "pvcRef": { "name": "web-v", "namespace": "default" },
            "time": "2023-11-14T22:13:20Z", "availableBytes": 40, "capacityBytes": 100,
            "usedBytes": 50, "inodesFree": 3, "inodes": 10, "inodesUsed": 7,
        })
    );
}

#[test]
fn a_volume_in_memory_does_not_have_the_size_of_the_disk() {
    let mut stats = stats();
    stats.node.root_fs = Some(FsStats { at: at(), bytes: (40, 100), used_bytes: 50, inodes: None });
    let capacity = |stats: &Stats| {
        summary::pod(&stats.node, &stats.pods[0], false)["volume"][0].get("capacityBytes").cloned()
    };
    assert_eq!(capacity(&stats), Some(json!(100)));
    stats.pods[0].volumes[0].in_memory = true;
    assert_eq!(capacity(&stats), None);
}

#[test]
fn a_summary_leaves_out_what_is_not_known() {
    let stats = stats();
    let time = "2023-11-14T22:13:20Z";
    let memory = json!({
        "time": time, "availableBytes": 800, "usageBytes": 300, "workingSetBytes": 200,
        "rssBytes": 100, "pageFaults": 7, "majorPageFaults": 0,
        "psi": {
            "full": { "total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0 },
            "some": { "total": 5000, "avg10": 1.5, "avg60": 0.0, "avg300": 0.0 },
        },
    });
    let cpu = json!({
        "time": time, "usageNanoCores": 1000, "usageCoreNanoSeconds": 2_500_000_000_u64,
    });
    let swap = json!({ "time": time, "swapUsageBytes": 1 });
    let space = json!({ "time": time, "usedBytes": 4096, "inodesUsed": 2 });
    let mut volume = space.clone();
    volume["name"] = json!("data");
    assert_eq!(
        summary::pod(&stats.node, &stats.pods[0], false),
        json!({
            "podRef": { "name": "a", "namespace": "default", "uid": "u1" },
            "startTime": time, "cpu": cpu, "memory": memory, "swap": swap,
            "containers": [{
                "name": "main", "startTime": time, "cpu": cpu, "memory": memory, "swap": swap,
                "rootfs": space,
            }],
            "network": {
                "time": time, "name": "eth0", "rxBytes": 10, "rxErrors": 0, "txBytes": 10,
                "txErrors": 0,
                "interfaces": [{
                    "name": "eth0", "rxBytes": 10, "rxErrors": 0, "txBytes": 10, "txErrors": 0,
                }],
            },
            "volume": [volume],
            "process_stats": { "process_count": 3 },
        })
    );
    assert_eq!(
        summary::node(&stats.node, "n1", None, true),
        json!({
            "nodeName": "n1", "startTime": time, "systemContainers": [{ "name": "kubelet" }],
            "cpu": cpu, "memory": memory, "swap": swap,
        })
    );
}

#[test]
fn series_have_the_labels_of_upstream() {
    let stats = Arc::new(stats());
    let resource: String = resource::SERIES.iter().map(|series| series.text(&stats)).collect();
    let rows = cadvisor::Rows::of(Arc::clone(&stats));
    let cadvisor: String = cadvisor::SERIES.iter().map(|series| series.text(&rows)).collect();
    let names = r#"container="main",id="/kubepods/podu1/c1",image="i\"1",name="c1",namespace="default",pod="a""#;
    for line in [
        r#"node_cpu_usage_seconds_total 2.5 1700000000500"#.to_owned(),
        r#"pod_memory_working_set_bytes{namespace="default",pod="a"} 200 1700000000500"#.to_owned(),
        r#"container_start_time_seconds{container="main",namespace="default",pod="a"} 1700000000.5"#
            .to_owned(),
        "resource_scrape_error 0".to_owned(),
    ] {
        assert!(resource.lines().any(|one| one == line), "no {line} in\n{resource}");
    }
    for line in [
        format!("container_cpu_usage_seconds_total{{{names},cpu=\"total\"}} 2.5 1700000000500"),
        format!("container_processes{{{names}}} 3 1700000000500"),
        format!(
            "container_blkio_device_usage_total{{{names},device=\"/dev/sdb\",major=\"8\",minor=\"16\",operation=\"Write\"}} 512 1700000000500"
        ),
        format!("container_spec_cpu_quota{{{names}}} 10000"),
        format!("container_cpu_cfs_throttled_seconds_total{{{names}}} 0.25 1700000000500"),
        format!("container_fs_usage_bytes{{{names},device=\"\"}} 4096 1700000000500"),
        format!(
            "container_memory_failures_total{{{names},failure_type=\"pgfault\",scope=\"hierarchy\"}} 7 1700000000500"
        ),
        r#"container_network_receive_bytes_total{container="",id="/kubepods/podu1",image="",name="",namespace="default",pod="a",interface="eth0"} 10 1700000000500"#.to_owned(),
        r#"container_threads{container="",id="/",image="",name="",namespace="",pod=""} 4 1700000000500"#.to_owned(),
    ] {
        assert!(cadvisor.lines().any(|one| one == line), "no {line} in\n{cadvisor}");
    }
    // Once each, in one piece.
    for text in [resource, cadvisor] {
        let mut seen = std::collections::BTreeSet::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            assert!(seen.insert(line.to_owned()), "{line} stands twice");
        }
    }
}

#[test]
fn samples_of_a_disk_have_the_time_of_their_reading() {
    let mut stats = stats();
    let earlier = |millis: i64| Timestamp::from_millisecond(1_700_000_000_500 - millis).unwrap();
    let fs = FsStats { at: earlier(100), bytes: (40, 100), used_bytes: 50, inodes: Some((3, 10)) };
    (stats.node.root_fs, stats.node.container_fs) = (Some(fs), Some(fs));
    stats.pods[0].containers[0].layer.as_mut().unwrap().at = earlier(200);
    let rows = cadvisor::Rows::of(Arc::new(stats));
    let text: String = cadvisor::SERIES.iter().map(|series| series.text(&rows)).collect();
    let sample = |name: &str, container: &str| {
        let begin = format!("{name}{{container=\"{container}\",");
        let line = text.lines().find(|line| line.starts_with(&begin));
        line.and_then(|line| line.rsplit_once("} ")).map(|(_, rest)| rest)
    };
    assert_eq!(sample("container_fs_usage_bytes", ""), Some("50 1700000000400"));
    assert_eq!(sample("container_fs_usage_bytes", "main"), Some("4096 1700000000300"));
    assert_eq!(sample("container_fs_limit_bytes", "main"), Some("100 1700000000400"));
    assert_eq!(sample("container_fs_inodes_free", "main"), Some("3 1700000000400"));
    assert_eq!(sample("container_fs_inodes_total", "main"), Some("10 1700000000400"));
}

#[test]
fn a_container_that_has_just_ended_has_no_resource_series() {
    let mut stats = stats();
    let mut ended = stats.pods[0].containers[0].clone();
    (ended.name, ended.stats) = ("ended".into(), None);
    stats.pods[0].containers.push(ended);
    let text: String = resource::SERIES.iter().map(|series| series.text(&stats)).collect();
    assert!(text.contains("container_start_time_seconds{container=\"main\""), "{text}");
    assert!(!text.contains("container=\"ended\""), "{text}");
}

/// The table of what the agent counts, with labels.
fn counted() -> String {
    let rows = Metrics::described().into_iter().map(|(family, labels)| {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let Family { name, kind, help } = family;
        format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", "))
    });
    let rows: String = rows.collect();
    format!("| series | type | labels | meaning |\n|---|---|---|---|\n{rows}")
}

/// The tables of docs/metrics.md, which `UPDATE_DOCS=1` writes.
#[test]
fn every_series_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
    let page = std::fs::read_to_string(path).unwrap();
    let table = |families: &mut dyn Iterator<Item = &Family>| {
        let row = |one: &Family| format!("| `{}` | {} | {} |\n", one.name, one.kind, one.help);
        format!(
            "| series | type | meaning |\n|---|---|---|\n{}",
            families.map(row).collect::<String>()
        )
    };
    let of_containers = cadvisor::SERIES.iter().map(|series| &series.family);
    let of_machine = cadvisor::MACHINE.iter().map(|(family, _)| family);
    let mut wanted = page.clone();
    for (name, table) in [
        ("resource", table(&mut resource::SERIES.iter().map(|series| &series.family))),
        ("cadvisor", table(&mut of_containers.chain(of_machine).chain([&cadvisor::FAILED]))),
        ("counted", counted()),
        ("facts", table(&mut facts::SERIES.iter().map(|(family, _)| family))),
    ] {
        let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
        let from = wanted.find(&begin).expect("a mark of the table") + begin.len();
        let to = wanted.find(&end).expect("a mark of the end of the table");
        wanted.replace_range(from..to, &table);
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &wanted).unwrap();
    } else {
        assert!(
            page == wanted,
            "docs/metrics.md is out of date: UPDATE_DOCS=1 cargo test --lib documented"
        );
    }
}
