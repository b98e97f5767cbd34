//! The part of `/metrics` that is no counter: what the agent knows at the moment of the scrape.

use crate::{
    metrics::{Family, Kind, Samples, labels, number},
    model::{
        ClaimStats, FileVerdict, KUBELET_VERSION, LogSize, NodeView, PodConfig, PodView, PodViews,
    },
    podspec::is_static,
    serve::routes::App,
    signals::{self, OwnProcess},
};
use Kind::{Counter, Gauge};
use jiff::Timestamp;
use std::{collections::BTreeSet, sync::Arc};

/// What the samples are made from.
pub(super) struct Facts {
    pods: Arc<PodViews>,
    node: Arc<NodeView>,
    cgroup_version: u8,
    certificate_until: Option<Timestamp>,
    logs: Arc<[LogSize]>,
    claims: Arc<[ClaimStats]>,
    process: OwnProcess,
    started_at: Option<f64>,
}

/// The kubelet's values of the label `static`.
const STATIC: &str = "true";
const OF_API: &str = "";

type Tell = fn(&Facts, &mut Samples);

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: Gauge, help }
}

pub(super) const SERIES: &[(Family, Tell)] = &[
    (gauge("kubelet_node_name", "The name of the node; always 1"), |facts, samples| {
        samples.put(&labels([("node", &facts.node.name)]), 1.0, None);
    }),
    (gauge("kubelet_running_pods", "Pods of which a container runs"), |facts, samples| {
        samples.put("", facts.running_pods(), None);
    }),
    (
        gauge("kubelet_running_containers", "Containers, by their state (`running`, `exited`)"),
        |facts, samples| {
            for (state, runs) in [("exited", false), ("running", true)] {
                let labels = labels([("container_state", state)]);
                samples.put(&labels, facts.containers(runs), None);
            }
        },
    ),
    (
        gauge(
            "kubelet_desired_pods",
            "Pods that are to run, by `static` (`true`; empty: a pod of the API server)",
        ),
        |facts, samples| {
            facts.put_by_origin(samples, is_desired);
        },
    ),
    (
        gauge("kubelet_active_pods", "Pods that are to run and have not ended, by `static`"),
        |facts, samples| {
            facts.put_by_origin(samples, |pod| is_desired(pod) && !pod.has_ended());
        },
    ),
    (
        gauge(
            "kubelet_working_pods",
            "Pods, by `lifecycle` (`sync`: to run, `terminating`, `terminated`), `config` (`desired`, `orphan`: the manifest or object is gone, `runtime_only`) and `static`",
        ),
        Facts::put_working,
    ),
    (
        gauge(
            "kubelet_container_log_filesystem_used_bytes",
            "What the logs of a container that runs take, in bytes; measured every 10 seconds at most",
        ),
        Facts::put_logs,
    ),
    (
        gauge(
            "kubelet_volume_stats_capacity_bytes",
            "Size of the file system of a PersistentVolume, in bytes; measured every 10 seconds at most",
        ),
        |facts, samples| facts.put_claims(samples, |one| Some(one.fs.bytes.1)),
    ),
    (
        gauge(
            "kubelet_volume_stats_available_bytes",
            "What of the file system of a PersistentVolume may be taken, in bytes",
        ),
        |facts, samples| facts.put_claims(samples, |one| Some(one.fs.bytes.0)),
    ),
    (
        gauge(
            "kubelet_volume_stats_used_bytes",
            "What of the file system of a PersistentVolume is taken, in bytes",
        ),
        |facts, samples| facts.put_claims(samples, |one| Some(one.fs.used_bytes)),
    ),
    (
        gauge("kubelet_volume_stats_inodes", "Inodes of the file system of a PersistentVolume"),
        |facts, samples| facts.put_claims(samples, |one| Some(one.fs.inodes?.1)),
    ),
    (
        gauge(
            "kubelet_volume_stats_inodes_free",
            "Inodes of the file system of a PersistentVolume that may be taken",
        ),
        |facts, samples| facts.put_claims(samples, |one| Some(one.fs.inodes?.0)),
    ),
    (
        gauge(
            "kubelet_volume_stats_inodes_used",
            "Inodes of the file system of a PersistentVolume that are taken",
        ),
        |facts, samples| facts.put_claims(samples, |one| one.fs.inodes_used()),
    ),
    (
        gauge("kubelet_mirror_pods", "Mirror pods in the API; absent without an API server"),
        |facts, samples| {
            if let Some(cluster) = &facts.node.cluster {
                samples.put("", number(cluster.mirror_pods as u64), None);
            }
        },
    ),
    (gauge("kubelet_cgroup_version", "Version of the cgroups, 1 or 2"), |facts, samples| {
        samples.put("", f64::from(facts.cgroup_version), None);
    }),
    (gauge("kubernetes_build_info", "The version of the agent; always 1"), |_, samples| {
        let version = [("git_version", KUBELET_VERSION), ("platform", "linux")];
        samples.put(&labels(version), 1.0, None);
    }),
    (
        gauge(
            "kubelet_certificate_manager_client_ttl_seconds",
            "Time until the client certificate expires, in seconds; absent without a certificate",
        ),
        |facts, samples| {
            let until = facts.node.cluster.as_ref().and_then(|cluster| cluster.certificate_until);
            put_time_left(until, samples);
        },
    ),
    (
        gauge(
            "kubelet_certificate_manager_server_ttl_seconds",
            "Time until the certificate of the HTTPS API expires, in seconds; absent without that API",
        ),
        |facts, samples| put_time_left(facts.certificate_until, samples),
    ),
    (
        gauge(
            "nodelet_last_good_revisions",
            "Pods that run from an earlier revision because their manifest is invalid",
        ),
        |facts, samples| samples.put("", number(facts.node.last_good().len() as u64), None),
    ),
    (
        gauge("nodelet_rejected_manifests", "Manifests that are invalid, each document counted"),
        |facts, samples| samples.put("", facts.rejected(), None),
    ),
    (gauge("nodelet_hung_calls", "Pods of which a call to the runtime hangs"), |facts, samples| {
        samples.put("", facts.count(|pod| pod.hung.is_some()), None);
    }),
    (
        gauge("nodelet_evicted_pods", "Pods that were evicted and are not back yet"),
        |facts, samples| {
            samples.put("", number(facts.node.pressure.evicted.len() as u64), None);
        },
    ),
    (
        Family {
            name: "process_cpu_seconds_total",
            kind: Counter,
            help: "CPU time that the agent has used, in seconds",
        },
        |facts, samples| samples.put("", facts.process.cpu.as_secs_f64(), None),
    ),
    (gauge("process_resident_memory_bytes", "Memory of the agent, in bytes"), |facts, samples| {
        samples.put("", number(facts.process.resident_bytes), None);
    }),
    (
        gauge("process_virtual_memory_bytes", "Address space of the agent, in bytes"),
        |facts, samples| samples.put("", number(facts.process.virtual_bytes), None),
    ),
    (gauge("process_open_fds", "File descriptors that the agent has open"), |facts, samples| {
        samples.put("", number(facts.process.open_files), None);
    }),
    (gauge("process_max_fds", "File descriptors that it may open"), |facts, samples| {
        if let Some(most) = facts.process.most_files {
            samples.put("", number(most), None);
        }
    }),
    (
        gauge("process_start_time_seconds", "When the agent was started, in seconds since 1970"),
        |facts, samples| {
            if let Some(started_at) = facts.started_at {
                samples.put("", started_at, None);
            }
        },
    ),
];

