//! A whole machine: QEMU with software emulation, a disk of its own over the shared image, a root
//! shell inside.
//!
//! The disk is an overlay that lives as long as the [`Machine`]: it outlives reboots and power
//! losses. What the guest has not synced is lost with the power, and the image makes the guest sync
//! nothing by itself.

use crate::{
    processor::{Processor, processor},
    shell::{Answer, Shell},
    support::{
        self, pause, poll_until,
        skips::{self, skip_without},
        slot::Slot,
    },
};
use std::{
    cell::RefCell,
    fs::{self, File},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};
use tokio::time::Instant;

/// From power on to a shell. Twelve seconds on an idle machine with two cores.
pub const BOOT: Duration = Duration::from_secs(240);
/// Long enough for one step of anything in a machine that is emulated on a busy host.
pub const SOON: Duration = Duration::from_secs(240);

/// What may differ between machines.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Memory.
    pub memory_mib: u32,
    /// The time that the machine's clock shows at power on, as QEMU's `-rtc base=` wants it.
    pub clock: &'static str,
    /// Whether [`HOST`] leads to the host's loopback address. Without it the machine can't open a
    /// connection to anything outside.
    pub reaches_host: bool,
}

/// The host's loopback address, as a machine that reaches it sees it.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

impl Default for Hardware {
    fn default() -> Self {
        Self { memory_mib: 2048, clock: "utc", reaches_host: false }
    }
}

/// A machine, running or not.
pub struct Machine {
    hardware: Hardware,
    image: PathBuf,
    qemu: RefCell<Option<Child>>,
    shell: RefCell<Option<Shell>>,
    slot: Slot,
}

impl Machine {
    /// A machine that is off. `files` makes `files.tar` in a directory; inside it is
    /// `/dev/nvme1n1`.
    pub fn new(hardware: Hardware, files: impl FnOnce(&Path) -> PathBuf) -> Self {
        let slot = Slot::take();
        let image = image();
        let archive = files(slot.dir());
        assert_eq!(archive, slot.dir().join("files.tar"));
        let made = Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
            .args([image.join("disk"), slot.dir().join("disk")])
            .status();
        assert!(made.unwrap().success(), "qemu-img failed");
        Self { hardware, image, qemu: RefCell::default(), shell: RefCell::default(), slot }
    }

    /// Switches it on and waits for the shell.
    pub fn power_on(&self) {
        assert!(!self.is_on(), "the machine is on already");
        let log = File::options().create(true).append(true).open(self.path("qemu.log")).unwrap();
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.qemu.replace(Some(command.spawn().unwrap()));
        self.wait_for_shell();
    }

