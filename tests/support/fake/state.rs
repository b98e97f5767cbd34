//! What the fake runtime has, and what changes it.

use super::{
    Shared, events,
    script::{Output, Script},
};
use jiff::Timestamp;
use nodelet::cri::v1;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::watch;
use tonic::Status;

/// Everything.
pub(super) struct State {
    pub(super) sandboxes: BTreeMap<String, Sandbox>,
    pub(super) containers: BTreeMap<String, Container>,
    /// Name to image id; ids stand for themselves too.
    pub(super) images: BTreeMap<String, String>,
    /// What a pull can get.
    pub(super) published: BTreeSet<String>,
    pub(super) network_ready: bool,
    pub(super) cgroup_driver: Option<v1::CgroupDriver>,
    pub(super) strict_groups: bool,
    /// The runtime handlers that it tells of.
    pub(super) handlers: Vec<v1::RuntimeHandler>,
    /// What the second address of sandboxes begins with, where they have one.
    pub(super) second_family: Option<&'static str>,
    /// What was removed from under a running container, one line each.
    violations: BTreeSet<String>,
    /// Reserved sandbox and container names, with the id that holds them.
    pub(super) names: HashMap<String, String>,
    /// The number in the id that was given last.
    pub(super) next: u64,
}

pub(super) struct Sandbox {
    pub(super) config: v1::PodSandboxConfig,
    pub(super) created_at: i64,
    pub(super) ready: bool,
    pub(super) ip: String,
    pub(super) name: String,
}

pub(super) struct Container {
    pub(super) sandbox_id: String,
    pub(super) config: v1::ContainerConfig,
    pub(super) log_path: PathBuf,
    pub(super) image_ref: String,
    pub(super) created_at: i64,
    pub(super) run: Run,
    pub(super) name: String,
}

/// The life of a container.
pub(super) enum Run {
    Created,
    Running { started_at: i64, signals: Signals },
    Exited { started_at: i64, finished_at: i64, code: i32 },
}

/// How a running container is reached.
#[derive(Clone)]
pub(super) struct Signals {
    term: watch::Sender<bool>,
    kill: watch::Sender<bool>,
}

/// Nanoseconds since 1970, as CRI gives times.
pub(super) fn now_nanos() -> i64 {
    i64::try_from(Timestamp::now().as_nanosecond()).unwrap()
}

impl State {
    pub(super) fn with_images(names: &[&str]) -> Self {
        let images = names.iter().map(|name| ((*name).to_owned(), image_id(name))).collect();
        Self {
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            images,
            published: BTreeSet::new(),
            network_ready: true,
            cgroup_driver: None,
            strict_groups: false,
            handlers: Vec::new(),
            second_family: None,
            violations: BTreeSet::new(),
            names: HashMap::new(),
            next: 0,
        }
    }

    pub(super) fn leaks(&self) -> Vec<String> {
        let sandboxes = self.sandboxes.values().map(|s| format!("sandbox {}", s.name));
        let containers = self.containers.values().map(|c| format!("container {}", c.name));
        sandboxes.chain(containers).chain(self.violations.iter().cloned()).collect()
    }

    /// Looks whether the log directory and the mounts of a container that runs are still there.
    fn check_host(&mut self, id: &str) {
        let Some(container) = self.containers.get(id) else { return };
        if !matches!(container.run, Run::Running { .. }) {
            return;
        }
        let mounts = container.config.mounts.iter().map(|mount| Path::new(&mount.host_path));
        let gone = container.log_path.parent().into_iter().chain(mounts).filter(|p| !p.exists());
        let name = &container.name;
        let gone =
            gone.map(|path| format!("{} removed while container {name} ran", path.display()));
        self.violations.extend(gone);
    }

    /// The id of an image given by name or id.
    pub(super) fn image(&self, name: &str) -> Option<&str> {
        let by_id = self.images.values().find(|id| *id == name);
        self.images.get(name).or(by_id).map(String::as_str)
    }

    /// 64 hex digits, none the prefix of another.
    fn new_id(&mut self) -> String {
        self.next += 1;
        format!("{:016x}{}", self.next, "f".repeat(48))
    }

