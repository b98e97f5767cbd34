#![allow(clippy::unwrap_used, reason = "tests")]

mod comeback;
mod limits;
mod message;
mod properties;
mod rank;
mod relief;
mod state;
mod thresholds;

use super::{
    amount::{binary, decimal, shortest},
    comeback::Cause,
    limits::{LocalLimit, over_limits},
    message::Eviction,
    rank::{Candidate, Spare, Victim, rank},
    state::{Change, PressureState, ReadingProblem},
    threshold::{Mistake, ParsedThresholds},
    *,
};
use crate::model::{
    ContainerUse, DiskLayout, Now, PartlyMeasured, PodKey, PodUid, PodUse, Reading, Signal, Space,
    VolumeUse, k8s,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn now(boot_seconds: u64, wall_seconds: i64) -> Now {
    let wall = jiff::Timestamp::from_second(wall_seconds).unwrap();
    Now { boot: seconds(boot_seconds), wall }
}

/// Thresholds of maps as they are written: `signal=value` separated by blanks.
fn thresholds(hard: &str, soft: &str, grace: &str, reclaim: &str) -> Vec<Threshold> {
    read(hard, soft, grace, reclaim).unwrap().thresholds
}

fn read(
    hard: &str,
    soft: &str,
    grace: &str,
    reclaim: &str,
) -> Result<ParsedThresholds, Vec<Mistake>> {
    parse(&Written {
        hard: entries(hard),
        soft: entries(soft),
        soft_grace: entries(grace),
        min_reclaim: entries(reclaim),
        merge_defaults: false,
        enforce_pods: false,
    })
}

fn entries(text: &str) -> BTreeMap<&str, &str> {
    text.split_whitespace().map(|part| part.split_once('=').unwrap()).collect()
}

fn settings(thresholds: Vec<Threshold>) -> EvictionSettings {
    EvictionSettings { thresholds, ..EvictionSettings::default() }
}

/// Something to act on, of a hard threshold of 100 MiB (or 100 pieces) out of 1 GiB.
fn acting(signal: Signal, shortfall: u64) -> Acting {
    let pieces = matches!(signal.resource(), "pids" | "inodes");
    let value = Amount::Number(if pieces { 100 } else { 100 * MI });
    Acting {
        threshold: Threshold { signal, grace: None, value, min_reclaim: None },
        reading: Reading { available: 60 * MI, capacity: GI, at: seconds(1) },
        shortfall,
    }
}

/// The annotation that tells static pods from those of an API server.
const SOURCE: &str = "kubernetes.io/config.source";

/// A pod with what it uses.
struct Pod {
    pod: Arc<k8s::Pod>,
    key: PodKey,
    uid: PodUid,
    usage: PodUse,
}

impl Pod {
    /// A static pod with this specification, to which a container `c` is added where it has none.
    /// Nothing is measured.
    fn new(name: &str, mut spec: Value) -> Self {
        if spec.get("containers").is_none() {
            spec["containers"] = json!([{"name": "c", "image": "i"}]);
        }
        let metadata = json!({"name": name, "annotations": {SOURCE: "file"}});
        let pod = json!({"metadata": metadata, "spec": spec});
        let pod: Arc<k8s::Pod> = Arc::new(serde_json::from_value(pod).unwrap());
        let (key, uid) = (PodKey::new("default", name), PodUid::from(name));
        let spec = pod.spec.as_ref().unwrap();
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let containers = containers
            .map(|c| ContainerUse {
                name: (*c.name).into(),
                id: None,
                memory: None,
                logs: None,
                layer: None,
            })
            .collect();
        let volumes = spec.volumes.iter().flatten().filter_map(|volume| {
            let medium = volume.empty_dir.as_ref()?.medium.as_deref();
            Some(VolumeUse {
                name: (*volume.name).into(),
                in_memory: medium == Some("Memory"),
                space: None,
            })
        });
        let usage = PodUse {
            key: key.clone(),
            uid: uid.clone(),
            memory: None,
            processes: None,
            containers,
            volumes: volumes.collect(),
            logs: None,
            files: Some(Space::default()),
            runtime_files: Some(Space::default()),
            partly: PartlyMeasured::default(),
        };
        Self { pod, key, uid, usage }
    }

    fn requesting(name: &str, priority: i32, memory: &str) -> Self {
        let containers = json!([{
            "name": "c", "image": "i", "resources": {"requests": {"memory": memory}}
        }]);
        Self::new(name, json!({"priority": priority, "containers": containers}))
    }

    /// The same pod from an API server.
    fn api(mut self) -> Self {
        let annotations = Arc::make_mut(&mut self.pod).metadata.annotations.as_mut().unwrap();
        annotations.insert(SOURCE.to_owned(), "api".to_owned());
        self
    }

    fn memory(mut self, bytes: u64) -> Self {
        self.usage.memory = Some(bytes);
        self
    }

    fn processes(mut self, count: u64) -> Self {
        self.usage.processes = Some(count);
        self
    }

    /// Logs of the pod's directory, and the layer and logs of its first container.
    fn disk(mut self, logs: Option<Space>, layer: Option<Space>) -> Self {
        self.usage.logs = logs;
        self.usage.containers[0].logs = logs;
        self.usage.containers[0].layer = layer;
        self
    }

    fn container(&mut self, name: &str) -> &mut ContainerUse {
        self.usage.containers.iter_mut().find(|container| &*container.name == name).unwrap()
    }

    fn volume(mut self, name: &str, space: Space) -> Self {
        let volume = self.usage.volumes.iter_mut().find(|volume| &*volume.name == name).unwrap();
        volume.space = Some(space);
        self
    }

    fn candidate(&self) -> Candidate<'_> {
        Candidate {
            pod: &self.pod,
            key: &self.key,
            uid: &self.uid,
            priority: crate::model::priority_of(&self.pod),
            usage: &self.usage,
        }
    }
}

fn space(bytes: u64, inodes: u64) -> Space {
    Space { bytes, inodes }
}