impl Facts {
    pub(super) fn of(app: &App, logs: Arc<[LogSize]>, claims: Arc<[ClaimStats]>) -> Self {
        let node = Arc::clone(&app.views.node.borrow());
        let started_at = node.started_at.parse().ok().map(crate::metrics::unix);
        Self {
            pods: Arc::clone(&app.views.pods.borrow()),
            cgroup_version: app.machine.cgroup_version,
            certificate_until: *app.certificate_until.borrow(),
            logs,
            claims,
            process: signals::own_process(),
            started_at,
            node,
        }
    }

    fn count(&self, is: fn(&PodView) -> bool) -> f64 {
        number(self.pods.values().filter(|pod| is(pod)).count() as u64)
    }

    fn running_pods(&self) -> f64 {
        self.count(|pod| pod.containers.iter().any(|one| one.running_since.is_some()))
    }

    /// Counts static pods, and pods of the API server.
    fn put_by_origin(&self, samples: &mut Samples, is: fn(&PodView) -> bool) {
        let all = self.pods.values().filter(|pod| is(pod));
        let (of_files, of_api): (Vec<_>, Vec<_>) = all.partition(|pod| static_label(pod) == STATIC);
        for (label, pods) in [(OF_API, of_api), (STATIC, of_files)] {
            samples.put(&labels([("static", label)]), number(pods.len() as u64), None);
        }
    }