    fn reserve(&mut self, kind: &str, name: &str, id: &str) -> Result<(), Status> {
        if let Some(holder) = self.names.get(name) {
            return Err(Status::unknown(format!(
                "failed to reserve {kind} name {name:?}: name {name:?} is reserved for {holder:?}"
            )));
        }
        self.names.insert(name.to_owned(), id.to_owned());
        Ok(())
    }
}

/// The id of an image by name.
pub(super) fn image_id(name: &str) -> String {
    let sum: u64 = name.bytes().fold(7, |sum, b| sum.wrapping_mul(1_000_003) ^ u64::from(b));
    format!("sha256:{sum:064x}")
}

pub(super) fn run_sandbox(shared: &Shared, config: v1::PodSandboxConfig) -> Result<String, Status> {
    let state = &mut *shared.state();
    let metadata = config
        .metadata
        .clone()
        .ok_or_else(|| Status::invalid_argument("sandbox config must include metadata"))?;
    let v1::PodSandboxMetadata { name, namespace, uid, attempt } = metadata;
    let name = format!("{name}_{namespace}_{uid}_{attempt}");
    let id = state.new_id();
    state.reserve("sandbox", &name, &id)?;
    let host_network = network_mode(&config) == v1::NamespaceMode::Node;
    if !host_network && !state.network_ready {
        state.names.remove(&name);
        return Err(Status::unknown(format!(
            "failed to setup network for sandbox {id:?}: cni plugin not initialized"
        )));
    }
    if let Some(directory) = Some(&config.log_directory).filter(|d| !d.is_empty()) {
        fs::create_dir_all(directory).map_err(|err| Status::unknown(err.to_string()))?;
    }
    let ip = match host_network {
        true => String::new(),
        false => format!("10.88.{}.{}", state.next / 250, state.next % 250 + 2),
    };
    let sandbox = Sandbox { config, created_at: now_nanos(), ready: true, ip, name };
    state.sandboxes.insert(id.clone(), sandbox);
    shared.send(events::started(&id));
    Ok(id)
}

pub(super) fn network_mode(config: &v1::PodSandboxConfig) -> v1::NamespaceMode {
    let context = config.linux.as_ref().and_then(|l| l.security_context.as_ref());
    let options = context.and_then(|c| c.namespace_options.as_ref());
    options.map_or(v1::NamespaceMode::Pod, v1::NamespaceOption::network)
}

/// The pause process ends.
pub(super) fn end_sandbox(shared: &Shared, id: &str) {
    let state = &mut *shared.state();
    if let Some(sandbox) = state.sandboxes.get_mut(id).filter(|s| s.ready) {
        sandbox.ready = false;
        shared.send(events::exited(id, 137));
    }
}

pub(super) async fn stop_sandbox(shared: &Arc<Shared>, id: &str) -> Result<(), Status> {
    if !shared.state().sandboxes.contains_key(id) {
        return Err(Status::not_found(format!(
            "an error occurred when try to find sandbox {id:?}: not found"
        )));
    }
    for container in containers_of(shared, id) {
        stop_container(shared, &container, 0).await?;
    }
    end_sandbox(shared, id);
    Ok(())
}

pub(super) async fn remove_sandbox(shared: &Arc<Shared>, id: &str) -> Result<(), Status> {
    if !shared.state().sandboxes.contains_key(id) {
        return Ok(());
    }
    stop_sandbox(shared, id).await?;
    for container in containers_of(shared, id) {
        remove_container(shared, &container).await?;
    }
    let state = &mut *shared.state();
    if let Some(sandbox) = state.sandboxes.remove(id) {
        state.names.remove(&sandbox.name);
        shared.send(events::deleted(id));
    }
    Ok(())
}

fn containers_of(shared: &Shared, sandbox: &str) -> Vec<String> {
    let state = shared.state();
    let of = state.containers.iter().filter(|(_, c)| c.sandbox_id == sandbox);
    of.map(|(id, _)| id.clone()).collect()
}

