//! A real registry on loopback (Debian's docker-registry), that can be down, slow, and want a
//! password.

use super::{containerd::Containerd, program, slot::Slot, wait_until};
use std::{
    fs::{self, File},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Who may pull where a password is wanted; the password is `secret`.
pub const USER: &str = "puller";
/// bcrypt of `secret`, with the least possible work.
const PASSWORD_HASH: &str = "$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a";

/// A registry, running or not.
pub struct Registry {
    dir: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Registry {
    /// Prepares an empty one; it is not started. `None`, said loudly, where there is no
    /// docker-registry.
    pub fn prepare(slot: &Slot) -> Option<Self> {
        let there = program("docker-registry").is_some();
        if super::skips::skip_without(&[(there, "docker-registry (scripts/prerequisites test)")]) {
            return None;
        }
        let registry =
            Self { dir: slot.dir().join("registry"), port: slot.second_port(), child: None };
        fs::create_dir_all(&registry.dir).unwrap();
        fs::write(registry.dir.join("htpasswd"), format!("{USER}:{PASSWORD_HASH}\n")).unwrap();
        Some(registry)
    }

    /// The name of an image in it.
    pub fn image(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port)
    }

    /// Its port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address, as in docker's config files.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Starts it; with a password or without.
    pub fn start(&mut self, password: bool) {
        let dir = self.dir.display();
        let auth = format!("auth: {{ htpasswd: {{ realm: test, path: {dir}/htpasswd }} }}\n");
        let config = format!(
            "version: 0.1\nstorage: {{ filesystem: {{ rootdirectory: {dir}/data }} }}\n\
             http: {{ addr: 127.0.0.1:{} }}\n{}",
            self.port,
            if password { auth.as_str() } else { "" }
        );
        let file = self.dir.join("config.yml");
        fs::write(&file, config).unwrap();
        let log = File::create(self.dir.join("log")).unwrap();
        let mut command = Command::new(program("docker-registry").unwrap());
        command.arg("serve").arg(file).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
        let listens = || TcpStream::connect(("127.0.0.1", self.port)).is_ok();
        wait_until("the registry listens", Duration::from_secs(10), listens, |up| *up);
    }

    /// Fills it from a containerd's images: pushes `image` as `name`, and forgets it there.
    pub fn push(&self, containerd: &Containerd, image: &str, name: &str) {
        let to = self.image(name);
        containerd.ctr(&["images", "push", "--plain-http", &to, image]);
    }

    /// It goes away.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// It accepts connections and answers nothing, or goes on.
    pub fn freeze(&self, frozen: bool) {
        use nix::sys::signal::Signal;
        let signal = if frozen { Signal::SIGSTOP } else { Signal::SIGCONT };
        let pid = i32::try_from(self.child.as_ref().unwrap().id()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.stop();
    }
}