    /// Counts pods by [`working`]. Nothing says of a pod that only the runtime knows whether it is
    /// a static one.
    fn put_working(&self, samples: &mut Samples) {
        for (config, label) in [
            ("desired", OF_API),
            ("desired", STATIC),
            ("orphan", OF_API),
            ("orphan", STATIC),
            ("runtime_only", "unknown"),
        ] {
            for lifecycle in ["sync", "terminating", "terminated"] {
                let is_it = |pod: &&Arc<PodView>| {
                    working(pod) == (lifecycle, config)
                        && (label == "unknown" || static_label(pod) == label)
                };
                let count = number(self.pods.values().filter(is_it).count() as u64);
                let names = [("config", config), ("lifecycle", lifecycle), ("static", label)];
                samples.put(&labels(names), count, None);
            }
        }
    }

    fn put_logs(&self, samples: &mut Samples) {
        for LogSize { key, uid, container, bytes } in self.logs.iter() {
            let names = [
                ("container", &**container),
                ("namespace", &key.namespace),
                ("pod", &key.name),
                ("uid", uid.as_str()),
            ];
            samples.put(&labels(names), number(*bytes), None);
        }
    }

    /// A sample for each claim, also where several pods mount it.
    fn put_claims(&self, samples: &mut Samples, value: fn(&ClaimStats) -> Option<u64>) {
        let mut put = BTreeSet::new();
        for one in self.claims.iter() {
            let names =
                [("namespace", &*one.key.namespace), ("persistentvolumeclaim", &*one.claim)];
            let Some(value) = value(one).filter(|_| put.insert(names)) else { continue };
            samples.put(&labels(names), number(value), None);
        }
    }

    fn containers(&self, runs: bool) -> f64 {
        let all = self.pods.values().flat_map(|pod| &pod.containers);
        number(all.filter(|one| one.running_since.is_some() == runs).count() as u64)
    }

    fn rejected(&self) -> f64 {
        let files = self.node.sources.iter().flat_map(|source| &source.files);
        let verdicts = files.flat_map(|file| &file.verdicts);
        let rejected = verdicts.filter(|one| matches!(one, FileVerdict::Rejected { .. }));
        number(rejected.count() as u64)
    }
}

/// The label `static` of a pod.
fn static_label(pod: &PodView) -> &'static str {
    if pod.pod.as_deref().is_some_and(is_static) { STATIC } else { OF_API }
}

fn is_desired(pod: &PodView) -> bool {
    pod.config == PodConfig::Desired
}

fn put_time_left(until: Option<Timestamp>, samples: &mut Samples) {
    if let Some(until) = until {
        samples.put("", until.duration_since(crate::clock::now().wall).as_secs_f64(), None);
    }
}

