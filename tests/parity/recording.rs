//! What one agent asks of the runtime while it runs the manifests and after they are removed.

use crate::{
    manifests::Case,
    requests::{Fields, Names, fields},
    support::{
        agent::{Agent, Settings},
        containerd::Containerd,
        cri::Cri,
        proxy::{Call, Proxy},
        slot::Slot,
        world::{Kind, full_name},
    },
    upstream::Kubelet,
};
use nodelet::cri::v1;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

/// What is compared: what makes, starts and ends things, and what asks for images. How often and
/// when each agent looks around and sweeps up is its own affair.
const COMPARED: [&str; 7] = [
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "StopPodSandbox",
    "ImageStatus",
    "PullImage",
];
const DEADLINE: Duration = Duration::from_secs(90);

/// Which agent.
#[derive(Clone, Copy)]
pub enum Side<'a> {
    /// This project.
    Nodelet,
    /// The upstream kubelet, with its binary.
    Kubelet(&'a Path),
}

/// Where the recordings are written.
pub fn directory() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("parity");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

enum Actor {
    Nodelet(Agent),
    Kubelet(Kubelet),
}

/// The requests of one agent, by `pod method container attempt`.
pub struct Recording {
    /// Each with its fields.
    pub requests: BTreeMap<String, Fields>,
}

impl Recording {
    /// Runs the manifests and removes them.
    pub fn make(side: Side<'_>, cases: &[Case]) -> Self {
        let slot = Slot::take();
        let containerd = Containerd::start(&slot);
        let socket = containerd.socket();
        let proxy = Proxy::start(&slot.dir().join("proxy.sock"), &socket);
        let cri = Cri::new(&socket);
        let actor = match side {
            Side::Nodelet => {
                let settings = Settings::for_kind(Kind::Real);
                Actor::Nodelet(Agent::prepare(&slot, proxy.socket(), &settings))
            }
            Side::Kubelet(binary) => {
                Actor::Kubelet(Kubelet::prepare(&slot, binary, proxy.socket(), &socket, ""))
            }
        };
        actor.start();
        for case in cases {
            let file = format!("{}.yaml", case.name());
            let beside = slot.dir().join(&file);
            std::fs::write(&beside, case.pod.text()).unwrap();
            std::fs::rename(&beside, actor.manifests().join(&file)).unwrap();
        }
        actor.wait("every pod has come as far as it gets", || missing(&proxy, cases));
        for case in cases {
            std::fs::remove_file(actor.manifests().join(format!("{}.yaml", case.name()))).unwrap();
        }
        actor.wait("no pod runs", || {
            let ready = |s: &v1::PodSandbox| s.state() == v1::PodSandboxState::SandboxReady;
            let sandboxes = cri.sandboxes().into_iter().filter(ready);
            let running = |c: &v1::Container| c.state() == v1::ContainerState::ContainerRunning;
            let containers = cri.containers().into_iter().filter(running);
            sandboxes.map(|s| s.id).chain(containers.map(|c| c.id)).collect()
        });
        let calls = proxy.calls();
        let recording = Self { requests: requests(&calls, &actor.names(&slot, &calls), cases) };
        recording.write(side);
        recording
    }

    /// Writes it down for people.
    fn write(&self, side: Side<'_>) {
        let mut text = String::new();
        for (request, fields) in &self.requests {
            writeln!(text, "{request}").unwrap();
            for (path, value) in fields {
                writeln!(text, "    {path} = {value:?}").unwrap();
            }
        }
        let name = match side {
            Side::Nodelet => "nodelet.txt",
            Side::Kubelet(_) => "kubelet.txt",
        };
        std::fs::write(directory().join(name), text).unwrap();
    }
}

impl Actor {
    fn start(&self) {
        match self {
            Self::Nodelet(agent) => agent.start(),
            Self::Kubelet(kubelet) => kubelet.start(),
        }
    }

    fn manifests(&self) -> PathBuf {
        match self {
            Self::Nodelet(agent) => agent.manifests(),
            Self::Kubelet(kubelet) => kubelet.manifests(),
        }
    }

    /// Waits until nothing is left of what `look` names.
    fn wait(&self, what: &str, mut look: impl FnMut() -> Vec<String>) {
        let log = || match self {
            Self::Nodelet(agent) => agent.log_tail(30),
            Self::Kubelet(kubelet) => kubelet.log_tail(30),
        };
        let left = crate::support::poll_until(DEADLINE, &mut look, Vec::is_empty);
        if let Err(left) = left {
            panic!("not within {DEADLINE:?}: {what}\nleft: {left:#?}\nlog: {}", log());
        }
    }

