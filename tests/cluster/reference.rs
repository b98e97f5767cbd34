//! What the upstream kubelet makes of itself in a cluster: its Node, lease, mirror pod and events,
//! and what it asked the API server for on the way. A field of nodelet's is right when it is as
//! here.

use super::{
    controlplane::{ControlPlane, Options, link::Link},
    objects::{self, LEASES, NODES, PODS},
    programs,
    support::{
        self,
        agent::{NODE_NAME, Settings},
        containerd::Containerd,
        manifest::Pod,
        poll_until, say_loudly,
        skips::skip_without,
        slot::Slot,
        world::{Kind, World, full_name},
    },
    upstream::{self, Kubelet},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::Instant;

const DEADLINE: Duration = Duration::from_secs(120);

/// What a node made at the API server.
pub struct Objects {
    /// Its Node.
    pub node: Value,
    /// Its lease.
    pub lease: Value,
    /// The mirror of the static pod `web`.
    pub mirror: Value,
    /// Its events, of every namespace.
    pub events: Vec<Value>,
    /// How often it asked for what, with names of objects left out, and bytes sent.
    pub requests: BTreeMap<String, (u64, u64)>,
}

impl Objects {
    /// Waits until a node and its static pod `web` are Ready, and takes what there is then.
    ///
    /// # Errors
    /// With what is missing.
    pub fn take(cluster: &ControlPlane, link: &Link) -> Result<Self, String> {
        let node_path = format!("{NODES}/{NODE_NAME}");
        let mirror_path = format!("{PODS}/{}", full_name("web"));
        let lease_path = format!("{LEASES}/{NODE_NAME}");
        // A lease has no conditions: it is there or it is not.
        let is_well = |path: &str| {
            let object = cluster.admin.find(path)?;
            let is_ready = || objects::condition(&object, "Ready").map(|found| found.0 == "True");
            // A new Node is tainted as not ready until the controllers have seen it Ready.
            (path == lease_path || is_ready()? && object["spec"]["taints"].is_null()).then_some(())
        };
        let missing = || -> Vec<&str> {
            let mut paths = vec![node_path.as_str(), mirror_path.as_str(), lease_path.as_str()];
            paths.retain(|path| is_well(path).is_none());
            paths
        };
        poll_until(DEADLINE, missing, Vec::is_empty)
            .map_err(|left| format!("not there or not Ready: {left:?}"))?;
        let reported = || {
            let events = cluster.admin.get("/api/v1/events")["items"].clone();
            events.as_array().cloned().unwrap_or_default()
        };
        let events = poll_until(DEADLINE, reported, |events| {
            let last = ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"];
            let mut all = last.iter().chain(["Started"].iter());
            all.all(|reason| events.iter().any(|event| event["reason"] == **reason))
        });
        Ok(Self {
            node: cluster.admin.get(&node_path),
            lease: cluster.admin.get(&lease_path),
            mirror: cluster.admin.get(&mirror_path),
            events: events.map_err(|events| format!("events: {events:#?}"))?,
            requests: requests(link),
        })
    }

    /// Writes all of it to a directory, for people.
    pub fn write(&self, name: &str) -> PathBuf {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("cluster").join(name);
        fs::create_dir_all(&dir).unwrap();
        for (file, value) in [
            ("node.json", &self.node),
            ("lease.json", &self.lease),
            ("mirror.json", &self.mirror),
            ("events.json", &Value::from(self.events.clone())),
        ] {
            fs::write(dir.join(file), serde_json::to_string_pretty(value).unwrap()).unwrap();
        }
        let lines = self
            .requests
            .iter()
            .map(|(what, (count, bytes))| format!("{count:5} {bytes:8} {what}\n"));
        fs::write(dir.join("requests.txt"), lines.collect::<String>()).unwrap();
        dir
    }
}

fn requests(link: &Link) -> BTreeMap<String, (u64, u64)> {
    let mut counted: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for request in link.http.requests() {
        let status = request.status.map_or("-".to_owned(), |status| status.to_string());
        let query: Vec<&str> = request
            .query
            .split('&')
            .filter(|pair| {
                !["resourceVersion=", "timeout", "limit="].iter().any(|s| pair.starts_with(s))
            })
            .collect();
        let what = format!(
            "{} {} {} [{}] {}",
            request.verb,
            request.path,
            query.join("&"),
            request.content_type,
            status
        );
        let entry = counted.entry(what).or_default();
        *entry = (entry.0 + 1, entry.1 + request.body.len() as u64);
    }
    counted
}

/// What the upstream kubelet makes, on a control plane and a containerd of its own.
fn of_kubelet(programs: &Path, binary: &Path) -> Objects {
    let slot = Slot::take();
    let options = Options::default().controller_manager(&[]);
    let cluster = ControlPlane::start(&slot, programs, &options);
    let link = Link::start(&slot, &cluster, 0);
    let containerd = Containerd::start(&slot);
    let socket = containerd.socket();
    let mut kubelet = Kubelet::prepare(&slot, binary, &socket, &socket, "");
    kubelet.join(&cluster.node_kubeconfig(NODE_NAME, link.address()));
    fs::write(kubelet.manifests().join("web.yaml"), Pod::running("web").text()).unwrap();
    let begun = Instant::now();
    kubelet.start();
    let made = Objects::take(&cluster, &link)
        .unwrap_or_else(|err| panic!("{err}\n{}", kubelet.log_tail(30)));
    report("the upstream kubelet", "kubelet", &made, begun);
    assert_eq!(made.node["status"]["nodeInfo"]["kubeletVersion"], upstream::version(binary));
    // Its pods are gone with its containerd; it would only complain.
    kubelet.kill();
    made
}

/// What nodelet makes in the same place.
fn of_nodelet(programs: &Path) -> Objects {
    let world = World::prepare(Kind::Real, &Settings::for_kind(Kind::Real));
    let options = Options::default().controller_manager(&[]);
    let cluster = ControlPlane::start(&world.slot, programs, &options);
    let link = Link::start(&world.slot, &cluster, 0);
    let kubeconfig = cluster.node_kubeconfig(NODE_NAME, link.address());
    world.agent.join(&kubeconfig);
    world.drop_pod(&Pod::running("web"));
    let begun = Instant::now();
    world.agent.start();
    let made = Objects::take(&cluster, &link)
        .unwrap_or_else(|err| panic!("{err}\n{}", world.agent.log_tail(30)));
    report("nodelet", "nodelet", &made, begun);
    world.finish();
    made
}

fn report(who: &str, name: &str, made: &Objects, begun: Instant) {
    let took = begun.elapsed();
    let dir = made.write(name);
    say_loudly(&format!(
        "{who} and its pod are Ready and reported after {took:.1?}; what it made is in {}",
        dir.display()
    ));
    assert_eq!(made.lease["spec"]["holderIdentity"], NODE_NAME);
    assert_eq!(made.lease["metadata"]["ownerReferences"][0]["uid"], made.node["metadata"]["uid"]);
    assert_eq!(made.mirror["metadata"]["ownerReferences"][0]["uid"], made.node["metadata"]["uid"]);
    assert_eq!(made.mirror["status"]["phase"], "Running");
}

/// What differs from one run to the next, whoever it is.
const VOLATILE: [&str; 18] = [
    "uid",
    "resourceVersion",
    "managedFields",
    "creationTimestamp",
    "lastHeartbeatTime",
    "lastTransitionTime",
    "startTime",
    "startedAt",
    "containerID",
    "imageID",
    "renewTime",
    "podIP",
    "podIPs",
    "kubernetes.io/config.hash",
    "kubernetes.io/config.mirror",
    "kubernetes.io/config.seen",
    "node.alpha.kubernetes.io/ttl",
    // In the order of their sizes, which differ by a few bytes.
    "images",
];

/// Where they differ, and why that is right (docs/cluster.md).
const DIFFERENT: [(&str, &str); 5] = [
    ("node.status.daemonEndpoints", "each has a port of its own"),
    ("node.status.declaredFeatures", "WebSockets are left to the API server"),
    ("node.status.nodeInfo.kubeletVersion", "another agent"),
    ("mirror.metadata.annotations.nodelet.dev/revision", "shown for people"),
    ("mirror.status.resources", "of a pod without resources of its own"),
];

/// Paths at which two objects differ, with both values.
fn differences(path: &str, theirs: &Value, ours: &Value, found: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys.into_iter().filter(|key| !VOLATILE.contains(&key.as_str())) {
                differences(&format!("{path}.{key}"), &theirs[key], &ours[key], found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}.{index}"), a, b, found);
            }
        }
        _ if theirs == ours => {}
        _ => found.push(format!("{path}: kubelet {theirs}, nodelet {ours}")),
    }
}