pub(super) fn create_container(
    shared: &Shared,
    request: v1::CreateContainerRequest,
) -> Result<String, Status> {
    let state = &mut *shared.state();
    let sandbox_id = request.pod_sandbox_id;
    let config = request.config.ok_or_else(|| Status::invalid_argument("no container config"))?;
    let Some(sandbox) = state.sandboxes.get(&sandbox_id) else {
        return Err(Status::not_found(format!(
            "failed to find sandbox id {sandbox_id:?}: not found"
        )));
    };
    if !sandbox.ready {
        return Err(Status::unknown("failed to get sandbox container task: no running task found"));
    }
    let pod = sandbox.config.metadata.clone().unwrap_or_default();
    let log_path = Path::new(&sandbox.config.log_directory).join(&config.log_path);
    let container = config.metadata.clone().unwrap_or_default();
    let name = format!(
        "{}_{}_{}_{}_{}",
        container.name, pod.name, pod.namespace, pod.uid, container.attempt
    );
    let image = config.image.as_ref().map_or("", |image| image.image.as_str());
    let Some(image_ref) = state.image(image).map(str::to_owned) else {
        return Err(Status::not_found(format!("failed to resolve image {image:?}: not found")));
    };
    let id = state.new_id();
    state.reserve("container", &name, &id)?;
    let container = Container {
        sandbox_id,
        config,
        log_path,
        image_ref,
        created_at: now_nanos(),
        run: Run::Created,
        name,
    };
    state.containers.insert(id.clone(), container);
    Ok(id)
}

pub(super) fn start_container(shared: &Arc<Shared>, id: &str) -> Result<(), Status> {
    let state = &mut *shared.state();
    let Some(container) = state.containers.get_mut(id) else {
        return Err(no_container(id));
    };
    if !matches!(container.run, Run::Created) {
        return Err(Status::unknown(format!("container {id:?} is not in created state")));
    }
    if !state.sandboxes.get(&container.sandbox_id).is_some_and(|s| s.ready) {
        return Err(Status::unknown(format!(
            "sandbox container {:?} is not running",
            container.sandbox_id
        )));
    }
    let argv: Vec<String> =
        container.config.command.iter().chain(&container.config.args).cloned().collect();
    let output = ContainerOutput {
        log: container.log_path.clone(),
        mounts: container.config.mounts.clone(),
    };
    let script = Script::parse(&argv);
    let signals = Signals { term: watch::channel(false).0, kill: watch::channel(false).0 };
    container.run = Run::Running { started_at: now_nanos(), signals: signals.clone() };
    output.make_log();
    shared.send(events::started(id));
    let (shared, id) = (Arc::clone(shared), id.to_owned());
    // The container's life: ends by itself or with the test process, not with the fake's socket.
    super::super::tokio_runtime().spawn(async move {
        let mut killed = signals.kill.subscribe();
        let run = async {
            match script {
                Ok(script) => script.run(&output, signals.term.subscribe()).await,
                Err(message) => {
                    output.line(&message);
                    127
                }
            }
        };
        // The losing arm is dropped: that is what SIGKILL does.
        let code = tokio::select! {
            code = run => code,
            _ = killed.wait_for(|sent| *sent) => 137,
        };
        exited(&shared, &id, code);
    });
    Ok(())
}

fn exited(shared: &Shared, id: &str, code: i32) {
    let state = &mut *shared.state();
    state.check_host(id);
    if let Some(container) = state.containers.get_mut(id)
        && let Run::Running { started_at, .. } = container.run
    {
        container.run = Run::Exited { started_at, finished_at: now_nanos(), code };
        shared.send(events::exited(id, code));
    }
}

pub(super) fn kill_container(shared: &Shared, id: &str) {
    if let Some(Container { run: Run::Running { signals, .. }, .. }) =
        shared.state().containers.get(id)
    {
        signals.kill.send_replace(true);
    }
}

/// SIGTERM, then SIGKILL after `timeout` seconds; returns when the container has ended.
pub(super) async fn stop_container(shared: &Shared, id: &str, timeout: i64) -> Result<(), Status> {
    let signals = match shared.state().containers.get(id).map(|c| &c.run) {
        None => return Err(no_container(id)),
        Some(Run::Running { signals, .. }) => signals.clone(),
        Some(Run::Created | Run::Exited { .. }) => return Ok(()),
    };
    if timeout > 0 {
        signals.term.send_replace(true);
        let grace = Duration::from_secs(timeout.unsigned_abs());
        if tokio::time::timeout(grace, ended(shared, id)).await.is_ok() {
            return Ok(());
        }
    }
    signals.kill.send_replace(true);
    ended(shared, id).await;
    Ok(())
}