    /// What this agent calls by names of its own.
    fn names(&self, slot: &Slot, calls: &[Call]) -> Names {
        let (root, logs) = match self {
            Self::Nodelet(agent) => (agent.root_dir(), agent.pod_logs()),
            Self::Kubelet(kubelet) => (kubelet.root_dir(), kubelet.pod_logs()),
        };
        let mut names = Names::default();
        names.call(root.to_str().unwrap(), "root");
        names.call(logs.to_str().unwrap(), "logs");
        names.call(&slot.cgroup_root(), "cgroup root");
        for call in calls {
            if let Some(pod) = &call.pod {
                names.call(&pod.uid, "uid");
            }
            if call.method == "CreateContainer" {
                names.call(&call.request::<v1::CreateContainerRequest>().pod_sandbox_id, "sandbox");
            }
            if call.method == "StopPodSandbox" {
                names.call(&call.request::<v1::StopPodSandboxRequest>().pod_sandbox_id, "sandbox");
            }
            if matches!(call.method.as_str(), "StartContainer" | "StopContainer") {
                names.call(&call.request::<v1::StartContainerRequest>().container_id, "container");
            }
        }
        names
    }
}

impl Case {
    fn name(&self) -> &str {
        self.pod.value()["metadata"]["name"].as_str().unwrap()
    }

    /// Whether its containers end without being stopped. Then it is a matter of time whether an
    /// agent still sees one of them running when the manifest goes, and so whether it stops it.
    fn ends_by_itself(&self) -> bool {
        self.pod.value()["spec"]["restartPolicy"].as_str().is_some_and(|policy| policy != "Always")
    }

    fn is_sidecar(&self, container: &str) -> bool {
        let containers = self.pod.value()["spec"]["initContainers"].as_array();
        let mut containers = containers.into_iter().flatten();
        containers.any(|c| c["name"] == container && c["restartPolicy"] == "Always")
    }
}

/// Pods that have not started as many containers as they will.
fn missing(proxy: &Proxy, cases: &[Case]) -> Vec<String> {
    let calls = proxy.calls();
    let done = |case: &&Case| {
        let name = full_name(case.name());
        let count = |method: &str| {
            let fits = |call: &&Call| {
                call.method == method
                    && call.answered.is_some()
                    && call.pod.as_ref().is_some_and(|pod| pod.name == name)
            };
            calls.iter().filter(fits).count()
        };
        match case.starts {
            0 => count("PullImage") > 0,
            starts => count("StartContainer") >= starts,
        }
    };
    cases.iter().filter(|case| !done(case)).map(|case| case.name().to_owned()).collect()
}

/// The first request of each kind; what is repeated is repeated because it failed or was not
/// needed.
fn requests(calls: &[Call], names: &Names, cases: &[Case]) -> BTreeMap<String, Fields> {
    let wanted: BTreeMap<String, &Case> =
        cases.iter().map(|case| (full_name(case.name()), case)).collect();
    let attempts = attempts(calls);
    let mut requests = BTreeMap::new();
    for call in calls.iter().filter(|call| COMPARED.contains(&call.method.as_str())) {
        let mut fields = fields(call, names);
        let Some(pod) = &call.pod else {
            let image = fields.get("image.image").cloned().unwrap_or_default();
            requests.entry(format!("- {} {image}", call.method)).or_insert(fields);
            continue;
        };
        let Some(case) = wanted.get(&pod.name) else { continue };
        if call.method == "StopContainer" && case.ends_by_itself() {
            continue;
        }
        // How often a failing container was tried until the manifests were gone is a matter of
        // time.
        let attempt = attempts.get(&call.number).copied().unwrap_or(0);
        if attempt >= u32::try_from(case.starts.max(1)).unwrap() {
            continue;
        }
        for (path, value) in &mut fields {
            if path.ends_with("[kubernetes.io/config.seen]") {
                "<time>".clone_into(value);
            }
        }
        // A sidecar ends last, with what the others have left of the grace period.
        if call.method == "StopContainer" && case.is_sidecar(&pod.container) {
            fields.insert("timeout".to_owned(), "<what is left>".to_owned());
        }
        let name = case.name();
        let request = format!("{name} {} {} {attempt}", call.method, pod.container);
        requests.entry(request).or_insert(fields);
    }
    requests
}

/// Attempts of containers, by the number of the call that is about them.
fn attempts(calls: &[Call]) -> BTreeMap<usize, u32> {
    let mut by_call = BTreeMap::new();
    let mut started: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for call in calls {
        let Some(pod) = &call.pod else { continue };
        match call.method.as_str() {
            "CreateContainer" => {
                let config = call.request::<v1::CreateContainerRequest>().config;
                let attempt = config.and_then(|c| c.metadata).map_or(0, |m| m.attempt);
                by_call.insert(call.number, attempt);
            }
            "StartContainer" => {
                let id = call.request::<v1::StartContainerRequest>().container_id;
                let of_container = (pod.uid.clone(), pod.container.clone());
                let ids = started.entry(of_container).or_default();
                by_call.insert(call.number, u32::try_from(ids.len()).unwrap());
                ids.insert(id);
            }
            _ => {}
        }
    }
    by_call
}
