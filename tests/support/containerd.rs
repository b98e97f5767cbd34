//! A private real containerd (`scripts/private-containerd`), gone with everything it made when
//! dropped.

use super::{cri::Cri, images, process::Stopped, slot::Slot, wait_until};
use nix::unistd::Pid;
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

/// A Debian release whose containerd can be run beside the installed one:
/// `scripts/containerd-versions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// Debian 12, containerd 1.6.
    Bookworm,
    /// Debian 13, containerd 1.7.
    Trixie,
    /// What will be released one day; containerd 2.
    Sid,
}

impl Suite {
    /// Oldest first.
    pub const ALL: [Self; 3] = [Self::Bookworm, Self::Trixie, Self::Sid];

    /// As in the archive.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Sid => "sid",
        }
    }

    /// Where its containerd is unpacked; `None` where it could not be fetched.
    pub fn directory(self) -> Option<PathBuf> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/containerd");
        Some(root.join(self.name())).filter(|dir| dir.join("usr/bin/containerd").exists())
    }

    /// Whether its own runc is there, as the runtime handler "own".
    pub fn has_own_runc(self) -> bool {
        self.directory().is_some_and(|dir| dir.join("own/runc").exists())
    }

    /// The upstream version: `1.6.20`.
    #[track_caller]
    pub fn version(self) -> String {
        let package = std::fs::read_to_string(self.expect_directory().join("version")).unwrap();
        package.trim().split(['~', '+', '-']).next().unwrap().to_owned()
    }

    #[track_caller]
    fn expect_directory(self) -> PathBuf {
        self.directory().unwrap_or_else(|| panic!("no containerd of {}", self.name()))
    }
}

/// A running private containerd.
pub struct Containerd {
    dir: PathBuf,
    network_number: u8,
    /// The network namespace that it runs in; `None` for the one of the test.
    namespace: Option<String>,
}

impl Containerd {
    /// Starts the installed one in `slot`, with the images of [`images::ALL`].
    pub fn start(slot: &Slot) -> Self {
        Self::start_from(slot, None, None)
    }

    /// As [`Self::start`], in a network namespace: pods on the host network are there, and so is
    /// the bridge of all others.
    pub fn start_in_namespace(slot: &Slot, namespace: &str) -> Self {
        Self::start_from(slot, None, Some(namespace.to_owned()))
    }

    /// As [`Self::start`], with the containerd of a Debian release.
    #[track_caller]
    pub fn start_of(slot: &Slot, suite: Suite) -> Self {
        Self::start_from(slot, Some(&suite.expect_directory()), None)
    }

    fn start_from(slot: &Slot, programs: Option<&Path>, namespace: Option<String>) -> Self {
        let dir = slot.dir().join("containerd");
        let (number, archive) = (slot.number().to_string(), images::archive());
        let mut arguments = vec![number.as_str(), archive.to_str().unwrap()];
        arguments.extend(programs.map(|dir| dir.to_str().unwrap()));
        let containerd = Self { dir, network_number: slot.number(), namespace };
        containerd.script("up", &arguments);
        containerd.wait_until_it_answers();
        containerd
    }

    fn wait_until_it_answers(&self) {
        let cri = Cri::new(&self.socket());
        wait_until("containerd answers", Duration::from_secs(60), || cri.answers(), |up| *up);
    }

