//! Where one candidate is measured: a fresh private containerd with one candidate on it, and the
//! looks that are taken past the candidate.
//!
//! When a container runs is read from containerd's own record of it, `started_at`: every candidate
//! is timed by the same clock in the same way, without anything inside the pods and without the
//! candidate's word. The polling only finds out that a record is there to be read, so its pace does
//! not enter the figures.

use crate::{
    features::READ_ONLY_PORT,
    floor::Floor,
    process::Process,
    support::{
        agent::{Agent, Settings},
        block_on,
        containerd::Containerd,
        cri::Cri,
        images,
        manifest::Pod,
        registry::Registry,
        slot::Slot,
        status::{exchange, get},
        tokio_runtime,
        world::{Kind, full_name},
    },
    upstream::Kubelet,
};
use nix::{
    mount::{MsFlags, mount},
    sys::{
        statfs::{TMPFS_MAGIC, statfs},
        statvfs::statvfs,
    },
};
use nodelet::cri::v1;
use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

/// Above what a full node has, so that the next pod fits.
const MAX_PODS: &str = "maxPods: 200\n";
const DEADLINE: Duration = Duration::from_secs(180);

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Candidate {
    /// The same calls with no agent around them.
    Floor,
    /// This project.
    Nodelet,
    /// The upstream kubelet.
    Kubelet,
}

impl Candidate {
    /// As tables and files call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Nodelet => "nodelet",
            Self::Kubelet => "kubelet",
        }
    }
}

/// A running container.
pub struct Victim {
    /// Its id.
    pub id: String,
    pid: nix::unistd::Pid,
}

impl Victim {
    /// The process id of its first process.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Kills its process; gives the moment before.
    pub fn kill(&self) -> Moment {
        self.signal(nix::sys::signal::Signal::SIGKILL)
    }

    /// Asks its process to end; gives the moment before.
    pub fn terminate(&self) -> Moment {
        self.signal(nix::sys::signal::Signal::SIGTERM)
    }

    fn signal(&self, signal: nix::sys::signal::Signal) -> Moment {
        let begun = now();
        nix::sys::signal::kill(self.pid, signal).unwrap();
        begun
    }
}

enum Actor {
    Floor(Box<Floor>),
    Nodelet(Agent),
    Kubelet(Kubelet),
}

/// One candidate on its containerd. Fields are dropped in this order.
pub struct Stage {
    actor: Actor,
    cri: Cri,
    containerd: Containerd,
    slot: Slot,
    lines: RefCell<String>,
}

/// The run directory of nodelet below a slot's directory. On a machine it lies in /run, and so in
/// memory.
const RUN_DIR: &str = "agent/run";

/// Nanoseconds since 1970, the unit in which the runtime records.
pub type Moment = i64;

/// The wall clock, by which the runtime stamps what it starts.
pub fn now() -> Moment {
    i64::try_from(nodelet::clock::now().wall.as_nanosecond()).unwrap()
}

/// Seconds from one moment to another.
pub fn seconds(from: Moment, to: Moment) -> f64 {
    Duration::from_nanos(u64::try_from(to - from).unwrap_or(0)).as_secs_f64()
}

/// Waits; only between measurements and for idle windows.
pub fn pause(span: Duration) {
    block_on(async { sleep(span).await });
}

impl Stage {
    /// As [`Self::with`], as every candidate is by default.
    pub fn set(candidate: Candidate, kubelet: Option<&Path>) -> Self {
        Self::with(candidate, kubelet, "")
    }

