//! A machine with the agent on it as a user has it: the shipped unit, Debian's containerd,
//! configuration in `/etc/nodelet/config.d`, manifests in `/etc/nodelet/static-pods`.
//!
//! `nodelet status` runs on the host, on a Unix socket that leads to the agent's socket inside. In
//! the emulated machine the process would cost more than all that the test waits for.

use crate::{
    machine::{Hardware, Machine, SOON},
    processor::{self, processor},
    support::{agent, cri::Cri, manifest::Pod, pause, poll_until, status, tokio_runtime, world},
};
use nodelet::{
    cri::v1,
    model::{PressureView, Signal, SignalView, k8s},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fmt, fs,
    ops::Deref,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpStream, UnixListener},
    time::Instant,
};

/// Where manifests lie.
pub const MANIFESTS: &str = "/etc/nodelet/static-pods";

/// Who makes cgroups; containerd and the agent must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Directories.
    Cgroupfs,
    /// systemd's slices and scopes.
    Systemd,
}

/// What may differ between nodes.
#[derive(Clone, Debug)]
pub struct Options {
    /// The machine.
    pub hardware: Hardware,
    /// The cgroup driver of containerd and of the agent.
    pub driver: Driver,
    /// Lines of KubeletConfiguration.
    pub kubelet: String,
    /// More files of the host, with their paths in the machine, without the first slash.
    pub files: Vec<(PathBuf, &'static str)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            hardware: Hardware::default(),
            driver: Driver::Cgroupfs,
            kubelet: String::new(),
            files: Vec::new(),
        }
    }
}

/// A machine, what runs on it and how it is looked at.
pub struct Node {
    machine: Machine,
    begun: Instant,
    /// Where `nodelet status` on the host finds the agent's socket.
    run_dir: PathBuf,
    /// containerd, past the agent.
    pub cri: Cri,
}

impl Deref for Node {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl Node {
    /// Boots a machine that has containerd with the test's images and an agent that is neither
    /// enabled nor running.
    pub fn boot(options: &Options) -> Self {
        let begun = Instant::now();
        let machine = Machine::new(options.hardware.clone(), |dir| pack(dir, options));
        machine.power_on();
        machine.sh(&format!(
            "mkdir -p {MANIFESTS} && tar -xf /dev/nvme1n1 -C / && systemctl daemon-reload && \
             systemctl enable --no-reload --quiet --now containerd && \
             ctr -n k8s.io images import /var/tmp/images.tar && rm /var/tmp/images.tar && sync",
        ));
        let cri = Cri::at(&format!("http://127.0.0.1:{}", machine.cri_port()));
        let run_dir = machine.host_dir("run");
        forward(&run_dir.join("nodelet.sock"), machine.agent_port());
        let node = Self { machine, begun, run_dir, cri };
        node.wait_for_runtime();
        node.note("containerd answers and has the images");
        node
    }

    /// As [`Self::boot`], with the agent enabled and running.
    pub fn start(options: &Options) -> Self {
        let node = Self::boot(options);
        node.start_agent();
        node
    }

    /// Enables and starts the agent. systemd has read all units: reading them again costs the
    /// machine three seconds.
    #[track_caller]
    pub fn start_agent(&self) {
        self.sh("systemctl enable --no-reload --quiet --now nodelet");
    }

    /// Waits until containerd answers the test's own client.
    #[track_caller]
    pub fn wait_for_runtime(&self) {
        self.wait_until("containerd answers", || self.cri.answers(), |answers| *answers);
    }

    /// What `nodelet status -o json` says.
    ///
    /// # Errors
    /// What it says when it fails.
    pub fn status(&self) -> Result<Status, String> {
        let mut command = Command::new(agent::binary());
        command.args(["status", "-o", "json", "--run-dir"]).arg(&self.run_dir);
        let answer = command.output().map_err(|err| err.to_string())?;
        if !answer.status.success() {
            return Err(String::from_utf8_lossy(&answer.stderr).into_owned());
        }
        serde_json::from_slice(&answer.stdout)
            .map_err(|err| format!("{err}:\n{}", String::from_utf8_lossy(&answer.stdout)))
    }

