//! `/proc/meminfo` and the memory files of cgroups.

/// Beyond this a limit of cgroup v1 is none: the kernel's largest one, rounded to its page size.
pub(in crate::signals) const NO_LIMIT: u64 = 1 << 62;

/// What counts of `/proc/meminfo`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemInfo {
    /// `MemTotal`
    pub total: u64,
    /// `MemFree`
    pub free: u64,
    /// `MemAvailable`; `None` before Linux 3.14.
    pub available: Option<u64>,
    /// `AnonPages`
    pub anonymous: u64,
    /// `Cached` and `Buffers`: everything that caches files.
    pub file: u64,
    /// What of it doesn't count, see [`idle_file`].
    pub idle_file: u64,
    /// `SwapTotal`
    pub swap_total: u64,
    /// `SwapFree`
    pub swap_free: u64,
}

/// Why a text is no `/proc/meminfo`; the rest of a sentence about the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemInfoError {
    /// This field is missing, or is no number of kB.
    #[error("it holds no {0}")]
    Missing(&'static str),
    /// In bytes.
    #[error("a part of the memory is larger than all of it, {total} bytes")]
    Impossible { total: u64 },
}

impl MemInfo {
    /// Reads the whole text.
    ///
    /// # Errors
    /// [`MemInfoError`]: what is missing or makes no sense.
    pub fn parse(text: &str) -> Result<Self, MemInfoError> {
        let field = |name: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            let number = rest.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?;
            number.checked_mul(1024)
        };
        let needed = |name| field(name).ok_or(MemInfoError::Missing(name));
        let file = needed("Cached")?.saturating_add(needed("Buffers")?);
        let elsewhere = ["Active(file)", "Shmem", "Unevictable"].into_iter().map(field).sum();
        let info = Self {
            total: needed("MemTotal")?,
            free: needed("MemFree")?,
            available: field("MemAvailable"),
            anonymous: needed("AnonPages")?,
            file,
            idle_file: idle_file(needed("Inactive(file)")?, file, elsewhere),
            swap_total: field("SwapTotal").unwrap_or(0),
            swap_free: field("SwapFree").unwrap_or(0),
        };
        let within = [Some(info.free), info.available, Some(info.anonymous), Some(info.idle_file)];
        if info.total == 0 || within.into_iter().flatten().any(|part| part > info.total) {
            return Err(MemInfoError::Impossible { total: info.total });
        }
        Ok(info)
    }

    /// The machine's working set: what the kubelet makes of the root cgroup's files, which lag
    /// behind (see [`CgroupMemory::is_whole`]).
    #[must_use]
    pub fn working_set(&self) -> u64 {
        working_set(self.anonymous.saturating_add(self.file), self.idle_file)
    }

    /// The working sets of any cgroups together are no larger: all that is neither free nor page
    /// cache that does not count.
    #[must_use]
    pub fn working_sets(&self) -> u64 {
        self.total.saturating_sub(self.free).saturating_sub(self.idle_file)
    }
}

/// What is used and not easily had back.
#[must_use]
pub(in crate::signals) fn working_set(usage: u64, idle_file: u64) -> u64 {
    usage.saturating_sub(idle_file)
}

/// Page cache that doesn't count, in bytes: what is inactive, and what the kernel has just taken
/// off its lists to free it, which is on none of them: all that is not `elsewhere` (active, shmem,
/// unevictable). Who frees much at once (`DAMON_RECLAIM`) lets hundreds of MiB of idle page cache
/// look like use for a moment otherwise. Where it is not told what is elsewhere only the first.
fn idle_file(inactive: u64, file: u64, elsewhere: Option<u64>) -> u64 {
    elsewhere.map_or(inactive, |elsewhere| inactive.max(file.saturating_sub(elsewhere)))
}

/// What `memory.stat` of a cgroup says, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::signals) struct CgroupMemory {
    /// Page cache that does not count, see [`idle_file`].
    pub idle_file: u64,
    /// Anonymous memory, caches, and the kernel's own as far as it is reported (v2).
    accounted: u64,
}

/// What may be missing of the parts of a cgroup's memory: what processors hold in stock, and of the
/// kernel.
const SLACK: u64 = 16 << 20;