    /// A fresh containerd and a candidate with these lines of configuration that is not started
    /// yet. One pod has come and gone already: what the first pod ever makes (bridge, iptables
    /// chains, page cache) is nobody's to pay for.
    pub fn with(candidate: Candidate, kubelet: Option<&Path>, lines: &str) -> Self {
        let lines = format!("{MAX_PODS}{lines}");
        let slot = Slot::take();
        let is_in_memory = statfs(slot.dir()).unwrap().filesystem_type() == TMPFS_MAGIC;
        assert!(!is_in_memory, "{} is on a tmpfs; the bench needs a disk", slot.dir().display());
        make_volatile(&slot.dir().join(RUN_DIR));
        let containerd = Containerd::start(&slot);
        let socket = containerd.socket();
        let warmer = Floor::new(&slot, &socket);
        warmer.warm_up();
        let actor = match candidate {
            Candidate::Floor => Actor::Floor(Box::new(warmer)),
            Candidate::Nodelet => {
                let settings = Settings::for_kind(Kind::Real).kubelet(&lines);
                let agent = Agent::prepare(&slot, &socket, &settings);
                // Both agents log what they log by default.
                let config = fs::read_to_string(agent.config_file()).unwrap();
                let quiet = config.replace("logging: { verbosity: 3 }\n", "");
                fs::write(agent.config_file(), quiet).unwrap();
                Actor::Nodelet(agent)
            }
            Candidate::Kubelet => {
                let binary = kubelet.expect("there is a kubelet when it is asked for");
                Actor::Kubelet(Kubelet::prepare(&slot, binary, &socket, &socket, &lines))
            }
        };
        Self { actor, cri: Cri::new(&socket), containerd, slot, lines: RefCell::new(lines) }
    }

    /// The floor, where that is the candidate.
    pub fn floor(&self) -> Option<&Floor> {
        match &self.actor {
            Actor::Floor(floor) => Some(floor),
            Actor::Nodelet(_) | Actor::Kubelet(_) => None,
        }
    }

    /// Gives nodelet other lines of configuration, for its next start.
    pub fn configure(&self, lines: &str) {
        let Actor::Nodelet(agent) = &self.actor else { unreachable!("only nodelet's are changed") };
        let lines = format!("{MAX_PODS}{lines}");
        let config = fs::read_to_string(agent.config_file()).unwrap();
        let before = self.lines.replace(lines.clone());
        assert!(config.contains(&before));
        fs::write(agent.config_file(), config.replace(&before, &lines)).unwrap();
    }

    /// Adds a line to nodelet's own configuration, for its next start.
    pub fn configure_own(&self, line: &str) {
        let Actor::Nodelet(agent) = &self.actor else { unreachable!("only nodelet's is changed") };
        let mut file = fs::File::options().append(true).open(agent.config_file()).unwrap();
        writeln!(file, "{line}").unwrap();
    }

    /// The agent's root directory.
    pub fn root_dir(&self) -> PathBuf {
        match &self.actor {
            Actor::Floor(_) => unreachable!("the floor has none"),
            Actor::Nodelet(agent) => agent.root_dir(),
            Actor::Kubelet(kubelet) => kubelet.root_dir(),
        }
    }

    /// What is its own of the machine.
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// From its next start on the agent is a node of the cluster that this kubeconfig leads to.
    pub fn join(&mut self, kubeconfig: &Path) {
        match &mut self.actor {
            Actor::Floor(_) => unreachable!("the floor is no node"),
            Actor::Nodelet(agent) => {
                agent.join(kubeconfig);
            }
            Actor::Kubelet(kubelet) => kubelet.join(kubeconfig),
        }
    }

    /// Gives the agent one more flag, for its next start.
    pub fn add_flag(&mut self, flag: String) {
        match &mut self.actor {
            Actor::Floor(_) => unreachable!("the floor has no flags"),
            Actor::Nodelet(agent) => agent.add_flag(flag),
            Actor::Kubelet(kubelet) => kubelet.add_flag(flag),
        }
    }

    /// Where the agent serves its HTTPS API, on loopback.
    pub fn api_address(&self) -> SocketAddr {
        let port = match &self.actor {
            Actor::Floor(_) => unreachable!("the floor serves nothing"),
            Actor::Nodelet(agent) => agent.api_port(),
            Actor::Kubelet(kubelet) => kubelet.api_port(),
        };
        (Ipv4Addr::LOCALHOST, port).into()
    }

