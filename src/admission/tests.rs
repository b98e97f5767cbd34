#![allow(clippy::unwrap_used, reason = "tests")]

mod after;
mod places;
mod preemption;
mod properties;
mod reasons;
mod resize;

use super::*;
use crate::model::{EventKind, EventTarget, Evicted, HoldStop, Origin, Pressure, SourceKind};
use serde_json::{Value, json};

const GI: i64 = 1 << 30;
const CRITICAL: i32 = crate::model::SYSTEM_CRITICAL_PRIORITY;

/// A node with room for 4 CPUs, 8 GiB and 5 pods, on which nothing runs short.
struct Node {
    facts: NodeFacts,
    scheduling: Option<NodeScheduling>,
    runtime: RuntimeView,
    pressure: PressureOrders,
    before: Admissions,
    pods: Vec<Subject>,
    leaving: Vec<Leaving>,
}

fn node() -> Node {
    let labels = node_labels("n1", "x86_64", &BTreeMap::new());
    Node {
        facts: NodeFacts {
            name: "n1".into(),
            labels: labels.clone(),
            allocatable: Allocatable {
                cpu_milli: 4000,
                memory_bytes: 8 * GI,
                ephemeral_storage_bytes: Some(10 * GI),
                hugepages: BTreeMap::from([("hugepages-2Mi".to_owned(), GI)]),
                pods: 5,
            },
            allowed_unsafe_sysctls: vec!["net.core.*".to_owned(), "kernel.msgmax".to_owned()],
            kernel: Some((6, 1)),
            app_armor: true,
            spares_static_pods: false,
        },
        scheduling: Some(NodeScheduling {
            labels,
            read_at: Duration::MAX,
            ..NodeScheduling::default()
        }),
        runtime: RuntimeView { name: "containerd".to_owned(), ..RuntimeView::default() },
        pressure: PressureOrders { known: true, ..PressureOrders::default() },
        before: Admissions::default(),
        pods: Vec::new(),
        leaving: Vec::new(),
    }
}

/// What a failed property shows.
impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (conditions, evicted) = (&self.pressure.conditions, self.pressure.evicted.keys());
        writeln!(f, "{:?} {conditions:?}", self.facts.allocatable)?;
        writeln!(f, "evicted: {}", evicted.map(|key| &*key.name).collect::<Vec<_>>().join(" "))?;
        let leaving = self.leaving.iter().map(|gone| (&gone.key, &gone.pod, "leaving".to_owned()));
        let pods = self.pods.iter().map(|s| (&s.pod.key, &s.pod.pod, format!("{:?}", s.standing)));
        for (key, pod, standing) in pods.chain(leaving) {
            let spec = pod.spec.as_ref().unwrap();
            let container = &spec.containers[0];
            let resources = serde_json::to_string(&container.resources).unwrap();
            let ports = container.ports.iter().flatten().filter_map(|port| port.host_port);
            let (priority, ports): (_, Vec<i32>) = (priority_of(pod), ports.collect());
            writeln!(f, "{} {standing} priority {priority} {resources} {ports:?}", key.name)?;
        }
        write!(f, "now: {}", self.admits().join("\n"))
    }
}