impl CgroupMemory {
    /// `None` without the fields that every kernel has.
    #[must_use]
    pub(in crate::signals) fn parse(stat: &str, v1: bool) -> Option<Self> {
        let field = |name: &str| match v1 {
            true => keyed(stat, &format!("total_{name}")),
            false => keyed(stat, name),
        };
        let (file, anonymous) = if v1 { ("cache", "rss") } else { ("file", "anon") };
        let (file, anonymous) = (field(file)?, field(anonymous)?);
        let elsewhere = ["active_file", "shmem", "unevictable"].into_iter().map(field).sum();
        let told = |name: &&str| field(name).unwrap_or(0);
        // One number since Linux 5.18.
        let kernel = field("kernel").unwrap_or_else(|| {
            ["slab", "kernel_stack", "pagetables", "percpu"].iter().map(told).sum()
        });
        let others: u64 = ["sock", "swapcached"].iter().map(told).sum();
        Some(Self {
            idle_file: idle_file(field("inactive_file")?, file, elsewhere),
            accounted: [anonymous, kernel, others].into_iter().fold(file, u64::saturating_add),
        })
    }

    /// Whether that explains what is used. It may lag: a cgroup adds up what those below have
    /// counted when enough of that has come since the last time, but what comes while somebody adds
    /// up may not be noted above, and then waits for the kernel's own round every two seconds. Page
    /// cache that is read at once looks like use meanwhile. (Seen on Linux
    /// 6.18 in up to half of all readings; the files of the cgroups in which the processes are don't lag.)
    #[must_use]
    pub(in crate::signals) fn is_whole(&self, usage: u64, kernel: u64) -> bool {
        usage <= self.accounted.saturating_add(kernel).saturating_add(SLACK)
    }
}