/// What the agent does with a pod, and what says that there is the pod, in the kubelet's words.
fn working(pod: &PodView) -> (&'static str, &'static str) {
    let lifecycle = match (pod.has_ended(), pod.terminating) {
        (true, _) => "terminated",
        (false, true) => "terminating",
        (false, false) => "sync",
    };
    let config = match pod.config {
        PodConfig::Desired => "desired",
        PodConfig::Orphan => "orphan",
        PodConfig::RuntimeOnly => "runtime_only",
    };
    (lifecycle, config)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::model::{FsStats, PodKey};
    use serde_json::json;

    fn facts(pods: impl IntoIterator<Item = PodView>, claims: Arc<[ClaimStats]>) -> Facts {
        let pods = pods.into_iter().map(|pod| (pod.key.clone(), Arc::new(pod)));
        Facts {
            pods: Arc::new(pods.collect()),
            node: Arc::default(),
            cgroup_version: 2,
            certificate_until: None,
            logs: Arc::default(),
            claims,
            process: signals::own_process(),
            started_at: None,
        }
    }

    fn lines(facts: &Facts, name: &str) -> Vec<String> {
        let (family, tell) = SERIES.iter().find(|(family, _)| family.name == name).unwrap();
        let text = family.text(|to| tell(facts, to));
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    fn view(name: &str, pod: &serde_json::Value) -> PodView {
        serde_json::from_value(json!({
            "key": { "namespace": "default", "name": name }, "uid": "u", "pod": pod, "status": {},
            "origin": null, "terminating": false, "hung": null, "waiting": null,
        }))
        .unwrap()
    }

    #[test]
    fn static_pods_are_counted_apart() {
        let of = |source: &str| {
            let annotations = json!({ "kubernetes.io/config.source": source });
            json!({ "metadata": { "annotations": annotations } })
        };
        let pods = [view("a", &of("file")), view("b", &of("api")), view("c", &of("api"))];
        let facts = facts(pods, Arc::default());
        for name in ["kubelet_desired_pods", "kubelet_active_pods"] {
            let expected = [("", 2), ("true", 1)]
                .map(|(label, count)| format!("{name}{{static=\"{label}\"}} {count}"));
            assert_eq!(lines(&facts, name), expected);
        }
        let working = lines(&facts, "kubelet_working_pods");
        let counted = working.iter().filter(|line| !line.ends_with(" 0"));
        let expected = [("", 2), ("true", 1)].map(|(label, count)| {
            let names = "config=\"desired\",lifecycle=\"sync\"";
            format!("kubelet_working_pods{{{names},static=\"{label}\"}} {count}")
        });
        assert_eq!(counted.collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
        assert_eq!(working.len(), 15);
    }

    #[test]
    fn a_claim_of_several_pods_is_told_once() {
        let claim = |pod: &str, name: &str, inodes| ClaimStats {
            key: PodKey::new("ns", pod),
            uid: pod.into(),
            volume: "v".into(),
            claim: name.into(),
            fs: FsStats { at: Timestamp::UNIX_EPOCH, bytes: (40, 100), used_bytes: 50, inodes },
        };
        let full = Some((0, 8));
        let all = [claim("a", "data", full), claim("b", "data", full), claim("b", "other", None)];
        let facts = facts([], Arc::new(all));
        let samples = |name: &str| lines(&facts, name);
        let data = |name: &str, value: u64| {
            format!("{name}{{namespace=\"ns\",persistentvolumeclaim=\"data\"}} {value}")
        };
        for (name, value) in [("capacity", 100), ("available", 40), ("used", 50)] {
            let name = format!("kubelet_volume_stats_{name}_bytes");
            let found = samples(&name);
            assert_eq!((found.len(), &found[0]), (2, &data(&name, value)));
        }
        for (name, value) in [("inodes", 8), ("inodes_free", 0), ("inodes_used", 8)] {
            let name = format!("kubelet_volume_stats_{name}");
            assert_eq!(samples(&name), [data(&name, value)], "the other counts none");
        }
    }

    #[test]
    fn pods_are_told_apart_by_lifecycle_and_config() {
        let runs = view("a", &json!(null));
        assert_eq!(working(&runs), ("sync", "desired"));
        assert!(is_desired(&runs));
        let phase = Some("Failed".to_owned());
        let status = Arc::new(crate::model::k8s::PodStatus { phase, ..Default::default() });
        assert_eq!(working(&PodView { status, ..runs.clone() }), ("terminated", "desired"));
        for (config, label) in
            [(PodConfig::Orphan, "orphan"), (PodConfig::RuntimeOnly, "runtime_only")]
        {
            let ends = PodView { terminating: true, config, ..runs.clone() };
            assert_eq!(working(&ends), ("terminating", label));
            assert!(!is_desired(&ends), "it is no longer to run");
        }
    }
}