    /// Makes an image of so many MiB that shares nothing with another; gives its name. It is in the
    /// registry alone, or where there is none, in the runtime.
    pub fn make_image(&self, name: &str, mib: u64, registry: Option<&Registry>) -> String {
        let dir = self.slot.dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        let image = format!("nodelet.test/{name}:1");
        let archive = images::with_ballast(&dir, &image, mib);
        let ctr = |arguments: &[&str]| {
            // The runtime keeps what it sees in its own namespace for as long as it likes.
            let away = if registry.is_some() { &["--namespace", "away"][..] } else { &[] };
            self.containerd.ctr(&[away, arguments].concat());
        };
        ctr(&["images", "import", archive.to_str().unwrap()]);
        fs::remove_dir_all(&dir).unwrap();
        let Some(registry) = registry else { return image };
        let there = registry.image(&format!("{name}:1"));
        ctr(&["images", "push", "--plain-http", &there, &image]);
        ctr(&["images", "rm", "--sync", &image]);
        there
    }

    /// Starts the agent and says when; the floor has none. What prepares a kubelet's start, a
    /// tenth of a second, is over at that moment.
    pub fn start(&self) -> Moment {
        let begun = now();
        match &self.actor {
            Actor::Floor(_) => begun,
            Actor::Nodelet(agent) => {
                agent.start();
                begun
            }
            Actor::Kubelet(kubelet) => {
                kubelet.start();
                while !kubelet.is_past_preparation() {
                    pause(Duration::from_millis(1));
                }
                now()
            }
        }
    }

    /// Kills the agent with -9.
    pub fn kill_agent(&self) {
        match &self.actor {
            Actor::Floor(_) => {}
            Actor::Nodelet(agent) => agent.kill(),
            Actor::Kubelet(kubelet) => kubelet.kill(),
        }
    }

    /// The agent's process.
    pub fn agent(&self) -> Option<Process> {
        match &self.actor {
            Actor::Floor(_) => None,
            Actor::Nodelet(agent) => Some(Process::of(agent.pid())),
            Actor::Kubelet(kubelet) => Some(Process::of(kubelet.pid())),
        }
    }

    /// containerd and its shims.
    pub fn runtime(&self) -> Vec<Process> {
        Process::naming(&self.slot.dir().join("containerd"))
    }

    /// The answer of the agent to a scrape.
    pub fn scraped(&self, path: &str) -> String {
        let answer = match &self.actor {
            Actor::Floor(_) => return String::new(),
            Actor::Nodelet(agent) => get(&agent.run_dir().join("nodelet.sock"), path),
            Actor::Kubelet(_) => TcpStream::connect((Ipv4Addr::LOCALHOST, READ_ONLY_PORT))
                .and_then(|mut stream| exchange(&mut stream, path)),
        };
        answer.unwrap()
    }

    /// Waits until the agent's `/healthz` says that it is well.
    pub fn wait_until_well(&self) {
        if matches!(self.actor, Actor::Floor(_)) {
            return;
        }
        let port = self.slot.port();
        self.wait("the agent is well", Duration::from_millis(50), || healthy(port).then_some(()));
    }

    /// Drops manifests into the agent's directory, all at once; gives the moment before the first.
    pub fn drop_pods(&self, pods: &[Pod]) -> Moment {
        let beside = self.slot.dir().join("beside");
        fs::create_dir_all(&beside).unwrap();
        let file = |name: &str| format!("{name}.yaml");
        let names: Vec<String> = pods.iter().map(name_of).collect();
        for (pod, name) in pods.iter().zip(&names) {
            fs::write(beside.join(file(name)), pod.text()).unwrap();
        }
        let manifests = self.manifests();
        let begun = now();
        for name in &names {
            fs::rename(beside.join(file(name)), manifests.join(file(name))).unwrap();
        }
        begun
    }

