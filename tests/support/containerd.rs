//! A private real containerd (`scripts/private-containerd`), gone with everything it made when dropped.

use super::{cri::Cri, images, slot::Slot, wait_until};
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

/// A running private containerd.
pub struct Containerd {
    dir: PathBuf,
    network_number: u8,
}

impl Containerd {
    /// Starts one in `slot`, with the images of [`images::ALL`].
    pub fn start(slot: &Slot) -> Self {
        let dir = slot.dir().join("containerd");
        let archive = images::archive();
        let number = slot.number().to_string();
        script("up", &dir, &[&number, archive.to_str().unwrap()]);
        let containerd = Self { dir, network_number: slot.number() };
        containerd.wait_until_it_answers();
        containerd
    }

    fn wait_until_it_answers(&self) {
        let cri = Cri::new(&self.socket());
        wait_until("containerd answers", Duration::from_secs(15), || cri.answers(), |up| *up);
    }

    /// Its socket: CRI and containerd's own services.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("containerd.sock")
    }

    /// `kill -9` on the daemon; shims and containers go on.
    pub fn kill(&self) {
        script("kill", &self.dir, &[]);
    }

    /// Starts the daemon again.
    pub fn start_again(&self) {
        script("start", &self.dir, &[]);
        self.wait_until_it_answers();
    }

    /// Whatever pods left behind, one line each; empty when all are gone without a trace.
    pub fn leaks(&self) -> Vec<String> {
        script("leaks", &self.dir, &[]).lines().map(str::to_owned).collect()
    }

    /// Runs `ctr` on it in namespace k8s.io; gives what it printed.
    pub fn ctr(&self, arguments: &[&str]) -> String {
        script("ctr", &self.dir, arguments)
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

    /// First bytes of the addresses that its pods get: `10.211.7.`
    pub fn pod_network(&self) -> String {
        format!("10.211.{}.", self.network_number)
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
        remove(&self.dir);
    }
}

/// Removes an instance and all that it made, running or not.
pub fn remove(dir: &Path) {
    let output = run("down", dir, &[]);
    if !output.status.success() {
        super::say_loudly(&format!(
            "private-containerd down: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
}

fn script(command: &str, dir: &Path, arguments: &[&str]) -> String {
    let output = run(command, dir, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "private-containerd {command} {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn run(command: &str, dir: &Path, arguments: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/private-containerd");
    Command::new(script).arg(command).arg(dir).args(arguments).output().unwrap()
}