    /// What the agent's socket answers for this path; empty when it does not.
    pub fn ask(&self, path: &str) -> String {
        status::get(&self.run_dir.join("nodelet.sock"), path).unwrap_or_default()
    }

    /// Waits until the status is as wanted; gives it.
    #[track_caller]
    pub fn wait(&self, what: &str, accept: impl FnMut(&Status) -> bool) -> Status {
        self.wait_for(SOON, what, accept)
    }

    /// As [`Self::wait`], with a deadline of its own.
    #[track_caller]
    pub fn wait_for(
        &self,
        deadline: Duration,
        what: &str,
        mut accept: impl FnMut(&Status) -> bool,
    ) -> Status {
        let wanted = |seen: &Result<Status, String>| seen.as_ref().is_ok_and(&mut accept);
        // The agent in the emulated machine needs up to half a second for an answer.
        let look = || {
            pause(Duration::from_secs(1));
            self.status()
        };
        match poll_until(deadline, look, wanted) {
            Ok(Ok(status)) => status,
            last => panic!("not within {deadline:?}: {what}\nlast seen: {last:?}"),
        }
    }

    /// Waits until something is true that is not in the status.
    #[track_caller]
    pub fn wait_until<T: fmt::Debug>(
        &self,
        what: &str,
        mut look: impl FnMut() -> T,
        accept: impl FnMut(&T) -> bool,
    ) -> T {
        let look = || {
            pause(Duration::from_millis(300));
            look()
        };
        match poll_until(SOON, look, accept) {
            Ok(value) => value,
            Err(last) => panic!("not within {SOON:?}: {what}\nlast seen: {last:#?}"),
        }
    }

    /// Prints how long it took until here.
    pub fn note(&self, what: &str) {
        println!("{:6.1} s  {what}", self.begun.elapsed().as_secs_f32());
    }

    /// Waits until all these pods run, every container ready, and there are no others.
    #[track_caller]
    pub fn wait_running<N: AsRef<str>>(&self, pods: &[N]) -> Status {
        let all = |status: &Status| {
            status.pods.len() == pods.len() && pods.iter().all(|pod| status.runs(pod.as_ref()))
        };
        self.wait_for(SOON * 2, "the pods run", all)
    }

    /// Drops manifests into the directory: `NAME.yaml`.
    #[track_caller]
    pub fn drop_pods(&self, pods: &[Pod]) {
        let mut script = format!("set -e; cd {MANIFESTS}\n");
        for pod in pods {
            let (name, text) = (pod.value()["metadata"]["name"].as_str().unwrap(), pod.text());
            script.push_str(&format!(
                "cat >.{name} <<'END-OF-FILE'\n{text}\nEND-OF-FILE\nmv .{name} {name}.yaml\n"
            ));
        }
        self.sh(&script);
    }

    /// The running containers, by pod and container name (`web/main`).
    #[track_caller]
    pub fn running(&self) -> BTreeMap<String, Running> {
        let mut running = BTreeMap::new();
        for container in self.cri.containers() {
            if container.state() != v1::ContainerState::ContainerRunning {
                continue;
            }
            let label = |name: &str| container.labels[&format!("io.kubernetes.{name}")].clone();
            let pod = label("pod.name");
            let pod = pod.strip_suffix(&format!("-{}", agent::NODE_NAME)).unwrap_or(&pod);
            let name = format!("{pod}/{}", label("container.name"));
            let seen = Running {
                restarts: container.metadata.as_ref().unwrap().attempt,
                sandbox: container.pod_sandbox_id.clone(),
                id: container.id,
            };
            let twice = running.insert(name.clone(), seen);
            assert!(twice.is_none(), "{name} runs twice: {twice:?} and {:?}", running[&name]);
        }
        running
    }

    /// Ready sandboxes: pod to id. No pod may have two.
    #[track_caller]
    pub fn ready_sandboxes(&self) -> BTreeMap<String, String> {
        let mut ready = BTreeMap::new();
        for sandbox in self.cri.sandboxes() {
            if sandbox.state() == v1::PodSandboxState::SandboxReady {
                let name = sandbox.metadata.as_ref().unwrap().name.clone();
                let twice = ready.insert(name.clone(), sandbox.id);
                assert!(twice.is_none(), "{name} has two ready sandboxes");
            }
        }
        ready
    }

