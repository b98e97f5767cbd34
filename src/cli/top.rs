//! `nodelet top`: the CPU and memory that the node, its pods and their containers use now.

use super::{
    EXIT_NO_AGENT,
    args::{SortBy, TopArgs},
    ask::AskError,
    status::{Wanted, reach, table},
};
use crate::{machine, model::Order as _, serve::Client};
use serde::Deserialize;
use std::{cmp::Reverse, path::Path, process::ExitCode, time::Duration};
use tokio::time::sleep;

/// CPU time per second needs two readings: how far they are apart.
const APART: Duration = Duration::from_millis(1100);
const MIB: u64 = 1 << 20;

/// The part of a `Summary` that is shown.
#[derive(Debug, Deserialize)]
pub(crate) struct Summary {
    node: Node,
    pods: Vec<Pod>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    node_name: String,
    #[serde(flatten)]
    used: Used,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pod {
    pod_ref: PodRef,
    containers: Vec<Container>,
    #[serde(flatten)]
    used: Used,
}

#[derive(Debug, Deserialize)]
struct PodRef {
    name: String,
    namespace: String,
}

#[derive(Debug, Deserialize)]
struct Container {
    name: String,
    #[serde(flatten)]
    used: Used,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Used {
    cpu: Cpu,
    memory: Memory,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Cpu {
    usage_nano_cores: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Memory {
    working_set_bytes: Option<u64>,
    available_bytes: Option<u64>,
}

pub(super) async fn run(args: TopArgs) -> Result<ExitCode, AskError> {
    let namespace = args.namespace.namespace.as_deref();
    let wanted = args.pod.as_deref().map(|pod| Wanted::new(pod, namespace)).transpose()?;
    let Some((client, document)) = reach(&args.agent).await? else {
        return Ok(ExitCode::from(EXIT_NO_AGENT));
    };
    let keys = document.pods.iter().map(|view| &view.key);
    let key = wanted.map(|wanted| wanted.select(&document.node.name, keys).cloned()).transpose()?;
    let mut summary = both_readings(&client).await?;
    summary.pods.retain(|pod| match &key {
        Some(key) => *pod.pod_ref.name == *key.name && *pod.pod_ref.namespace == *key.namespace,
        None => namespace.is_none_or(|namespace| pod.pod_ref.namespace == namespace),
    });
    let cpus = machine::cpus(Path::new("/")).unwrap_or_default();
    let node = key.is_none().then(|| summary.node.row(cpus));
    let pods = summary.rows(args.sort_by, args.containers);
    let node = node.map(|rows| table(&rows) + "\n").unwrap_or_default();
    let pods = match pods.len() {
        1 => "No container runs.\n".to_owned(),
        _ => table(&pods),
    };
    Ok(super::print(&(node + &pods))?)
}

/// A summary with the CPU time per second of everything that ran a second before.
async fn both_readings(client: &Client) -> Result<Summary, AskError> {
    let summary: Summary = client.used().await?;
    if summary.has_rates() {
        return Ok(summary);
    }
    sleep(APART).await;
    Ok(client.used().await?)
}

impl Summary {
    fn has_rates(&self) -> bool {
        let of_pods = self.pods.iter().map(|pod| &pod.used);
        of_pods.chain([&self.node.used]).all(|used| used.cpu.usage_nano_cores.is_some())
    }

    /// The table of pods, or of their containers.
    fn rows(&mut self, sort_by: Option<SortBy>, containers: bool) -> Vec<Vec<String>> {
        match sort_by {
            Some(by) => self.pods.order_by_key(|pod| Reverse(pod.used.by(by))),
            None => self.pods.order_by(|a, b| a.pod_ref.full().cmp(&b.pod_ref.full())),
        }
        let named = if containers {
            ["NAMESPACE", "POD", "NAME"].as_slice()
        } else {
            &["NAMESPACE", "NAME"]
        };
        let head = named.iter().chain(&["CPU(cores)", "MEMORY(bytes)"]).map(|&one| one.to_owned());
        let mut rows = vec![head.collect()];
        for pod in &self.pods {
            let (namespace, name) = pod.pod_ref.full();
            let row = |more: Option<&str>, used: &Used| -> Vec<String> {
                let names = [Some(namespace), Some(name), more].into_iter().flatten();
                names.map(str::to_owned).chain([used.cores(), used.mebibytes()]).collect()
            };
            if containers {
                rows.extend(pod.containers.iter().map(|one| row(Some(&one.name), &one.used)));
            } else {
                rows.push(row(None, &pod.used));
            }
        }
        rows
    }
}

impl PodRef {
    fn full(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

impl Node {
    fn row(&self, cpus: u64) -> Vec<Vec<String>> {
        let head = ["NODE", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"];
        let Used { cpu, memory } = &self.used;
        let percent = |part: Option<u64>, of: u64| match part {
            Some(part) if of > 0 => format!("{}%", part.saturating_mul(100) / of),
            Some(_) | None => UNKNOWN.to_owned(),
        };
        let all_cpus = cpus.saturating_mul(1_000_000_000);
        let used = memory.working_set_bytes.unwrap_or_default();
        let all_memory = memory.available_bytes.unwrap_or_default().saturating_add(used);
        let row = [
            self.node_name.clone(),
            self.used.cores(),
            percent(cpu.usage_nano_cores, all_cpus),
            self.used.mebibytes(),
            percent(memory.working_set_bytes, all_memory),
        ];
        vec![head.map(str::to_owned).to_vec(), row.to_vec()]
    }
}

const UNKNOWN: &str = "<unknown>";

impl Used {
    fn by(&self, by: SortBy) -> Option<u64> {
        match by {
            SortBy::Cpu => self.cpu.usage_nano_cores,
            SortBy::Memory => self.memory.working_set_bytes,
        }
    }

    /// Thousandths of a CPU, rounded up as kubectl does.
    fn cores(&self) -> String {
        let nanos = self.cpu.usage_nano_cores;
        nanos.map_or(UNKNOWN.to_owned(), |nanos| format!("{}m", nanos.div_ceil(1_000_000)))
    }

    fn mebibytes(&self) -> String {
        let bytes = self.memory.working_set_bytes;
        bytes.map_or(UNKNOWN.to_owned(), |bytes| format!("{}Mi", bytes / MIB))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const SUMMARY: &str = r#"{
        "node": {
            "nodeName": "n1", "startTime": "2026-11-25T00:00:00Z",
            "cpu": {"usageNanoCores": 500000001},
            "memory": {"workingSetBytes": 1073741824, "availableBytes": 3221225472}
        },
        "pods": [
            {
                "podRef": {"name": "web", "namespace": "default", "uid": "u"},
                "cpu": {"usageNanoCores": 1500000}, "memory": {"workingSetBytes": 10485760},
                "containers": [
                    {"name": "main", "cpu": {"usageNanoCores": 1}, "memory": {"workingSetBytes": 9437184}},
                    {"name": "new", "memory": {"workingSetBytes": 1048576}}
                ]
            },
            {
                "podRef": {"name": "db", "namespace": "default", "uid": "u"},
                "cpu": {"usageNanoCores": 1000}, "memory": {"workingSetBytes": 20971520},
                "containers": []
            }
        ]
    }"#;

    fn summary() -> Summary {
        serde_json::from_str(SUMMARY).unwrap()
    }

    #[test]
    fn pods_are_listed_by_name_or_by_what_they_use() {
        let text = |sort_by, containers| table(&summary().rows(sort_by, containers));
        assert_eq!(
            text(None, false),
            "NAMESPACE   NAME   CPU(cores)   MEMORY(bytes)\n\
             default     db     1m           20Mi\n\
             default     web    2m           10Mi\n"
        );
        assert!(text(Some(SortBy::Cpu), false).lines().nth(1).unwrap().contains("web"));
        assert!(text(Some(SortBy::Memory), false).lines().nth(1).unwrap().contains("db"));
        assert_eq!(
            text(None, true),
            "NAMESPACE   POD   NAME   CPU(cores)   MEMORY(bytes)\n\
             default     web   main   1m           9Mi\n\
             default     web   new    <unknown>    1Mi\n"
        );
    }

    #[test]
    fn the_node_has_parts_of_its_capacity() {
        assert_eq!(
            table(&summary().node.row(2)),
            "NODE   CPU(cores)   CPU(%)   MEMORY(bytes)   MEMORY(%)\n\
             n1     501m         25%      1024Mi          25%\n"
        );
        assert!(summary().has_rates());
    }
}
