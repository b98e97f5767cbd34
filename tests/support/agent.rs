//! The real agent: the binary under test, with all its directories under one.

use super::{poll_until, slot::Slot, status, writes::StateWrites};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    cell::{Cell, OnceCell, RefCell},
    ffi::OsString,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

/// The node's name; pod names end with it.
pub const NODE_NAME: &str = "node1";

/// The program under test: the one that `NODELET` names (a release, say), else the one that cargo
/// has built with the tests.
pub fn binary() -> OsString {
    std::env::var_os("NODELET").unwrap_or_else(|| env!("CARGO_BIN_EXE_nodelet").into())
}

/// The environment that systemd gives the agent.
fn of_the_unit() -> impl Iterator<Item = (&'static str, &'static str)> {
    let unit = include_str!("../../systemd/nodelet.service");
    unit.lines().filter_map(|line| line.strip_prefix("Environment=")?.split_once('='))
}

/// What may differ between worlds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Lines of KubeletConfiguration besides the bench's own.
    pub kubelet: String,
    /// Lines of NodeletConfiguration besides the bench's own.
    pub nodelet: String,
    /// Whether the agent has a cgroup tree (needs root).
    pub cgroups: bool,
}

/// An agent, running or not, and its directories.
pub struct Agent {
    dir: PathBuf,
    node_name: RefCell<String>,
    api_port: u16,
    child: RefCell<Option<Child>>,
    revived: Cell<bool>,
    flags: RefCell<Vec<String>>,
    /// Words before the program: commands that change its surroundings and become it.
    surroundings: RefCell<Vec<String>>,
    clock: OnceCell<PathBuf>,
    /// Whether its other clocks go with its wall clock.
    all_clocks: Cell<bool>,
    writes: OnceCell<StateWrites>,
}

/// What a process uses.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// RssAnon in KiB: what the agent itself holds, without the text of an unoptimised program.
    pub anon_kib: u64,
    /// VmHWM in KiB.
    pub peak_rss_kib: u64,
    /// Threads.
    pub threads: u64,
    /// Open file descriptors.
    pub fds: u64,
}

impl Agent {
    /// Prepares an agent in `slot` that talks to the runtime at `endpoint`. It is not started.
    pub fn prepare(slot: &Slot, endpoint: &Path, settings: &Settings) -> Self {
        Self::prepare_in(slot.dir().join("agent"), slot, endpoint, settings)
    }

    /// As [`Self::prepare`], in a directory of its own: for a second agent in the same world.
    pub fn prepare_in(dir: PathBuf, slot: &Slot, endpoint: &Path, settings: &Settings) -> Self {
        for name in ["manifests", "root", "run", "logs", "links"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        fs::write(dir.join("resolv.conf"), "nameserver 192.0.2.1\nsearch test.invalid\n").unwrap();
        let agent = Self {
            dir,
            node_name: RefCell::new(NODE_NAME.to_owned()),
            api_port: slot.api_port(),
            child: RefCell::default(),
            revived: Cell::default(),
            flags: RefCell::default(),
            surroundings: RefCell::default(),
            clock: OnceCell::new(),
            all_clocks: Cell::default(),
            writes: OnceCell::new(),
        };
        let at = agent.dir.display();
        let cgroups = match settings.cgroups {
            true => format!("cgroupRoot: {}\n", slot.cgroup_root()),
            false => "cgroupsPerQOS: false\nenforceNodeAllocatable: []\n".to_owned(),
        };
        // The machine of the test may be short of anything.
        let eviction = match settings.kubelet.contains("evictionHard") {
            true => "",
            false => "evictionHard: {}\n",
        };
        let config = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             staticPodPath: {at}/manifests\npodLogsDir: {at}/logs\nresolvConf: {at}/resolv.conf\n\
             containerRuntimeEndpoint: unix://{endpoint}\nhealthzPort: {port}\noomScoreAdj: 0\n\
             logging: {{ verbosity: 3 }}\n{cgroups}{eviction}{kubelet}\n\
             ---\napiVersion: nodelet.dev/v1alpha1\nkind: NodeletConfiguration\n\
             runDir: {at}/run\ncontainerLogLinksDir: {at}/links\n{nodelet}\n",
            endpoint = endpoint.display(),
            port = slot.port(),
            kubelet = settings.kubelet,
            nodelet = settings.nodelet,
        );
        fs::write(agent.dir.join("config.yaml"), config).unwrap();
        agent
    }

