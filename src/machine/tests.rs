#![allow(clippy::unwrap_used, reason = "tests")]

use super::{capacity::CapacityError, *};
use crate::model::NodeCapacity;
use std::collections::BTreeMap;
use tempfile::TempDir;

fn host(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

#[test]
fn capacity_is_read_from_proc_and_sys() {
    let memory = "MemTotal:       16374612 kB\nMemFree: 1 kB\nSwapTotal:  2048 kB\n";
    let files = [
        ("proc/cpuinfo", "processor\t: 0\nx: y\nprocessor\t: 1\n"),
        ("proc/meminfo", memory),
        ("proc/sys/kernel/pid_max", "4194304\n"),
        ("proc/sys/kernel/threads-max", "127000\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3\n"),
        ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n"),
    ];
    let root = host(&files);
    let expected = NodeCapacity {
        cpu_milli: 2000,
        memory_bytes: 16_374_612 * 1024,
        pids: 127_000,
        hugepages: BTreeMap::from([(2 << 20, 6 << 20), (1 << 30, 0)]),
    };
    assert_eq!(capacity(root.path()).unwrap(), expected);
    assert_eq!(swap_bytes(root.path()), 2 << 20);

    let real = capacity(Path::new("/")).unwrap();
    assert!(real.cpu_milli >= 1000 && real.memory_bytes > 0 && real.pids > 0);
}

#[test]
fn threads_of_a_core_count_once() {
    let cpu = |number: u32, package: &str, core: &str| {
        let path = |name| format!("sys/devices/system/cpu/cpu{number}/topology/{name}");
        [(path("physical_package_id"), package.to_owned()), (path("core_id"), core.to_owned())]
    };
    let cpus =
        [cpu(0, "0\n", "0\n"), cpu(1, "0\n", "1\n"), cpu(2, "0\n", "0\n"), cpu(3, "1\n", "0\n")];
    let files: Vec<(&str, &str)> =
        cpus.iter().flatten().map(|(path, text)| (&**path, &**text)).collect();
    assert_eq!(physical_cores(host(&files).path()), 3);
    assert_eq!(physical_cores(host(&[]).path()), 0);
}

#[test]
fn a_missing_or_broken_capacity_file_is_an_error() {
    let error = capacity(host(&[]).path()).unwrap_err();
    assert!(matches!(&error, CapacityError::Read { path, .. } if path.ends_with("proc/cpuinfo")));
    let root = host(&[("proc/cpuinfo", ""), ("proc/meminfo", "MemFree: 1 kB\n")]);
    let error = capacity(root.path()).unwrap_err();
    assert!(error.to_string().ends_with("meminfo\" has no MemTotal"), "{error}");
}

#[test]
fn swap_is_on_when_the_kernel_lists_a_device() {
    let header = "Filename\tType\tSize\tUsed\tPriority\n";
    let on = format!("{header}/dev/zram0 partition 1024 0 100\n");
    for (swaps, expected) in [("", false), (header, false), (on.as_str(), true)] {
        assert_eq!(swap_is_on(host(&[("proc/swaps", swaps)]).path()), expected, "{swaps}");
    }
    assert!(!swap_is_on(host(&[]).path()));
    assert_eq!(swap_bytes(host(&[]).path()), 0);
}

#[test]
fn ids_come_from_the_first_readable_file() {
    let dbus = ("var/lib/dbus/machine-id", "d1\n");
    let uuid = ("proc/device-tree/vm,uuid", "u1\n");
    assert_eq!(machine_id(host(&[dbus, ("etc/machine-id", "m1\n")]).path()), "m1");
    assert_eq!(machine_id(host(&[dbus]).path()), "d1");
    assert_eq!(system_uuid(host(&[dbus, uuid]).path()), "u1");
    assert_eq!(system_uuid(host(&[dbus]).path()), "d1");
    let root = host(&[("proc/sys/kernel/random/boot_id", "b1\n")]);
    assert_eq!(boot_id(root.path()), "b1");
    assert_eq!(boot_id(host(&[]).path()), "");
}

#[test]
fn the_os_image_is_the_pretty_name() {
    let debian = "NAME=Debian\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\n";
    let image = |files: &[(&str, &str)]| os_image(host(files).path());
    assert_eq!(image(&[("usr/lib/os-release", debian)]), "Debian GNU/Linux 13 (trixie)");
    assert_eq!(image(&[("etc/os-release", "NAME=x\n"), ("usr/lib/os-release", debian)]), "Linux");
    assert_eq!(image(&[]), "Unknown");
}
