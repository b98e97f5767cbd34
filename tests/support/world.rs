//! A world: one agent, one runtime, the proxy between them, and what a test does to them.

use super::{
    agent::{Agent, Settings},
    containerd::{Containerd, Suite},
    cri::Cri,
    fake::Fake,
    manifest::Pod,
    poll_until,
    proxy::{Call, Proxy},
    slot::Slot,
    status::Status,
    stays,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use nodelet::cri::v1;
use std::{cell::Cell, fs, path::PathBuf, time::Duration};

/// What a containerd that dies within a call may forget.
const FORGOTTEN: [&str; 9] = [
    // Of a container that was being made: containerd keeps it by a lease of its own, which ends
    // after a day.
    "snapshot ",
    "empty shim process ",
    "empty runc state ",
    "mount ",
    "network namespace ",
    "pod address ",
    "CNI result ",
    "iptables rule ",
    "network interface ",
];

/// Long enough for one step of anything on a busy machine with two cores.
pub const SOON: Duration = Duration::from_secs(50);

/// Which runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The stateful fake.
    Fake,
    /// A private containerd: the installed one.
    Real,
    /// A private containerd of a Debian release.
    Debian(Suite),
}

/// The runtime behind the proxy.
pub enum Runtime {
    /// The stateful fake.
    Fake(Fake),
    /// A private containerd.
    Real(Containerd),
}

/// Everything that a scenario acts on. Fields are dropped in this order.
pub struct World {
    /// The agent under test.
    pub agent: Agent,
    /// Between agent and runtime.
    pub proxy: Proxy,
    /// Looks at the runtime past the proxy.
    pub cri: Cri,
    /// The runtime.
    pub runtime: Runtime,
    /// The names that all of it carries.
    pub slot: Slot,
    kind: Kind,
    /// Whether containerd was killed in the middle of a call: it forgets things then, see
    /// [`Self::leaks`].
    runtime_forgets: Cell<bool>,
    /// Whether a sandbox died on its own.
    sandbox_died: Cell<bool>,
}

impl World {
    /// A world in which the agent is not started yet.
    pub fn prepare(kind: Kind, settings: &Settings) -> Self {
        let slot = Slot::take();
        let runtime = Runtime::start(kind, &slot);
        let socket = runtime.socket();
        let proxy = Proxy::start(&slot.dir().join("proxy.sock"), &socket);
        let agent = Agent::prepare(&slot, proxy.socket(), settings);
        Self {
            agent,
            proxy,
            cri: Cri::new(&socket),
            runtime,
            slot,
            kind,
            runtime_forgets: Cell::default(),
            sandbox_died: Cell::default(),
        }
    }

    /// A world in which the agent runs.
    pub fn start(kind: Kind) -> Self {
        Self::start_with(kind, &Settings::for_kind(kind))
    }

    /// A world in which an agent with settings of its own runs.
    pub fn start_with(kind: Kind, settings: &Settings) -> Self {
        let world = Self::prepare(kind, settings);
        world.agent.start();
        world
    }

    /// Writes a manifest as a careful person does: beside, then renamed.
    pub fn write(&self, file: &str, content: &str) {
        let path = self.manifest_path(file);
        let beside = path.with_file_name(format!(".{file}.new"));
        fs::write(&beside, content).unwrap();
        fs::rename(&beside, &path).unwrap();
    }

    /// Drops a pod's manifest into the directory: `NAME.yaml`.
    pub fn drop_pod(&self, pod: &Pod) {
        let name = pod.value()["metadata"]["name"].as_str().unwrap();
        self.write(&format!("{name}.yaml"), &pod.text());
    }

    /// Deletes a manifest.
    pub fn remove(&self, file: &str) {
        fs::remove_file(self.manifest_path(file)).unwrap();
    }

    /// Where a manifest lies.
    pub fn manifest_path(&self, file: &str) -> PathBuf {
        self.agent.manifests().join(file)
    }