    /// The command line of `nodelet run` in these directories.
    fn command(&self) -> Command {
        // Every one of them becomes the next, so that the process stays this one.
        let mut words: Vec<OsString> =
            self.surroundings.borrow().iter().map(OsString::from).collect();
        words.push(binary());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.arg("run").arg("--config").arg(self.dir.join("config.yaml"));
        command.arg("--root-dir").arg(self.root_dir()).arg("--hostname-override");
        command.arg(&*self.node_name.borrow());
        command.args(&*self.flags.borrow()).stdin(Stdio::null());
        command.envs(of_the_unit());
        // Never the host's.
        let bus = format!("unix:path={}", self.system_bus().display());
        command.env("DBUS_SYSTEM_BUS_ADDRESS", bus);
        if let Some(library) = self.clock.get() {
            command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", self.clock_file());
            command.env("FAKETIME_NO_CACHE", "1").env("NO_FAKE_STAT", "1");
            // Without a time of its own, only the wall clock: nobody can set the others.
            let only_wall = if self.all_clocks.get() { "0" } else { "1" };
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", only_wall);
        }
        if let Some(writes) = self.writes.get() {
            writes.watch(&mut command);
        }
        command
    }

    /// Starts it; does not wait until it answers.
    pub fn start(&self) {
        assert!(!self.is_running(), "the agent runs already");
        let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
        let mut command = self.command();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.child.replace(Some(command.spawn().unwrap()));
    }

    /// As [`Self::start`], with a standard error of the test's own.
    pub fn start_logging_to(&self, stderr: impl Into<Stdio>) {
        assert!(!self.is_running(), "the agent runs already");
        let mut command = self.command();
        command.stdout(Stdio::null()).stderr(stderr);
        self.child.replace(Some(command.spawn().unwrap()));
    }

    /// From the next start on its node has this name instead of [`NODE_NAME`].
    pub fn set_node_name(&self, name: &str) {
        self.node_name.replace(name.to_owned());
    }

    /// From the next start on it is a node of the cluster that this kubeconfig leads to.
    pub fn join(&self, kubeconfig: &Path) {
        self.add_flag(format!("--kubeconfig={}", kubeconfig.display()));
        self.add_flag(format!("--port={}", self.api_port));
    }

    /// The port of the HTTPS API, where the agent serves it.
    pub fn api_port(&self) -> u16 {
        self.api_port
    }

    /// One more flag, from the next start on.
    pub fn add_flag(&self, flag: String) {
        self.flags.borrow_mut().push(flag);
    }

    /// Without the flags that begin with this, from the next start on.
    pub fn remove_flags(&self, start: &str) {
        self.flags.borrow_mut().retain(|flag| !flag.starts_with(start));
    }

    /// From the next start on it finds another boot id, as if on another machine; needs root.
    pub fn on_another_boot(&self, id: &str) {
        let file = self.dir.join("boot_id");
        fs::write(&file, format!("{id}\n")).unwrap();
        let words = mounted_over(&file, "/proc/sys/kernel/random/boot_id");
        self.surroundings.borrow_mut().extend(words);
    }

    /// From the next start on its kernel enforces AppArmor profiles, or does not; needs root.
    pub fn on_kernel_with_app_armor(&self, enforces: bool) {
        let script = "mount -t tmpfs none /sys/module && mkdir -p /sys/module/apparmor/parameters && \
            echo \"$1\" >/sys/module/apparmor/parameters/enabled && shift && exec \"$@\"";
        let enabled = if enforces { "Y" } else { "N" };
        let words = ["unshare", "--mount", "sh", "-c", script, "sh", enabled];
        self.surroundings.borrow_mut().extend(words.map(str::to_owned));
    }

    /// Its `/proc/meminfo`, from the next start on or, when it is told again, at once; needs root.
    pub fn set_meminfo(&self, text: &str) {
        let file = self.dir.join("meminfo");
        let again = file.exists();
        // In place: the mount is of this file.
        fs::write(&file, text).unwrap();
        if again {
            return;
        }
        self.surroundings.borrow_mut().extend(mounted_over(&file, "/proc/meminfo"));
    }