    fn command(&self) -> Command {
        let at = self.slot.dir().display();
        let processor = processor();
        let mut command = Command::new(processor.qemu.command);
        // Software emulation unless somebody knows that the hardware's works here.
        let accel = std::env::var_os("NODELET_MACHINE_ACCEL").unwrap_or("tcg,thread=multi".into());
        command.arg("-accel").arg(accel).args(["-cpu", processor.cpu, "-smp", "2"]);
        command.args(["-machine", processor.board]);
        // What translated code leaves behind makes the next boot of the same process slow, by
        // minutes at times.
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        command.args(["-m", &self.hardware.memory_mib.to_string()]);
        command.args(["-rtc", &format!("base={}", self.hardware.clock)]);
        // norandmaps: at random addresses, QEMU translates a program anew each time that it starts.
        command.arg("-kernel").arg(self.image.join("vmlinuz")).arg("-append").arg(format!(
            "root=/dev/nvme0n1 rootfstype=ext4 rootflags=commit=300 rw console={} quiet \
             net.ifnames=0 no_timer_check mitigations=off norandmaps random.trust_cpu=on \
             systemd.show_status=0",
            processor.serial
        ));
        let drives = [("disk", "qcow2", "off"), ("files.tar", "raw", "on")];
        for (name, format, read_only) in drives {
            let file = format!("if=none,id={name},file={at}/{name},format={format}");
            command.args(["-drive", &format!("{file},cache=writeback,readonly={read_only}")]);
            command.args(["-device", &format!("nvme,drive={name},serial={name}")]);
        }
        command.args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]);
        let shell = format!("socket,id=shell,path={at}/shell.sock,server=on,wait=off");
        command.args(["-chardev", &shell]);
        command.args(["-device", "virtserialport,chardev=shell,name=test-shell"]);
        let (cri, agent) = (self.cri_port(), self.agent_port());
        let restrict = if self.hardware.reaches_host { "off" } else { "on" };
        let network = format!(
            "user,restrict={restrict},hostfwd=tcp:127.0.0.1:{cri}-:1234,hostfwd=tcp:127.0.0.1:{agent}-:1235"
        );
        command.args(["-nic", &format!("{network},model=virtio-net-pci")]);
        command.args(["-serial", &format!("file:{at}/serial.log")]);
        command
    }

    /// Where containerd's socket is reached from outside.
    pub fn cri_port(&self) -> u16 {
        self.slot.port()
    }

    /// Where the agent's socket is reached from outside.
    pub fn agent_port(&self) -> u16 {
        self.slot.second_port()
    }

    /// A new directory on the host that lives as long as the machine.
    pub fn host_dir(&self, name: &str) -> PathBuf {
        let dir = self.path(name);
        fs::create_dir(&dir).unwrap();
        dir
    }

    /// Runs a bash script as root; it must succeed. Gives what it printed.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        let answer = self.run(script);
        assert_eq!(answer.code, 0, "in the machine: {script}\n{}", answer.output);
        answer.output
    }

    /// Runs a bash script as root.
    #[track_caller]
    pub fn run(&self, script: &str) -> Answer {
        match self.try_run(script, SOON) {
            Ok(answer) => answer,
            Err(err) => panic!("no answer from the machine: {err}: {script}"),
        }
    }

    /// As [`Self::run`] for a machine that may go down meanwhile.
    ///
    /// # Errors
    /// When there is no answer within `deadline`.
    pub fn try_run(&self, script: &str, deadline: Duration) -> std::io::Result<Answer> {
        let mut shell = match self.shell.take() {
            Some(shell) => shell,
            None => Shell::connect(&self.path("shell.sock"))?,
        };
        let answer = shell.run(script, deadline)?;
        self.shell.replace(Some(shell));
        Ok(answer)
    }

    /// Writes a file as a careful person does: beside, then renamed.
    #[track_caller]
    pub fn write(&self, path: &str, content: &str) {
        assert!(!content.lines().any(|line| line == "END-OF-FILE"));
        let (dir, name) = path.rsplit_once('/').unwrap();
        let beside = format!("{dir}/.{name}.new");
        self.sh(&format!(
            "mkdir -p {dir}; cat >{beside} <<'END-OF-FILE'\n{content}\nEND-OF-FILE\nmv {beside} {path}"
        ));
    }

    /// `systemctl reboot`, and waits for the shell of the next boot.
    #[track_caller]
    pub fn reboot(&self) {
        self.sh(&in_a_second("systemctl reboot"));
        self.wait_until_off();
        self.power_on();
    }

    /// The power goes: nothing that was not synced is kept.
    pub fn cut_power(&self) {
        self.shell.replace(None);
        let mut qemu = self.qemu.take().expect("the machine is on");
        qemu.kill().unwrap();
        qemu.wait().unwrap();
    }

    /// `systemctl poweroff`, and waits until it is off.
    pub fn power_off(&self) {
        self.sh(&in_a_second("systemctl poweroff"));
        self.wait_until_off();
    }

    /// Waits until the machine has gone down by itself.
    #[track_caller]
    pub fn wait_until_off(&self) {
        let off = poll_until(SOON, || self.is_on(), |on| !on);
        assert!(off.is_ok(), "the machine does not go off\n{}", self.serial_tail());
        self.shell.replace(None);
        self.qemu.replace(None);
    }

    /// Whether it is on.
    pub fn is_on(&self) -> bool {
        self.qemu.borrow_mut().as_mut().is_some_and(|qemu| qemu.try_wait().unwrap().is_none())
    }

    fn wait_for_shell(&self) {
        let end = Instant::now() + BOOT;
        self.shell.replace(None);
        loop {
            let answer = self.try_run("true", Duration::from_secs(2));
            if answer.is_ok() {
                return;
            }
            let (on, late) = (self.is_on(), Instant::now() > end);
            assert!(on && !late, "no shell: on {on}, last {answer:?}\n{}", self.serial_tail());
            pause(Duration::from_millis(100));
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.slot.dir().join(name)
    }

    fn serial_tail(&self) -> String {
        let read = |name: &str| fs::read(self.path(name)).unwrap_or_default();
        let mut text = String::from_utf8_lossy(&read("qemu.log")).into_owned();
        text.push_str(&String::from_utf8_lossy(&read("serial.log")));
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// What a person wants to see of a machine in which a test failed.
    fn tell_what_happened(&self) {
        let journal = "journalctl --no-hostname -o short-monotonic --no-pager -n 20000";
        let journal = match self.try_run(journal, Duration::from_secs(60)) {
            Ok(answer) => answer.output,
            Err(err) => format!("no journal: {err}\n"),
        };
        let test = std::thread::current().name().unwrap_or("machine").replace("::", "-");
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("machine-failures");
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join(format!("{test}.journal"));
        fs::write(&file, &journal).unwrap();
        let lines: Vec<&str> = journal.lines().collect();
        let tail = lines[lines.len().saturating_sub(60)..].join("\n");
        support::say_loudly(&format!(
            "--- {test}, serial line:\n{}\n--- journal (whole: {}):\n{tail}",
            self.serial_tail(),
            file.display()
        ));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() || std::env::var_os("NODELET_MACHINE_JOURNAL").is_some() {
            self.tell_what_happened();
        }
        if self.is_on() {
            self.cut_power();
        }
    }
}

/// What lets the shell answer before the machine goes down.
fn in_a_second(command: &str) -> String {
    format!("(sleep 1; {command}) >/dev/null 2>&1 &")
}

/// Whether what needs whole machines must be skipped here.
#[track_caller]
pub fn skip_without_machines() -> bool {
    let x86_64 = cfg!(target_arch = "x86_64");
    if !x86_64 {
        skips::say_skipped("its machines run on x86_64");
        return true;
    }
    let Processor { qemu, strip, .. } = processor();
    skip_without(&[
        skips::root(),
        (support::on_path(qemu.command), qemu.package),
        (support::on_path("qemu-img"), "qemu-utils"),
        (support::on_path("mmdebstrap"), "mmdebstrap"),
        (support::on_path("mke2fs"), "e2fsprogs"),
        (support::on_path(strip.command), strip.package),
    ])
}

/// The folder with the image's files, made when it is not there yet.
pub fn image() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let made = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machine/image"))
        .arg(target.join(processor().image_dir))
        .arg(processor().architecture)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(made.status.success(), "tests/machine/image failed");
    PathBuf::from(String::from_utf8(made.stdout).unwrap().trim())
}