    /// Writes a file of the agent's manifest directory anew; gives the moment before.
    pub fn write_manifest(&self, file: &str, text: &str) -> Moment {
        let beside = self.slot.dir().join("beside");
        fs::create_dir_all(&beside).unwrap();
        fs::write(beside.join(file), text).unwrap();
        let begun = now();
        fs::rename(beside.join(file), self.manifests().join(file)).unwrap();
        begun
    }

    /// Deletes manifests; gives the moment before the first.
    pub fn remove_pods(&self, pods: &[Pod]) -> Moment {
        let manifests = self.manifests();
        let begun = now();
        for pod in pods {
            fs::remove_file(manifests.join(format!("{}.yaml", name_of(pod)))).unwrap();
        }
        begun
    }

    fn manifests(&self) -> PathBuf {
        match &self.actor {
            Actor::Floor(_) => unreachable!("the floor reads no manifests"),
            Actor::Nodelet(agent) => agent.manifests(),
            Actor::Kubelet(kubelet) => kubelet.manifests(),
        }
    }

    /// Waits until every pod runs; gives when each did, in order of time.
    pub fn started(&self, pods: &[Pod]) -> Vec<Moment> {
        let names: Vec<String> = pods.iter().map(|pod| full_name(&name_of(pod))).collect();
        let pace = Duration::from_millis(if pods.len() > 1 { 250 } else { 25 });
        let ids = self.wait("the pods run", pace, || {
            let running = self.running();
            let ids = names.iter().map(|name| running.get(name).cloned());
            ids.collect::<Option<Vec<String>>>()
        });
        let mut moments: Vec<Moment> =
            ids.iter().map(|id| self.cri.container_status(id).started_at).collect();
        moments.sort_unstable();
        moments
    }

    /// When the container of each running pod started, by the pod's name. One-container pods only.
    pub fn starts(&self) -> BTreeMap<String, Moment> {
        let running = self.running().into_iter();
        running.map(|(pod, id)| (pod, self.cri.container_status(&id).started_at)).collect()
    }

    /// Waits until every container of the pods runs.
    pub fn all_started(&self, pods: &[Pod]) {
        let containers = |pod: &Pod| pod.value()["spec"]["containers"].as_array().unwrap().len();
        let wanted: usize = pods.iter().map(containers).sum();
        let running =
            |container: &v1::Container| container.state() == v1::ContainerState::ContainerRunning;
        self.wait("all containers run", Duration::from_millis(250), || {
            let running = self.cri.containers().into_iter().filter(running).count();
            (running >= wanted).then_some(())
        });
    }

    /// The log of a running pod's container.
    pub fn log_of(&self, pod: &Pod) -> PathBuf {
        self.cri.container_status(&self.victim(pod).id).log_path.into()
    }

    /// The container of a running pod, to be killed.
    pub fn victim(&self, pod: &Pod) -> Victim {
        self.victim_by_id(self.running()[&full_name(&name_of(pod))].clone())
    }

    /// The container of one of the running pods.
    pub fn any_victim(&self) -> Victim {
        self.victim_by_id(self.running().into_values().next().expect("a pod runs"))
    }

    fn victim_by_id(&self, id: String) -> Victim {
        let pid = nix::unistd::Pid::from_raw(self.cri.container_pid(&id));
        Victim { id, pid }
    }

    /// Waits until another container than `dead` runs in a pod; gives when it began to.
    pub fn restarted(&self, pod: &Pod, dead: &str) -> Moment {
        let name = full_name(&name_of(pod));
        let id = self.wait("the container is back", Duration::from_millis(25), || {
            self.running().remove(&name).filter(|id| id != dead)
        });
        self.cri.container_status(&id).started_at
    }