    /// From the next start on it is in this network namespace; needs root.
    pub fn in_network_namespace(&self, name: &str) {
        let words = ["nsenter".to_owned(), format!("--net=/run/netns/{name}")];
        self.surroundings.borrow_mut().extend(words);
    }

    /// From its next start on its wall clock is what [`Self::set_clock`] makes of it. `false` where
    /// there is no libfaketime.
    pub fn has_own_clock(&self) -> bool {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools");
        let name =
            format!("usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1", std::env::consts::ARCH);
        let library = [Path::new("/"), &tools].map(|root| root.join(&name));
        let Some(library) = library.into_iter().find(|library| library.exists()) else {
            return false;
        };
        self.set_clock(0);
        self.clock.set(library).expect("once");
        true
    }

    /// From its next start on [`Self::set_clock`] sets all its clocks: time has passed for it, and a
    /// pause that is over by then ends at the next thing that wakes it. `false` where there is no
    /// libfaketime.
    pub fn has_own_time(&self) -> bool {
        self.all_clocks.set(true);
        self.has_own_clock()
    }

    /// Sets its wall clock, so many seconds from what it is.
    pub fn set_clock(&self, seconds: i64) {
        let new = self.clock_file().with_extension("new");
        fs::write(&new, format!("{seconds:+}\n")).unwrap();
        fs::rename(new, self.clock_file()).unwrap();
    }

    fn clock_file(&self) -> PathBuf {
        self.dir.join("clock")
    }

    /// From now on the agent is started again whenever it is found dead, as systemd would.
    pub fn revive_when_dead(&self, revive: bool) {
        self.revived.set(revive);
    }

    /// Its writes of state files, recorded from its next start on.
    pub fn state_writes(&self) -> &StateWrites {
        self.writes.get_or_init(|| StateWrites::in_dir(&self.dir))
    }