/// The number in a line `name number`, as in `memory.stat` and `cpu.stat`.
#[must_use]
pub(in crate::signals) fn keyed(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// A file with one number.
#[must_use]
pub(in crate::signals) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// `memory.max` or `memory.limit_in_bytes`; `Some(None)` for none.
#[must_use]
pub(in crate::signals) fn limit(text: &str) -> Option<Option<u64>> {
    match text.trim() {
        "max" => Some(None),
        text => text.parse().ok().map(|bytes| Some(bytes).filter(|bytes| *bytes < NO_LIMIT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Debian 12 machine with 512 MiB.
    const MEMINFO: &str = "\
MemTotal:         485832 kB
MemFree:           52460 kB
MemAvailable:     291204 kB
Buffers:           14212 kB
Cached:           236096 kB
SwapCached:          100 kB
Active:           120316 kB
Inactive:         221016 kB
Active(anon):        624 kB
Inactive(anon):    91336 kB
Active(file):     119692 kB
Inactive(file):   129680 kB
Unevictable:           0 kB
SwapTotal:        200000 kB
SwapFree:         190000 kB
Dirty:                76 kB
AnonPages:         91040 kB
Mapped:           104388 kB
HugePages_Total:       0
";

    #[test]
    fn page_cache_on_its_way_out_is_idle() {
        let v2 = "anon 10\nfile 1000\nkernel 1\nshmem 100\n\
            inactive_file 300\nactive_file 200\nunevictable 30\n";
        let idle = |stat: &str| CgroupMemory::parse(stat, false).map(|memory| memory.idle_file);
        let elsewhere = 100 + 200 + 30;
        assert_eq!(idle(v2), Some(1000 - elsewhere));
        let v1: String = v2.lines().map(|line| format!("total_{line}\n")).collect();
        let v1 = v1.replace("total_file", "total_cache").replace("total_anon", "total_rss");
        let v1 = format!("cache 1\nrss 1\ninactive_file 1\n{v1}");
        assert_eq!(CgroupMemory::parse(&v1, true), CgroupMemory::parse(v2, false));
        // Counters are not read at one moment: never less than what is on the list.
        assert_eq!(idle(&v2.replace("file 1000", "file 500")), Some(300));
        for missing in ["\nshmem", "\nactive_file", "\nunevictable"] {
            assert_eq!(idle(&v2.replace(missing, "\nother")), Some(300), "{missing}");
        }
        for missing in ["anon", "\nfile", "inactive_file"] {
            assert_eq!(idle(&v2.replace(missing, "\nother")), None, "{missing}");
        }
    }

    #[test]
    fn a_stat_that_lags_is_noticed() {
        let stat = "anon 1000\nfile 2000\nkernel 500\ninactive_file 0\n";
        let memory = CgroupMemory::parse(stat, false).unwrap();
        assert!(memory.is_whole(3000, 0) && memory.is_whole(3500 + SLACK, 0));
        assert!(!memory.is_whole(3501 + SLACK, 0) && memory.is_whole(3501 + SLACK, 1));
        let parts =
            "slab 200\nkernel_stack 100\npagetables 50\npercpu 50\nsock 60\nswapcached 40\n";
        let old = CgroupMemory::parse(&stat.replace("kernel 500\n", parts), false).unwrap();
        assert_eq!(old.accounted, memory.accounted);
    }

    #[test]
    fn meminfo_is_read() {
        let info = MemInfo::parse(MEMINFO).unwrap();
        assert_eq!((info.total, info.free), (485_832 << 10, 52_460 << 10));
        assert_eq!(info.available, Some(291_204 << 10));
        assert_eq!((info.swap_total, info.swap_free), (200_000 << 10, 190_000 << 10));
        assert_eq!(info.file, (14_212 + 236_096) << 10);
        assert_eq!(info.working_set(), (91_040 + 14_212 + 236_096 - 129_680) << 10);
        assert_eq!(info.working_sets(), (485_832 - 52_460 - 129_680) << 10);
        let old = MemInfo::parse(&MEMINFO.replace("MemAvailable", "Other")).unwrap();
        assert_eq!(old.available, None);
    }

    #[test]
    fn an_absurd_meminfo_is_no_reading() {
        for (from, to, told) in [
            ("MemTotal:         485832 kB", "", "it holds no MemTotal"),
            ("MemTotal:         485832 kB", "MemTotal: 485832", "it holds no MemTotal"),
            ("MemTotal:         485832 kB", "MemTotal: -1 kB", "it holds no MemTotal"),
            ("485832", "99999999999999999999", "it holds no MemTotal"),
            ("485832", "18446744073709551615", "it holds no MemTotal"),
            ("485832", "0", "a part of the memory is larger than all of it, 0 bytes"),
            (
                "291204",
                "291204000",
                "a part of the memory is larger than all of it, 497491968 bytes",
            ),
            ("AnonPages:         91040", "AnonPages: 910400", "a part of the memory is larger"),
            (MEMINFO, "", "it holds no Cached"),
        ] {
            let told_now = MemInfo::parse(&MEMINFO.replace(from, to)).unwrap_err().to_string();
            assert!(told_now.starts_with(told), "{told_now}");
        }
    }

    #[test]
    fn the_files_of_cgroups_are_read() {
        let v2 = "anon 12288\nfile 40960\nkernel 1\ninactive_file 8192\nfile_mapped 1\n";
        assert_eq!(keyed(v2, "anon"), Some(12_288));
        assert_eq!(keyed(v2, "file"), Some(40_960), "and not file_mapped");
        assert_eq!(keyed(v2, "inactive_file"), Some(8192));
        let v1 = "inactive_file 0\ntotal_inactive_file 596905984\n";
        assert_eq!(keyed(v1, "total_inactive_file"), Some(596_905_984));
        for bad in ["", "anon", "anon x", "anonymous 3", "anon -1"] {
            assert_eq!(keyed(bad, "anon"), None, "{bad}");
        }
        assert_eq!(working_set(10, 3), 7);
        assert_eq!(working_set(3, 10), 0, "the two are not read at the same time");
        assert_eq!((number("12\n"), number(""), number("max\n")), (Some(12), None, None));
    }

    #[test]
    fn a_huge_limit_is_none() {
        assert_eq!(limit("max\n"), Some(None));
        assert_eq!(limit("9223372036854771712\n"), Some(None));
        assert_eq!(limit("1073741824\n"), Some(Some(1 << 30)));
        assert_eq!(limit("0"), Some(Some(0)));
        assert_eq!(limit(""), None);
        assert_eq!(limit("-1"), None);
    }
}