#[test]
fn nodelet_makes_what_the_upstream_kubelet_makes() {
    if support::skip_without_containerd() {
        return;
    }
    let (Some(programs), Some(binary)) = (programs(), upstream::binary()) else {
        skip_without(&[(false, "an upstream kubelet or Go to build it")]);
        return;
    };
    let (theirs, ours) = (of_kubelet(&programs, &binary), of_nodelet(&programs));
    let mut found = Vec::new();
    differences("node", &theirs.node, &ours.node, &mut found);
    differences("lease", &theirs.lease, &ours.lease, &mut found);
    differences("mirror", &theirs.mirror, &ours.mirror, &mut found);
    let (known, unknown): (Vec<&String>, Vec<&String>) =
        found.iter().partition(|line| DIFFERENT.iter().any(|(path, _)| line.starts_with(path)));
    assert_eq!(unknown, Vec::<&String>::new());
    let mut paths = DIFFERENT.iter().map(|(path, _)| path);
    let alike = paths.find(|path| !known.iter().any(|line| line.starts_with(**path)));
    assert_eq!(alike, None, "they do not differ there");
    // Every kind of event of the kubelet's node and pod is one of ours, too.
    let reasons = |objects: &Objects| -> std::collections::BTreeSet<String> {
        let of_kubelet = |event: &&Value| event["source"]["component"] == "kubelet";
        let reason = |event: &Value| event["reason"].as_str().unwrap_or_default().to_owned();
        objects.events.iter().filter(of_kubelet).map(reason).collect()
    };
    let missing: Vec<String> = reasons(&theirs)
        .difference(&reasons(&ours))
        // A Node that is registered as Ready does not become Ready later.
        .filter(|reason| reason.as_str() != "NodeReady")
        .cloned()
        .collect();
    assert_eq!(missing, Vec::<String>::new(), "events");
}