    /// Starts it in the foreground and waits for its end: for an agent that must refuse to run.
    ///
    /// # Errors
    /// When it still runs after 10 s; it is killed then.
    pub fn run_to_end(&self) -> Result<Output, &'static str> {
        let mut child =
            self.command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let ended = poll_until(
            Duration::from_secs(10),
            || child.try_wait().unwrap().is_some(),
            |ended| *ended,
        );
        if ended.is_err() {
            child.kill().unwrap();
            child.wait().unwrap();
            return Err("it goes on running");
        }
        Ok(child.wait_with_output().unwrap())
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&self) {
        let mut child = self.child.take().expect("the agent runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Sends a signal.
    pub fn signal(&self, number: i32) {
        // nix has no names for real-time signals.
        let mut kill = Command::new("kill");
        kill.arg(format!("-{number}")).arg(self.pid().to_string());
        assert!(kill.status().unwrap().success());
    }

    /// SIGTERM; gives the exit code.
    pub fn terminate(&self) -> Option<i32> {
        let mut child = self.child.take().expect("the agent runs");
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        child.wait().unwrap().code()
    }

    /// The process id of the running agent.
    pub fn pid(&self) -> u32 {
        self.child.borrow().as_ref().expect("the agent runs").id()
    }

    /// Something that kills the present process with -9 when called, from anywhere.
    pub fn killer(&self) -> impl FnOnce() + Send + 'static {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap());
        // Still our child and not yet waited for, so the number is not anybody else's.
        move || kill(pid, Signal::SIGKILL).unwrap()
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        self.child.borrow_mut().as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// Starts it again if it has died and is to be revived.
    pub fn revive(&self) {
        if self.revived.get() && !self.is_running() {
            self.start();
        }
    }

    /// Reads the status through the socket.
    ///
    /// # Errors
    /// In words, when there is no answer.
    pub fn status(&self) -> Result<status::Status, String> {
        self.revive();
        status::read(&self.socket())
    }

    /// Runs another subcommand of the binary against this agent.
    pub fn cli(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command.args(arguments).arg("--run-dir").arg(self.run_dir());
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Another subcommand of the binary against this agent, to be started: the first of the words
    /// is its name.
    fn cli_command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.arg(words[0]).arg("--run-dir").arg(self.run_dir()).args(&words[1..]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts it.
    pub fn cli_started(&self, words: &[&str]) -> Child {
        self.cli_command(words).spawn().unwrap()
    }

    /// Runs it with this on its standard input.
    pub fn cli_with_input(&self, words: &[&str], input: &[u8]) -> Output {
        let mut child = self.cli_started(words);
        let mut stdin = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            // One that reads nothing may have ended by now.
            scope.spawn(move || _ = stdin.write_all(input));
            child.wait_with_output().unwrap()
        })
    }

    /// It as a line for a shell.
    pub fn cli_line(&self, words: &[&str]) -> String {
        let command = self.cli_command(words);
        let words = [command.get_program()].into_iter().chain(command.get_args());
        let quoted = words.map(|word| format!("'{}'", word.to_str().unwrap()));
        quoted.collect::<Vec<_>>().join(" ")
    }

    /// As [`Self::cli`] for any arguments, with its output in a file: `None` when it runs for
    /// longer than `deadline`.
    pub fn cli_within(&self, deadline: Duration, arguments: &[&str]) -> Option<Output> {
        let path = self.dir.join("cli.out");
        let (out, err) = (File::create(&path).unwrap(), self.dir.join("cli.err"));
        let mut command = Command::new(binary());
        command.args(arguments).stdin(Stdio::null()).stdout(out);
        let mut child = command.stderr(File::create(&err).unwrap()).spawn().unwrap();
        let ended = poll_until(deadline, || child.try_wait().unwrap(), Option::is_some);
        let Ok(Some(status)) = ended else {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        };
        Some(Output { status, stdout: fs::read(&path).unwrap(), stderr: fs::read(&err).unwrap() })
    }

    /// What the process uses now.
    pub fn usage(&self) -> Usage {
        let proc = PathBuf::from(format!("/proc/{}", self.pid()));
        let text = fs::read_to_string(proc.join("status")).unwrap();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
        };
        Usage {
            anon_kib: field("RssAnon"),
            peak_rss_kib: field("VmHWM"),
            threads: field("Threads"),
            fds: fs::read_dir(proc.join("fd")).unwrap().count() as u64,
        }
    }

    /// Its root directory.
    pub fn root_dir(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// Its `staticPodPath`.
    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    /// Its `podLogsDir`.
    pub fn pod_logs(&self) -> PathBuf {
        self.dir.join("logs")
    }

    /// Its `containerLogLinksDir`.
    pub fn log_links(&self) -> PathBuf {
        self.dir.join("links")
    }

    /// The config file.
    pub fn config_file(&self) -> PathBuf {
        self.dir.join("config.yaml")
    }

    /// Its `runDir`.
    pub fn run_dir(&self) -> PathBuf {
        self.dir.join("run")
    }

    /// Where it looks for the system bus; nothing listens there unless a test does.
    pub fn system_bus(&self) -> PathBuf {
        self.dir.join("bus")
    }

    fn socket(&self) -> PathBuf {
        self.run_dir().join("nodelet.sock")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join("agent.log")
    }

    /// The agent's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// The last lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// What removed pods left in the agent's directories, one line each.
    pub fn leaks(&self) -> Vec<String> {
        let mut leaks = Vec::new();
        for dir in ["root/pods", "root/nodelet/pods", "logs", "links"] {
            for entry in fs::read_dir(self.dir.join(dir)).into_iter().flatten().flatten() {
                leaks.push(format!("{dir}/{}", entry.file_name().to_string_lossy()));
            }
        }
        let mounts = super::slot::mounts_under(&self.root_dir());
        // The root directory itself may be bind-mounted for its propagation.
        let below_root = mounts.iter().filter(|mount| **mount != self.root_dir());
        leaks.extend(below_root.map(|mount| format!("mount {}", mount.display())));
        leaks
    }
}

/// Words before a program that has it find a file at another path.
fn mounted_over(file: &Path, at: &str) -> impl Iterator<Item = String> {
    let script = "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"";
    let file = file.display().to_string();
    let words = ["unshare", "--mount", "sh", "-c", script, "sh", &file, at];
    words.map(str::to_owned).into_iter()
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.is_running() {
            self.kill();
        }
    }
}