    /// Its socket: CRI and containerd's own services.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("containerd.sock")
    }

    /// `kill -9` on the daemon; shims and containers go on.
    pub fn kill(&self) {
        self.script("kill", &[]);
    }

    /// What a loss of power does: the daemon, its shims and all containers end, and of what they
    /// have made only the files on disk are left.
    pub fn lose_power(&self) {
        self.script("lose-power", &[]);
    }

    /// Starts the daemon again.
    pub fn start_again(&self) {
        self.script("start", &[]);
        self.wait_until_it_answers();
    }

    /// Ends the daemon in peace and starts that of another Debian release on the same data, as an
    /// upgrade does; shims and containers go on.
    #[track_caller]
    pub fn upgrade(&self, suite: Suite) {
        self.script("stop", &[]);
        self.script("start", &[suite.expect_directory().to_str().unwrap()]);
        self.wait_until_it_answers();
    }

    /// Stops the daemon until what this gives is dropped: it listens and does not answer.
    pub fn freeze(&self) -> Stopped {
        let pid = std::fs::read_to_string(self.dir.join("pid")).unwrap();
        Stopped::stop(Pid::from_raw(pid.trim().parse().unwrap()))
    }

    /// Its `root`, which outlives the machine's boots.
    pub fn root_dir(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// Its `state`, which does not.
    pub fn state_dir(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// Imports the images of [`images::ALL`] again.
    pub fn import_images(&self) {
        self.ctr(&["images", "import", images::archive().to_str().unwrap()]);
    }

    /// Whatever pods left behind, one line each; empty when all are gone without a trace.
    pub fn leaks(&self) -> Vec<String> {
        self.script("leaks", &[]).lines().map(str::to_owned).collect()
    }

    /// Runs `ctr` on it in namespace k8s.io; gives what it printed.
    pub fn ctr(&self, arguments: &[&str]) -> String {
        self.script("ctr", arguments)
    }

    /// Takes its pod network away, or brings it back.
    pub fn set_network_ready(&self, ready: bool) {
        let name = "10-nodelet.conflist";
        let (there, away) = (self.dir.join("cni/conf").join(name), self.dir.join("cni").join(name));
        if ready {
            // Written, not renamed: containerd 1.6 looks again after a write only.
            let network = std::fs::read(&away).unwrap();
            std::fs::write(&there, network).unwrap();
        } else {
            std::fs::rename(&there, &away).unwrap();
        }
    }

    /// From the next pod on, pods have an IPv4 and an IPv6 address. The network must be away, and
    /// is back then. The bridge gets its addresses here and not from the plugin, which would make
    /// the whole machine a router of IPv6.
    pub fn set_network_of_two_families(&self) {
        let (number, bridge) = (self.network_number, format!("nodelet{}", self.network_number));
        super::ip(&format!("link add {bridge} type bridge"));
        super::ip(&format!("link set {bridge} up"));
        super::ip(&format!("address add {}1/24 dev {bridge}", self.pod_network()));
        super::ip(&format!("address add {}1/64 dev {bridge} nodad", self.pod_network_v6()));
        let network = serde_json::json!({
            "cniVersion": "0.4.0",
            "name": format!("nodelet-{number}"),
            "plugins": [{
                "type": "bridge",
                "bridge": bridge,
                "ipam": {
                    "type": "host-local",
                    "dataDir": self.dir.join("cni/addresses"),
                    "ranges": [
                        [{ "subnet": format!("{}0/24", self.pod_network()) }],
                        [{ "subnet": format!("{}/64", self.pod_network_v6()) }],
                    ],
                },
            }],
        });
        let file = self.dir.join("cni/conf/10-nodelet.conflist");
        std::fs::write(file, network.to_string()).unwrap();
    }

    /// First bytes of the IPv6 addresses of pods after [`Self::set_network_of_two_families`].
    pub fn pod_network_v6(&self) -> String {
        // Never zero, which an address would leave out.
        format!("fd00:211:{:x}::", 0x100 + u16::from(self.network_number))
    }

    /// First bytes of the addresses that its pods get: `10.211.7.`
    pub fn pod_network(&self) -> String {
        format!("10.211.{}.", self.network_number)
    }

    fn script(&self, command: &str, arguments: &[&str]) -> String {
        let output = run(self.namespace.as_deref(), command, &self.dir, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "private-containerd {command} {arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The directory of its CNI configuration.
    pub fn cni_conf_dir(&self) -> PathBuf {
        self.dir.join("cni/conf")
    }

    /// The last lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = std::fs::read_to_string(self.dir.join("containerd.log")).unwrap_or_default();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        remove_in(self.namespace.as_deref(), &self.dir);
    }
}

/// Removes an instance and all that it made, running or not.
pub fn remove(dir: &Path) {
    remove_in(None, dir);
}

fn remove_in(namespace: Option<&str>, dir: &Path) {
    let output = run(namespace, "down", dir, &[]);
    if !output.status.success() {
        super::say_loudly(&format!(
            "private-containerd down: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
}

fn run(namespace: Option<&str>, command: &str, dir: &Path, arguments: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/private-containerd");
    let mut line = match namespace {
        None => Command::new(script),
        Some(name) => {
            let mut nsenter = Command::new("nsenter");
            nsenter.arg(format!("--net=/run/netns/{name}")).arg(script);
            nsenter
        }
    };
    line.arg(command).arg(dir).args(arguments).output().unwrap()
}
