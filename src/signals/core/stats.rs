//! The files of the kernel that tell what a cgroup, a process or a network interface has used.

use super::memory::keyed;
use crate::model::{DeviceIo, InterfaceStats, MemoryStats, Psi, Stall, Traffic};
use std::{collections::BTreeMap, time::Duration};

/// Ticks of a second in `/proc`, on every architecture that Kubernetes runs on (`USER_HZ`).
const TICKS: u64 = 100;

/// What is in `memory.stat`.
#[must_use]
pub(in crate::signals) fn memory_stats(text: &str, v1: bool) -> MemoryStats {
    let [rss, cache, mapped, faults, major] = match v1 {
        true => {
            ["total_rss", "total_cache", "total_mapped_file", "total_pgfault", "total_pgmajfault"]
        }
        false => ["anon", "file", "file_mapped", "pgfault", "pgmajfault"],
    };
    let told = |name| keyed(text, name).unwrap_or(0);
    MemoryStats {
        rss: told(rss),
        cache: told(cache),
        mapped_file: told(mapped),
        page_faults: told(faults),
        major_page_faults: told(major),
        ..MemoryStats::default()
    }
}

/// Page faults of the machine, and the major ones among them: `/proc/vmstat`.
#[must_use]
pub(in crate::signals) fn machine_faults(vmstat: &str) -> (u64, u64) {
    let told = |name| keyed(vmstat, name).unwrap_or(0);
    (told("pgfault"), told("pgmajfault"))
}

/// `cpu.max`: quota and period in microseconds; `None` without a quota.
#[must_use]
pub(in crate::signals) fn cpu_max(text: &str) -> Option<(u64, u64)> {
    let (quota, period) = text.trim().split_once(' ')?;
    Some((quota.parse().ok()?, period.parse().ok()?))
}

/// The shares of cgroup v1 that have this `cpu.weight`: the reverse of what runtimes and the agent
/// make of shares, KEP-2254.
#[must_use]
pub(in crate::signals) fn shares_of_weight(weight: u64) -> u64 {
    2 + weight.saturating_sub(1).saturating_mul(262_142) / 9_999
}

/// A file of pressure stall information.
#[must_use]
pub(in crate::signals) fn psi(text: &str) -> Option<Psi> {
    let stall = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        let field = |name: &str| {
            line.split_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        let average = |name: &str| field(name)?.parse::<f64>().ok();
        Some(Stall {
            total: Duration::from_micros(field("total")?.parse().ok()?),
            averages: [average("avg10")?, average("avg60")?, average("avg300")?],
        })
    };
    // Older kernels have no `full` for CPUs.
    Some(Psi { some: stall("some ")?, full: stall("full ").unwrap_or_default() })
}

/// `io.stat`: `8:0 rbytes=4096 wbytes=0 rios=1 wios=0 ...`
#[must_use]
pub(in crate::signals) fn io_stat(text: &str) -> Vec<DeviceIo> {
    text.lines()
        .filter_map(|line| {
            let (device, fields) = line.split_once(' ')?;
            let field = |name: &str| {
                let value =
                    fields.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
                value.and_then(|value| value.parse().ok()).unwrap_or(0)
            };
            Some(DeviceIo {
                device: device_number(device)?,
                read_bytes: field("rbytes"),
                written_bytes: field("wbytes"),
                reads: field("rios"),
                writes: field("wios"),
                ..DeviceIo::default()
            })
        })
        .collect()
}

/// `blkio.throttle.io_service_bytes` and `blkio.throttle.io_serviced`: `8:0 Read 4096`.
#[must_use]
pub(in crate::signals) fn blkio(bytes: &str, operations: &str) -> Vec<DeviceIo> {
    let mut found: BTreeMap<(u32, u32), DeviceIo> = BTreeMap::new();
    for (text, counts_bytes) in [(bytes, true), (operations, false)] {
        for line in text.lines() {
            let mut words = line.split(' ');
            let (device, operation) = (words.next().and_then(device_number), words.next());
            let count = words.next().and_then(|count| count.parse().ok());
            let (Some(device), Some(operation), Some(count)) = (device, operation, count) else {
                continue;
            };
            let io = found.entry(device).or_insert(DeviceIo { device, ..DeviceIo::default() });
            match (operation, counts_bytes) {
                ("Read", true) => io.read_bytes = count,
                ("Write", true) => io.written_bytes = count,
                ("Read", false) => io.reads = count,
                ("Write", false) => io.writes = count,
                _ => {}
            }
        }
    }
    found.into_values().collect()
}