    /// Waits until the agent's status is as wanted; gives it.
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
        let seen = poll_until(
            deadline,
            || self.agent.status(),
            |status| status.as_ref().is_ok_and(&mut accept),
        );
        match seen {
            Ok(Ok(status)) => status,
            Ok(Err(never)) | Err(Err(never)) => self.fail(deadline, what, &never),
            Err(Ok(last)) => self.fail(deadline, what, &format!("{last:?}")),
        }
    }

    /// Waits until something is true that is not in the status.
    #[track_caller]
    pub fn wait_until<T: std::fmt::Debug>(
        &self,
        what: &str,
        look: impl FnMut() -> T,
        accept: impl FnMut(&T) -> bool,
    ) -> T {
        match poll_until(SOON, look, accept) {
            Ok(value) => value,
            Err(last) => self.fail(SOON, what, &format!("{last:#?}")),
        }
    }

    /// Waits until the pod runs with every container ready.
    #[track_caller]
    pub fn wait_running(&self, pod: &str) -> Status {
        self.wait(&format!("pod {pod} runs"), |status| status.runs(pod))
    }

    /// Waits until the runtime has nothing of a pod and the agent forgot it.
    #[track_caller]
    pub fn wait_gone(&self, pod: &str) {
        self.wait(&format!("pod {pod} is gone"), |status| status.pod(pod).is_none());
        let left = |_: &()| self.sandboxes(pod).is_empty() && self.containers(pod).is_empty();
        self.wait_until(&format!("nothing of pod {pod} is left in the runtime"), || (), left);
    }

    /// Sandboxes of a pod, newest attempt first.
    pub fn sandboxes(&self, pod: &str) -> Vec<v1::PodSandbox> {
        let full = full_name(pod);
        let mut found = self.cri.sandboxes();
        found.retain(|sandbox| sandbox.metadata.as_ref().is_some_and(|m| m.name == full));
        found
            .sort_by_key(|sandbox| std::cmp::Reverse(sandbox.metadata.as_ref().map(|m| m.attempt)));
        found
    }

    /// Containers of a pod in the runtime, dead ones too, newest first.
    pub fn containers(&self, pod: &str) -> Vec<v1::Container> {
        let full = full_name(pod);
        let mut found = self.cri.containers();
        found.retain(|container| container.labels.get("io.kubernetes.pod.name") == Some(&full));
        found.sort_by_key(|container| std::cmp::Reverse(container.created_at));
        found
    }

    /// Ids of the running containers of a pod, sorted.
    pub fn running_ids(&self, pod: &str) -> Vec<String> {
        let mut containers = self.containers(pod);
        containers.retain(|container| container.state() == v1::ContainerState::ContainerRunning);
        let mut ids: Vec<String> = containers.into_iter().map(|container| container.id).collect();
        ids.sort();
        ids
    }

    /// The id of the one running container `name` of a pod.
    #[track_caller]
    pub fn running_id(&self, pod: &str, name: &str) -> String {
        let mut running = self.containers(pod);
        running.retain(|c| {
            c.state() == v1::ContainerState::ContainerRunning
                && c.metadata.as_ref().is_some_and(|m| m.name == name)
        });
        assert_eq!(running.len(), 1, "running containers {name} of pod {pod}: {running:#?}");
        running.remove(0).id
    }

    /// SIGKILL to a container's process.
    pub fn kill_container(&self, id: &str) {
        self.container_killer(id)();
    }

    /// Waits until the agent has done everything for a pod that has ended, and nothing else is under
    /// way. An agent that is killed before makes its last calls again.
    #[track_caller]
    pub fn wait_released(&self, pod: &str) {
        // A pod has succeeded before its sandbox is stopped.
        let ready = |s: &v1::PodSandbox| s.state() == v1::PodSandboxState::SandboxReady;
        let is_ready = || self.sandboxes(pod).iter().any(ready);
        self.wait_until("its sandbox is stopped", is_ready, |ready| !ready);
        let under_way = || self.proxy.calls_under_way();
        self.wait_until("the agent has nothing under way", under_way, |n| *n == 0);
        // What the last call has done is noted soon after it.
        let calls = || self.proxy.mutating_calls().len();
        let made = calls();
        stays("the agent makes no more calls", Duration::from_secs(1), calls, |n| *n == made);
    }

    /// As [`Self::kill_container`], for one that may be gone.
    pub fn kill_container_if_there(&self, id: &str) {
        match &self.runtime {
            Runtime::Fake(fake) => fake.kill_container(id),
            Runtime::Real(_) => self.sigkill(self.cri.find_container_pid(id)),
        }
    }

    /// As [`Self::kill_sandbox`], for one that may be gone.
    pub fn kill_sandbox_if_there(&self, id: &str) {
        self.sandbox_died.set(true);
        match &self.runtime {
            Runtime::Fake(fake) => fake.kill_sandbox(id),
            Runtime::Real(_) => self.sigkill(self.cri.find_sandbox_pid(id)),
        }
    }

    fn sigkill(&self, pid: Option<i32>) {
        if let Some(pid) = pid {
            sigkill(&self.slot.cgroup_root(), pid);
        }
    }

    /// What kills a container's process, also while the daemon is away.
    pub fn container_killer(&self, id: &str) -> Box<dyn FnOnce() + '_> {
        match &self.runtime {
            Runtime::Fake(fake) => {
                let id = id.to_owned();
                Box::new(move || fake.kill_container(&id))
            }
            Runtime::Real(_) => {
                let (cgroup, pid) = (self.slot.cgroup_root(), self.cri.container_pid(id));
                Box::new(move || sigkill(&cgroup, pid))
            }
        }
    }

    /// SIGKILL to a sandbox's pause process.
    pub fn kill_sandbox(&self, id: &str) {
        self.sandbox_died.set(true);
        match &self.runtime {
            Runtime::Fake(fake) => fake.kill_sandbox(id),
            Runtime::Real(_) => self.sigkill(Some(self.cri.sandbox_pid(id))),
        }
    }

    /// The runtime's daemon dies, whatever it was doing; containers go on.
    pub fn kill_runtime(&self) {
        let under_way =
            |call: &Call| call.mutating.is_some() && call.reached && call.answered.is_none();
        if self.proxy.calls().iter().any(under_way) {
            self.runtime_forgets.set(true);
        }
        self.runtime.kill();
    }

    /// Whatever pods left behind anywhere, one line each.
    ///
    /// A containerd that dies within RunPodSandbox has no record yet of the shim and the network
    /// that it made; nobody can ask it to remove them. And one whose caller dies kills the CNI
    /// plugin that it has called, which then does not find its rules again. After that happened,
    /// such things are not counted. Nor are shims of sandboxes that died on their own under
    /// containerd 2: it deletes the sandbox's task at once, and its shim, which still has the
    /// containers then, never ends.
    pub fn leaks(&self) -> Vec<String> {
        let mut leaks = self.agent.leaks();
        match &self.runtime {
            Runtime::Fake(fake) => leaks.extend(fake.leaks()),
            Runtime::Real(containerd) => leaks.extend(containerd.leaks()),
        }
        if self.runtime_forgets.get() || self.proxy.has_cut_short() {
            leaks.retain(|leak| !FORGOTTEN.iter().any(|kind| leak.starts_with(kind)));
        }
        if self.sandbox_died.get() && self.kind == Kind::Debian(Suite::Sid) {
            leaks.retain(|leak| !leak.starts_with("empty shim process "));
        }
        leaks
    }

    /// What a scenario ends with: the agent stayed small, and without manifests every pod goes
    /// without a trace.
    #[track_caller]
    pub fn finish(self) {
        self.check_usage(u64::try_from(self.sandboxes_in_all()).unwrap());
        self.remove_all();
    }

    fn sandboxes_in_all(&self) -> usize {
        self.cri.sandboxes().len()
    }

    /// Removes every manifest and checks that all pods go without a trace.
    #[track_caller]
    pub fn remove_all(&self) {
        for entry in fs::read_dir(self.agent.manifests()).unwrap().flatten() {
            fs::remove_file(entry.path()).unwrap();
        }
        self.wait("every pod is gone", |status| status.pods.is_empty());
        self.wait_until("nothing is left behind", || self.leaks(), Vec::is_empty);
    }

    /// Checks that the agent stayed small. `pods` is how many it had at most.
    #[track_caller]
    pub fn check_usage(&self, pods: u64) {
        let usage = self.agent.usage();
        // The test profile is unoptimised; the benchmark watches the release build.
        let ceiling_kib = 20 * 1024 + pods * 128;
        assert!(usage.anon_kib < ceiling_kib, "more than {ceiling_kib} KiB: {usage:?}");
        assert!(usage.fds < 40 + pods, "too many file descriptors for {pods} pods: {usage:?}");
        // A thread for blocking work ends a second after its last job.
        let threads = || self.agent.usage().threads;
        self.wait_until("only a few threads are left", threads, |threads| *threads < 24);
    }

    /// Fails the test with everything that helps to see why.
    #[track_caller]
    fn fail(&self, deadline: Duration, what: &str, last: &str) -> ! {
        let calls = self.proxy.calls();
        let calls: Vec<_> = calls.iter().filter(|call| call.mutating.is_some()).collect();
        let calls = &calls[calls.len().saturating_sub(25)..];
        let runtime = match &self.runtime {
            Runtime::Fake(fake) => fake.leaks().join("\n"),
            Runtime::Real(containerd) => containerd.log_tail(15),
        };
        panic!(
            "not within {deadline:?}: {what}\n--- last status: {last}\n--- mutating calls: {calls:#?}\n\
             --- runtime: {runtime}\n--- agent's log: {}",
            self.agent.log_tail(60)
        );
    }
}