    /// Waits until nothing of the pods runs: no container, no ready sandbox. Gives when that was
    /// seen, at most 5 ms later than it came true.
    pub fn gone(&self, pods: &[Pod]) -> Moment {
        let names: Vec<String> = pods.iter().map(|pod| full_name(&name_of(pod))).collect();
        let pace = Duration::from_millis(if pods.len() > 1 { 100 } else { 5 });
        self.wait("the pods are gone", pace, || {
            let running = self.running();
            let ready = |sandbox: &v1::PodSandbox| {
                sandbox.state() == v1::PodSandboxState::SandboxReady
                    && sandbox.metadata.as_ref().is_some_and(|m| names.contains(&m.name))
            };
            let left = names.iter().any(|name| running.contains_key(name))
                || self.cri.sandboxes().iter().any(ready);
            (!left).then(now)
        })
    }

    /// The running containers of these pods, in their order; empty where there is none.
    pub fn containers(&self, pods: &[Pod]) -> Vec<String> {
        let running = self.running();
        let of = |pod: &Pod| running.get(&full_name(&name_of(pod))).cloned().unwrap_or_default();
        pods.iter().map(of).collect()
    }

    /// What all pods together use; one of them runs.
    pub fn pods_memory_mib(&self, pod: &Pod) -> usize {
        crate::hog::pods_memory_mib(self.victim(pod).pid())
    }

    /// Running containers: full name of the pod, id. One-container pods only.
    fn running(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        for mut container in self.cri.containers() {
            if container.state() == v1::ContainerState::ContainerRunning
                && let Some(pod) = container.labels.remove("io.kubernetes.pod.name")
            {
                found.insert(pod, container.id);
            }
        }
        found
    }

    /// Looks at a pace until there is something; without it the run ends with what the logs say.
    pub fn wait<T>(&self, what: &str, pace: Duration, mut look: impl FnMut() -> Option<T>) -> T {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(
                Instant::now() < end,
                "not within {DEADLINE:?}: {what}\n--- containerd: {}\n--- agent: {}",
                self.containerd.log_tail(10),
                self.log_tail()
            );
            pause(pace);
        }
    }

    fn log_tail(&self) -> String {
        match &self.actor {
            Actor::Floor(_) => String::new(),
            Actor::Nodelet(agent) => agent.log_tail(40),
            Actor::Kubelet(kubelet) => kubelet.log_tail(40),
        }
    }
}

/// Something that goes on beside the measurement. It has ended when this is dropped.
pub struct Background(JoinSet<()>);

impl Background {
    /// Starts it.
    pub fn start(task: impl Future<Output = ()> + Send + 'static) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn_on(task, tokio_runtime().handle());
        Self(tasks)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        block_on(self.0.shutdown());
    }
}

/// Makes a directory whose files are in memory. It goes with the slot.
fn make_volatile(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    mount(Some("volatile"), dir, Some("tmpfs"), MsFlags::empty(), Some("mode=755")).unwrap();
}

/// A small file system over a directory. It goes with the stage.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts it.
    pub fn over(dir: PathBuf, size: &str) -> Self {
        let options = format!("{size},mode=755");
        mount(Some("small"), &dir, Some("tmpfs"), MsFlags::empty(), Some(&*options)).unwrap();
        Self(dir)
    }

    /// Gives it another size.
    pub fn resize(&self, size: &str) {
        mount(None::<&str>, &self.0, None::<&str>, MsFlags::MS_REMOUNT, Some(size)).unwrap();
    }

    /// Bytes that are left.
    pub fn available(&self) -> u64 {
        let told = statvfs(&self.0).unwrap();
        told.blocks_available() * told.fragment_size()
    }
}

/// The name in a manifest.
pub fn name_of(pod: &Pod) -> String {
    pod.value()["metadata"]["name"].as_str().unwrap().to_owned()
}

fn healthy(port: u16) -> bool {
    let mut answer = String::new();
    let asked = TcpStream::connect(("127.0.0.1", port)).and_then(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        stream.read_to_string(&mut answer)
    });
    asked.is_ok() && answer.starts_with("HTTP/1.1 200")
}