fn device_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The interfaces of `/proc/<pid>/net/dev`, without the loopback device.
#[must_use]
pub(in crate::signals) fn interfaces(text: &str) -> Vec<InterfaceStats> {
    text.lines()
        .filter_map(|line| {
            let (name, counts) = line.split_once(':')?;
            let counts: Vec<u64> =
                counts.split_whitespace().map_while(|count| count.parse().ok()).collect();
            let traffic = |from: usize| {
                let counts = counts.get(from..from + 4)?;
                Some(Traffic {
                    bytes: counts[0],
                    packets: counts[1],
                    errors: counts[2],
                    dropped: counts[3],
                })
            };
            Some(InterfaceStats {
                name: name.trim().to_owned(),
                received: traffic(0)?,
                sent: traffic(8)?,
            })
        })
        .filter(|interface| !IGNORED.iter().any(|prefix| interface.name.starts_with(prefix)))
        .collect()
}

/// What names of interfaces that are not counted begin with, as with cAdvisor: those of pods would
/// be counted twice.
const IGNORED: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// Time in programs and in the kernel: the 14th and 15th field of `/proc/<pid>/stat`.
#[must_use]
pub(in crate::signals) fn process_cpu(stat: &str) -> Option<(Duration, Duration)> {
    // The name of the command stands in brackets, and may hold brackets and spaces.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let mut time = || {
        let ticks: u64 = fields.next()?.parse().ok()?;
        Some(Duration::from_millis(ticks.saturating_mul(1000 / TICKS)))
    };
    Some((time()?, time()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn memory_is_told_by_both_versions() {
        let v2 = "anon 10\nfile 20\nfile_mapped 3\npgfault 400\npgmajfault 5\n";
        let v1 = "rss 1\ntotal_cache 20\ntotal_rss 10\ntotal_mapped_file 3\ntotal_pgfault 400\n\
            total_pgmajfault 5\n";
        let expected = MemoryStats {
            rss: 10,
            cache: 20,
            mapped_file: 3,
            page_faults: 400,
            major_page_faults: 5,
            ..MemoryStats::default()
        };
        assert_eq!((memory_stats(v2, false), memory_stats(v1, true)), (expected, expected));
        assert_eq!(machine_faults("nr_free_pages 9\npgfault 7\npgmajfault 2\n"), (7, 2));
    }

    #[test]
    fn a_quota_is_told_where_there_is_one() {
        assert_eq!(cpu_max("50000 100000\n"), Some((50_000, 100_000)));
        assert_eq!(cpu_max("max 100000\n"), None);
        assert_eq!(cpu_max(""), None);
        assert_eq!((shares_of_weight(1), shares_of_weight(10_000)), (2, 262_144));
    }

    #[test]
    fn pressure_is_told_in_percent_and_microseconds() {
        let text = "some avg10=1.50 avg60=0.25 avg300=0.00 total=1234\n\
            full avg10=0.00 avg60=0.10 avg300=0.00 total=56\n";
        let found = psi(text).unwrap();
        assert_eq!(found.some.total, Duration::from_micros(1234));
        assert!((found.some.averages[0] - 1.5).abs() < 1e-9);
        assert_eq!(found.full.total, Duration::from_micros(56));
        let of_cpus = text.lines().next().unwrap();
        assert_eq!(psi(of_cpus).unwrap().full, Stall::default());
        assert_eq!(psi("Operation not supported"), None);
    }

    #[test]
    fn devices_are_told_by_both_versions() {
        let v2 = "8:0 rbytes=4096 wbytes=512 rios=2 wios=1 dbytes=0 dios=0\n7:1 \nx\n";
        let expected = DeviceIo {
            device: (8, 0),
            path: String::new(),
            read_bytes: 4096,
            written_bytes: 512,
            reads: 2,
            writes: 1,
        };
        let idle = DeviceIo { device: (7, 1), ..DeviceIo::default() };
        assert_eq!(io_stat(v2), [expected.clone(), idle]);
        let bytes = "8:0 Read 4096\n8:0 Write 512\n8:0 Sync 4608\nTotal 4608\n";
        let operations = "8:0 Read 2\n8:0 Write 1\n8:0 Total 3\nTotal 3\n";
        assert_eq!(blkio(bytes, operations), [expected]);
    }

    #[test]
    fn interfaces_are_told_without_the_loopback_device() {
        let text = "Inter-|   Receive                            |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
            lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0\n  \
            veth12ab: 900       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0\n  \
            eth0: 1500      10    1    2    0     0          0         0      700       7    3    4    0     0       0          0\n";
        let found = interfaces(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "eth0");
        assert_eq!(found[0].received, Traffic { bytes: 1500, packets: 10, errors: 1, dropped: 2 });
        assert_eq!(found[0].sent, Traffic { bytes: 700, packets: 7, errors: 3, dropped: 4 });
    }

    #[test]
    fn the_time_of_a_process_is_told_whatever_its_name_is() {
        let stat = "12 (a) b (c) S 1 12 12 0 -1 4194560 1 0 0 0 150 25 0 0 20 0 4 0 100";
        assert_eq!(
            process_cpu(stat),
            Some((Duration::from_millis(1500), Duration::from_millis(250)))
        );
        assert_eq!(process_cpu("12 (a)"), None);
    }
}