async fn ended(shared: &Shared, id: &str) {
    loop {
        let running =
            matches!(shared.state().containers.get(id).map(|c| &c.run), Some(Run::Running { .. }));
        if !running {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(super) async fn remove_container(shared: &Shared, id: &str) -> Result<(), Status> {
    if !shared.state().containers.contains_key(id) {
        return Ok(());
    }
    stop_container(shared, id, 0).await?;
    let state = &mut *shared.state();
    if let Some(container) = state.containers.remove(id) {
        state.names.remove(&container.name);
        shared.send(events::deleted(id));
    }
    Ok(())
}

fn no_container(id: &str) -> Status {
    Status::not_found(format!("an error occurred when try to find container {id:?}: not found"))
}

/// Makes the log file of a container that runs, where it is not there. Each line opens it anew.
pub(super) fn reopen_log(shared: &Shared, id: &str) -> Result<(), Status> {
    let state = &*shared.state();
    let container = state.containers.get(id).ok_or_else(|| no_container(id))?;
    if !matches!(container.run, Run::Running { .. }) {
        return Err(Status::unknown("container is not running"));
    }
    let (log, mounts) = (container.log_path.clone(), Vec::new());
    ContainerOutput { log, mounts }.make_log();
    Ok(())
}

/// Log lines in CRI's format, and files through the container's mounts.
struct ContainerOutput {
    log: PathBuf,
    mounts: Vec<v1::Mount>,
}

impl ContainerOutput {
    fn make_log(&self) {
        // As in containerd, a log that cannot be made does not stop the container.
        let _made = fs::File::options().create(true).append(true).open(&self.log);
    }
}

impl Output for ContainerOutput {
    fn line(&self, text: &str) {
        let line = format!("{} stdout F {text}\n", Timestamp::now());
        let log = fs::File::options().create(true).append(true).open(&self.log);
        // As in containerd, a log that cannot be written does not stop the container.
        let _written = log.and_then(|mut log| log.write_all(line.as_bytes()));
    }

    fn mounts(&self) -> &[v1::Mount] {
        &self.mounts
    }
}

/// Runs a command in a container: its exit code and what it wrote.
pub(super) async fn exec(
    shared: &Shared,
    request: v1::ExecSyncRequest,
) -> Result<(i32, String), Status> {
    let (mounts, signals) = {
        let state = shared.state();
        let container = state.containers.get(&request.container_id);
        let container = container.ok_or_else(|| no_container(&request.container_id))?;
        let Run::Running { signals, .. } = &container.run else {
            return Err(Status::unknown("failed to exec in container: container is not running"));
        };
        (container.config.mounts.clone(), signals.clone())
    };
    let output = CommandOutput { mounts, text: Mutex::default() };
    let script = Script::parse(&request.cmd).map_err(Status::unknown)?;
    let mut killed = signals.kill.subscribe();
    let limit = match u64::try_from(request.timeout) {
        Ok(seconds) if seconds > 0 => Duration::from_secs(seconds),
        Ok(_) | Err(_) => Duration::from_secs(365 * 24 * 3600),
    };
    // A command sees no SIGTERM: only the first process of its container does.
    let run = script.run(&output, watch::channel(false).1);
    // What loses is dropped: that is what SIGKILL does.
    let code = tokio::select! {
        code = run => code,
        _ = killed.wait_for(|sent| *sent) => 137,
        () = tokio::time::sleep(limit) => {
            let text = format!("timeout {}s exceeded: context deadline exceeded", request.timeout);
            return Err(Status::deadline_exceeded(format!("failed to exec in container: {text}")));
        }
    };
    let text = output.text.into_inner().unwrap();
    Ok((code, text))
}

/// What a command in a container writes.
struct CommandOutput {
    mounts: Vec<v1::Mount>,
    text: Mutex<String>,
}

impl Output for CommandOutput {
    fn line(&self, text: &str) {
        let mut all = self.text.lock().unwrap();
        all.push_str(text);
        all.push('\n');
    }

    fn mounts(&self) -> &[v1::Mount] {
        &self.mounts
    }
}