impl Settings {
    /// The bench's settings for a kind of world.
    pub fn for_kind(kind: Kind) -> Self {
        Self { kubelet: String::new(), nodelet: String::new(), cgroups: kind != Kind::Fake }
    }

    /// Adds lines of KubeletConfiguration.
    pub fn kubelet(mut self, lines: &str) -> Self {
        self.kubelet.push_str(lines);
        self
    }
}

impl Runtime {
    /// Starts one of that kind in `slot`.
    pub fn start(kind: Kind, slot: &Slot) -> Self {
        match kind {
            Kind::Fake => Self::Fake(Fake::start(&slot.dir().join("fake.sock"))),
            Kind::Real => Self::Real(Containerd::start(slot)),
            Kind::Debian(suite) => Self::Real(Containerd::start_of(slot, suite)),
        }
    }

    /// The real one.
    #[track_caller]
    pub fn containerd(&self) -> &Containerd {
        match self {
            Self::Fake(_) => panic!("needs a real containerd"),
            Self::Real(containerd) => containerd,
        }
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        match self {
            Self::Fake(fake) => fake.socket().to_owned(),
            Self::Real(containerd) => containerd.socket(),
        }
    }

    /// The daemon dies; containers go on.
    pub fn kill(&self) {
        match self {
            Self::Fake(fake) => fake.kill(),
            Self::Real(containerd) => containerd.kill(),
        }
    }

    /// The daemon comes back.
    pub fn start_again(&self) {
        match self {
            Self::Fake(fake) => fake.start_again(),
            Self::Real(containerd) => containerd.start_again(),
        }
    }

    /// Takes the pod network away, or brings it back.
    pub fn set_network_ready(&self, ready: bool) {
        match self {
            Self::Fake(fake) => fake.set_network_ready(ready),
            Self::Real(containerd) => containerd.set_network_ready(ready),
        }
    }
}

/// The name that the agent gives a pod.
pub fn full_name(pod: &str) -> String {
    format!("{pod}-{}", super::agent::NODE_NAME)
}

/// SIGKILL to a process in `cgroup`: the number is not somebody else's by now. Gone is fine.
fn sigkill(cgroup: &str, pid: i32) {
    let at = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    if !at.contains(&format!("{cgroup}/")) {
        return;
    }
    let killed = kill(Pid::from_raw(pid), Signal::SIGKILL);
    assert!(matches!(killed, Ok(()) | Err(nix::errno::Errno::ESRCH)), "{killed:?}");
}