impl Node {
    fn input(&self) -> Input<'_> {
        Input {
            pods: &self.pods,
            leaving: &self.leaving,
            node: &self.facts,
            scheduling: self.scheduling.as_ref(),
            runtime: &self.runtime,
            pressure: &self.pressure,
            before: &self.before,
        }
    }

    fn with(mut self, standing: Standing, pods: impl IntoIterator<Item = Arc<DesiredPod>>) -> Self {
        self.pods.extend(pods.into_iter().map(|pod| Subject {
            pod,
            standing,
            waits: None,
            resize_of: None,
        }));
        self
    }

    fn wants(self, pods: impl IntoIterator<Item = Arc<DesiredPod>>) -> Self {
        self.with(Standing::New { since: None }, pods)
    }

    fn runs(self, pods: impl IntoIterator<Item = Arc<DesiredPod>>) -> Self {
        self.with(Standing::Running, pods)
    }

    fn short_of(mut self, conditions: &[Pressure]) -> Self {
        self.pressure.conditions = conditions.iter().copied().collect();
        self
    }

    fn leaves(mut self, pod: &DesiredPod) -> Self {
        let (key, pod) = (pod.key.clone(), Arc::clone(&pod.pod));
        self.leaving.push(Leaving { key, pod, undecided: false });
        self
    }

    fn may_leave(mut self, pod: &DesiredPod) -> Self {
        self = self.leaves(pod);
        self.leaving.last_mut().unwrap().undecided = true;
        self
    }

    /// The decisions, each in a line, and the events.
    fn admits(&self) -> Vec<String> {
        let Ruling { admissions, events, .. } = admit(&self.input());
        let decisions = admissions.iter().map(|(key, admission)| {
            let decision = match &admission.decision {
                Decision::Admitted => "admitted".to_owned(),
                Decision::Waits(message) => format!("waits: {message}"),
                Decision::Held(hold) => format!("{}: {}", hold.reason, hold.message),
            };
            format!("{} {decision}", key.name)
        });
        let told = events.iter().map(|event| match &event.target {
            EventTarget::Pod { key, field_path: None, .. } if event.kind == EventKind::Warning => {
                format!("event {} {}: {}", key.name, event.reason, event.message)
            }
            other @ (EventTarget::Node | EventTarget::Pod { .. }) => panic!("{other:?}"),
        });
        decisions.chain(told).collect()
    }

    /// The same; the next call is told what was decided.
    fn again(&mut self) -> Vec<String> {
        let lines = self.admits();
        self.before = admit(&self.input()).admissions;
        lines
    }

    /// The Node object has this label besides its others.
    fn labeled(mut self, key: &str, value: &str) -> Self {
        let scheduling = self.scheduling.get_or_insert_default();
        scheduling.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The Node object has these taints, as in `kubectl taint`: `key=value:effect`.
    fn tainted(mut self, taints: &[&str]) -> Self {
        let taint = |text: &&str| {
            let (key, effect) = text.split_once(':').unwrap();
            let (key, value) = key.split_once('=').unwrap_or((key, ""));
            k8s::Taint {
                key: key.to_owned(),
                value: Some(value.to_owned()),
                effect: effect.to_owned(),
                time_added: None,
            }
        };
        let scheduling = self.scheduling.get_or_insert_default();
        scheduling.taints = taints.iter().map(taint).collect();
        self
    }

    fn set(&mut self, name: &str, standing: Standing) {
        let subject = self.pods.iter_mut().find(|s| &*s.pod.key.name == name).unwrap();
        subject.standing = standing;
    }

    fn remove(&mut self, name: &str) {
        self.pods.retain(|subject| &*subject.pod.key.name != name);
    }
}

/// A pod of one container; `spec` is laid over it, `metadata` in it over its metadata.
fn pod(name: &str, spec: Value) -> Arc<DesiredPod> {
    let mut spec = spec;
    let metadata = spec.as_object_mut().unwrap().remove("metadata").unwrap_or(json!({}));
    let mut whole = json!({
        "terminationGracePeriodSeconds": 20, "containers": [{"name": "c", "image": "i"}],
    });
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    let pod: k8s::Pod =
        serde_json::from_value(json!({"metadata": metadata, "spec": whole})).unwrap();
    Arc::new(DesiredPod {
        key: PodKey::new("default", name),
        uid: format!("uid-{name}").into(),
        revision: "r".into(),
        pod: Arc::new(pod),
        origin: Origin { source: SourceKind::File, location: "/m".into(), document: 0, line: 1 },
    })
}

/// A pod that requests CPU and memory.
fn asks(name: &str, priority: i32, cpu: &str, memory: &str) -> Arc<DesiredPod> {
    let requests = json!({"cpu": cpu, "memory": memory});
    let container = json!({"name": "c", "image": "i", "resources": {"requests": requests}});
    pod(name, json!({"priority": priority, "containers": [container]}))
}

/// A pod of which everything that it requests is also its limit.
fn guaranteed(name: &str, priority: i32, cpu: &str, memory: &str) -> Arc<DesiredPod> {
    let amounts = json!({"cpu": cpu, "memory": memory});
    let resources = json!({"requests": amounts, "limits": amounts});
    let container = json!({"name": "c", "image": "i", "resources": resources});
    pod(name, json!({"priority": priority, "containers": [container]}))
}

fn port(name: &str, priority: i32, port: i32) -> Arc<DesiredPod> {
    let ports = json!([{"containerPort": 80, "hostPort": port}]);
    let container = json!({"name": "c", "image": "i", "ports": ports});
    pod(name, json!({"priority": priority, "containers": [container]}))
}

fn waiting(seconds: u64) -> Standing {
    Standing::New { since: Some(Duration::from_secs(seconds)) }
}

fn evicted(node: &mut Node, pod: &DesiredPod, uid: &str) {
    let hold = Hold {
        reason: "Evicted".to_owned(),
        message: "The node was low on resource: memory. ".to_owned(),
        stop: HoldStop::AtOnce,
        disruption: None,
    };
    let record = Evicted { uid: uid.into(), hold: Arc::new(hold) };
    node.pressure.evicted.insert(pod.key.clone(), record);
}