    /// A property of a unit.
    #[track_caller]
    pub fn property(&self, unit: &str, name: &str) -> String {
        self.sh(&format!("systemctl show --value -p {name} {unit}")).trim().to_owned()
    }

    /// How many processes the kernel has killed since boot, by a cgroup's limit or because there
    /// was no memory left.
    #[track_caller]
    pub fn kernel_kills(&self) -> u64 {
        self.sh("grep -oP '^oom_kill \\K.*' /proc/vmstat").trim().parse().unwrap()
    }

    /// The agent's process id by systemd; 0 when it does not run.
    #[track_caller]
    pub fn agent_pid(&self) -> u32 {
        self.property("nodelet", "MainPID").parse().unwrap()
    }

    /// Removes every manifest and checks that all pods go without a trace in containerd and in the
    /// agent's directories.
    #[track_caller]
    pub fn finish(self) {
        self.sh(&format!("rm -f {MANIFESTS}/*.yaml"));
        self.wait_for(SOON * 2, "every pod is gone", |status| status.pods.is_empty());
        let left = "ls -d /var/lib/nodelet/pods/* /var/lib/nodelet/nodelet/pods/* /var/log/pods/* \
            /var/log/containers/* 2>/dev/null; grep -o '/var/lib/nodelet/pods[^ ]*' /proc/self/mountinfo; \
            find /sys/fs/cgroup -type d -name '*pod[0-9a-f][0-9a-f][0-9a-f][0-9a-f]*'; ctr -n k8s.io containers ls -q; true";
        self.wait_until("nothing is left behind", || self.sh(left), String::is_empty);
    }
}

/// A running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its id.
    pub id: String,
    /// Its sandbox's id.
    pub sandbox: String,
    /// How often it was restarted.
    pub restarts: u32,
}

/// One reading of `nodelet status -o json`.
#[derive(serde::Deserialize)]
pub struct Status {
    /// Every pod.
    #[serde(rename = "items")]
    pub pods: Vec<k8s::Pod>,
    /// The node, its manifests and events.
    #[serde(rename = "nodelet")]
    pub node: Value,
}

impl Status {
    /// The pod that was named `name` in its manifest.
    pub fn pod(&self, name: &str) -> Option<&k8s::Pod> {
        let full = world::full_name(name);
        self.pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(&full))
    }

    /// The pod's phase; empty when there is no such pod.
    pub fn phase(&self, name: &str) -> &str {
        let status = self.pod(name).and_then(|pod| pod.status.as_ref());
        status.and_then(|status| status.phase.as_deref()).unwrap_or_default()
    }

    /// Whether the pod runs, every container ready.
    pub fn runs(&self, name: &str) -> bool {
        let mut containers = self.containers(name).peekable();
        self.phase(name) == "Running"
            && containers.peek().is_some()
            && containers.all(|container| container.ready)
    }

    /// The reason of the pod's status; empty when it has none.
    pub fn reason(&self, name: &str) -> &str {
        let status = self.pod(name).and_then(|pod| pod.status.as_ref());
        status.and_then(|status| status.reason.as_deref()).unwrap_or_default()
    }

    /// Whether a condition of the node holds: `DiskPressure`.
    pub fn holds(&self, condition: &str) -> bool {
        self.node["conditions"]["pressure"][condition]["holds"] == true
    }

    /// Whether there is an event with this reason whose message contains `about`.
    pub fn has_event(&self, reason: &str, about: &str) -> bool {
        let told = |event: &Value| {
            event["reason"] == reason
                && event["message"].as_str().is_some_and(|message| message.contains(about))
        };
        self.node["events"].as_array().is_some_and(|events| events.iter().any(told))
    }

    /// What may run short, and what was done about it.
    pub fn pressure(&self) -> PressureView {
        serde_json::from_value(self.node["pressure"].clone()).unwrap()
    }

    /// A signal that a threshold watches.
    pub fn signal(&self, signal: Signal) -> SignalView {
        let found = self.pressure().signals.into_iter().find(|seen| seen.signal == signal);
        found.unwrap_or_else(|| panic!("no threshold watches {}", signal.name()))
    }

    /// Restart count of a container; -1 when it is unknown.
    pub fn restarts(&self, pod: &str, container: &str) -> i32 {
        let found = self.containers(pod).find(|status| status.name == container);
        found.map_or(-1, |status| status.restart_count)
    }

    fn containers(&self, pod: &str) -> impl Iterator<Item = &k8s::ContainerStatus> {
        let status = self.pod(pod).and_then(|pod| pod.status.as_ref());
        status.into_iter().flat_map(|status| status.container_statuses.iter().flatten())
    }
}

