//! Facts of the host: its name, ids, addresses, kernel, operating system and capacity.
//!
//! They are read here and nowhere else, below a root directory that is `/` outside of tests. What
//! changes while pods run (free memory, load) is not a fact but a measurement: see `signals`.

mod addresses;
mod capacity;
mod rtnetlink;
#[cfg(test)]
mod tests;
mod watch;

pub use capacity::{capacity, cpus, physical_cores, swap_bytes, swap_is_on};
pub use watch::{AddressTask, NodeIps};

use std::{fs, path::Path};

const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";
const MACHINE_ID: [&str; 2] = ["etc/machine-id", "var/lib/dbus/machine-id"];
const OS_RELEASE: [&str; 2] = ["etc/os-release", "usr/lib/os-release"];
/// A machine whose firmware has no UUID uses its machine id.
const SYSTEM_UUID: [&str; 5] = [
    "sys/class/dmi/id/product_uuid",
    "proc/device-tree/system-id",
    "proc/device-tree/vm,uuid",
    MACHINE_ID[0],
    MACHINE_ID[1],
];
/// The architecture that this program was compiled for, as Rust names it: `x86_64`, `aarch64`. On a
/// 64-bit kernel a 32-bit agent reports 32 bits, as the kubelet does.
pub const ARCHITECTURE: &str = std::env::consts::ARCH;

/// The host's name, as the kernel has it.
///
/// # Errors
/// When the system call fails.
pub fn host_name() -> nix::Result<String> {
    Ok(nix::unistd::gethostname()?.to_string_lossy().into_owned())
}

/// Release of the running kernel: `6.12.38+deb13-amd64`. Empty when the kernel does not tell it.
pub fn kernel_release() -> String {
    let kernel = nix::sys::utsname::uname();
    kernel.map(|kernel| kernel.release().to_string_lossy().into_owned()).unwrap_or_default()
}

/// The id that the kernel draws at every boot. Empty when it can't be read.
pub fn boot_id(root: &Path) -> String {
    first_of(root, &[BOOT_ID])
}

/// The id that the installation keeps, of systemd or D-Bus. Empty when it can't be read.
pub fn machine_id(root: &Path) -> String {
    first_of(root, &MACHINE_ID)
}

/// The UUID that the firmware or hypervisor gives the machine, else the machine id.
pub fn system_uuid(root: &Path) -> String {
    first_of(root, &SYSTEM_UUID)
}

/// `PRETTY_NAME` of os-release; `Linux` when the file lacks it, `Unknown` without the file.
pub fn os_image(root: &Path) -> String {
    let mut texts = OS_RELEASE.iter().map(|path| fs::read_to_string(root.join(path)));
    let Some(text) = texts.find_map(Result::ok) else { return "Unknown".to_owned() };
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or("Linux".to_owned(), |name| name.trim_matches(['"', '\'']).to_owned())
}

/// Whether the kernel enforces AppArmor profiles.
pub fn has_app_armor(root: &Path) -> bool {
    let enabled = fs::read_to_string(root.join("sys/module/apparmor/parameters/enabled"));
    enabled.is_ok_and(|enabled| enabled.starts_with('Y'))
}

/// The text of the first of these files that can be read.
fn first_of(root: &Path, paths: &[&str]) -> String {
    let read = |path: &&str| fs::read_to_string(root.join(path)).ok();
    paths.iter().find_map(read).unwrap_or_default().trim().to_owned()
}