/// A few lines that a person can read in a failed test's output.
impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for key in ["runtime", "pleg", "warnings", "foreign"] {
            writeln!(f, "{key}: {}", self.node[key])?;
        }
        for source in self.node["sources"].as_array().into_iter().flatten() {
            writeln!(f, "source {}: {}", source["location"], source["error"])?;
        }
        for pod in &self.pods {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            writeln!(f, "pod {name}: {}", serde_json::to_string(&pod.status).unwrap_or_default())?;
        }
        for event in self.node["events"].as_array().into_iter().flatten().rev().take(12) {
            writeln!(f, "event {} {} {}", event["reason"], event["message"], event["count"])?;
        }
        Ok(())
    }
}

/// Connects every client of a Unix socket on the host with a TCP port, until the runtime of the
/// tests ends.
fn forward(socket: &Path, port: u16) {
    let _in_runtime = tokio_runtime().enter();
    let listener = UnixListener::bind(socket).unwrap();
    tokio_runtime().spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio_runtime().spawn(async move {
                // A machine that is off, and a connection that breaks, close the client's.
                if let Ok(mut agent) = TcpStream::connect(("127.0.0.1", port)).await {
                    let _broken = copy_bidirectional(&mut client, &mut agent).await;
                }
            });
        }
    });
}

/// Makes the archive of what belongs on the node.
fn pack(dir: &Path, options: &Options) -> PathBuf {
    let files = dir.join("files");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = |path: &str| {
        let path = files.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    };
    let unit = source.join("systemd/nodelet.service");
    fs::copy(unit, place("etc/systemd/system/nodelet.service")).unwrap();
    fs::copy(processor::images(), place("var/tmp/images.tar")).unwrap();
    for (file, path) in &options.files {
        fs::copy(file, place(path)).unwrap();
    }
    let driver = match options.driver {
        Driver::Cgroupfs => "cgroupfs",
        Driver::Systemd => "systemd",
    };
    let containerd =
        source.join(format!("tests/machine/guest/etc/containerd/config-{driver}.toml"));
    fs::copy(containerd, place("etc/containerd/config.toml")).unwrap();
    // What fits into a small emulated machine is not what the other tests are about. A drop-in is
    // merged over the defaults, so an empty map would leave them.
    let eviction = match options.kubelet.contains("evictionHard") {
        true => "",
        false => {
            "evictionHard: { memory.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, \
             imagefs.inodesFree: 0% }\n"
        }
    };
    let config = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         cgroupDriver: {driver}\n{eviction}{}\n",
        options.kubelet
    );
    fs::write(place("etc/nodelet/config.d/10-test.conf"), config).unwrap();
    fs::write(place("etc/default/nodelet"), "NODELET_ARGS=--v=2\n").unwrap();
    // Without what only a debugger reads, it is a third as large.
    let binary = place("usr/local/bin/nodelet");
    let mut strip = Command::new(processor().strip.command);
    strip.arg("-o").arg(&binary).arg(processor::agent());
    assert!(strip.status().unwrap().success(), "strip failed");
    let archive = dir.join("files.tar");
    let tar = ["--owner=0", "--group=0", "-cf"];
    let made = Command::new("tar").args(tar).arg(&archive).arg("-C").arg(&files).arg(".").status();
    assert!(made.unwrap().success(), "tar failed");
    fs::remove_dir_all(&files).unwrap();
    archive
}
