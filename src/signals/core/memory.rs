//! `/proc/meminfo` and the memory files of cgroups.

/// Beyond this a limit of cgroup v1 is none: the kernel's largest one, rounded to its page size.
const NO_LIMIT: u64 = 1 << 62;

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
    /// `Cached`, `Buffers` and `SwapCached`: everything that caches.
    pub file: u64,
    /// `Inactive(file)`
    pub inactive_file: u64,
    /// `SwapTotal`
    pub swap_total: u64,
    /// `SwapFree`
    pub swap_free: u64,
}

impl MemInfo {
    /// Reads the whole text.
    ///
    /// # Errors
    /// What is missing or makes no sense, as the rest of a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        let field = |name: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            let number = rest.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?;
            number.checked_mul(1024)
        };
        let needed = |name: &str| field(name).ok_or_else(|| format!("it holds no {name}"));
        let caches = [needed("Cached")?, needed("Buffers")?, field("SwapCached").unwrap_or(0)];
        let info = Self {
            total: needed("MemTotal")?,
            free: needed("MemFree")?,
            available: field("MemAvailable"),
            anonymous: needed("AnonPages")?,
            file: caches.into_iter().fold(0, u64::saturating_add),
            inactive_file: needed("Inactive(file)")?,
            swap_total: field("SwapTotal").unwrap_or(0),
            swap_free: field("SwapFree").unwrap_or(0),
        };
        let within =
            [Some(info.free), info.available, Some(info.anonymous), Some(info.inactive_file)];
        if info.total == 0 || within.into_iter().flatten().any(|part| part > info.total) {
            return Err(format!(
                "a part of the memory is larger than all of it, {} bytes",
                info.total
            ));
        }
        Ok(info)
    }

    /// The machine's working set from the same counters that the root cgroup's comes from: right but for what the
    /// cgroup's files have not added up yet, and read in microseconds however many cgroups there are.
    #[must_use]
    pub fn working_set(&self) -> u64 {
        working_set(self.anonymous.saturating_add(self.file), self.inactive_file)
    }

    /// The working sets of any cgroups together are no larger: all that is neither free nor page cache that does not count.
    #[must_use]
    pub fn working_sets(&self) -> u64 {
        self.total.saturating_sub(self.free).saturating_sub(self.inactive_file)
    }
}

/// What is used and not easily had back.
#[must_use]
pub(in crate::signals) fn working_set(usage: u64, inactive_file: u64) -> u64 {
    usage.saturating_sub(inactive_file)
}

/// Page cache of which a `memory.stat` says that it doesn't count, in bytes: `inactive_file`, and what the kernel has just
/// taken off its lists to free it, which is on none of them. Who frees much at once (`DAMON_RECLAIM`, a large
/// `memory.reclaim`) lets hundreds of MiB of idle page cache look like use for a moment otherwise. `None` without `inactive_file`;
/// without the other fields (before Linux 5.12) only that counts.
#[must_use]
pub(in crate::signals) fn idle_file(stat: &str, v1: bool) -> Option<u64> {
    let field = |name: &str| match v1 {
        true => memory_stat(stat, &format!("total_{name}")),
        false => memory_stat(stat, name),
    };
    let inactive = field("inactive_file")?;
    let on_no_list = || {
        let cache = field(if v1 { "cache" } else { "file" })?;
        let elsewhere = ["active_file", "shmem", "swapcached", "unevictable"];
        let elsewhere = elsewhere.into_iter().map(field).sum::<Option<u64>>()?;
        Some(cache.saturating_sub(inactive).saturating_sub(elsewhere))
    };
    Some(inactive.saturating_add(on_no_list().unwrap_or(0)))
}

/// A line of `memory.stat`.
#[must_use]
pub(in crate::signals) fn memory_stat(text: &str, name: &str) -> Option<u64> {
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
        let v2 = "anon 10\nfile 1000\nkernel 1\nshmem 100\nswapcached 20\n\
            inactive_file 300\nactive_file 200\nunevictable 30\n";
        let on_no_list = 1000 - 100 - 20 - 300 - 200 - 30;
        assert_eq!(idle_file(v2, false), Some(300 + on_no_list));
        let v1: String = v2.lines().map(|line| format!("total_{line}\n")).collect();
        let v1 = format!("cache 1\ninactive_file 1\n{}", v1.replace("total_file", "total_cache"));
        assert_eq!(idle_file(&v1, true), Some(300 + on_no_list));
        // Counters are not read at one moment: never less than what is on the list.
        assert_eq!(idle_file(&v2.replace("file 1000", "file 500"), false), Some(300));
        for missing in ["\nshmem", "\nswapcached", "\nactive_file", "\nunevictable"] {
            assert_eq!(idle_file(&v2.replace(missing, "\nother"), false), Some(300), "{missing}");
        }
        assert_eq!(idle_file(&v2.replace("inactive_file", "other"), false), None);
    }

    #[test]
    fn meminfo_is_read() {
        let info = MemInfo::parse(MEMINFO).unwrap();
        assert_eq!((info.total, info.free), (485_832 << 10, 52_460 << 10));
        assert_eq!(info.available, Some(291_204 << 10));
        assert_eq!((info.swap_total, info.swap_free), (200_000 << 10, 190_000 << 10));
        assert_eq!(info.file, (14_212 + 236_096 + 100) << 10);
        assert_eq!(info.working_set(), (91_040 + 14_212 + 236_096 + 100 - 129_680) << 10);
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
            let told_now = MemInfo::parse(&MEMINFO.replace(from, to)).unwrap_err();
            assert!(told_now.starts_with(told), "{told_now}");
        }
    }

    #[test]
    fn the_files_of_cgroups_are_read() {
        let v2 = "anon 12288\nfile 40960\nkernel 1\ninactive_file 8192\nfile_mapped 1\n";
        assert_eq!(memory_stat(v2, "anon"), Some(12_288));
        assert_eq!(memory_stat(v2, "file"), Some(40_960), "and not file_mapped");
        assert_eq!(memory_stat(v2, "inactive_file"), Some(8192));
        let v1 = "inactive_file 0\ntotal_inactive_file 596905984\n";
        assert_eq!(memory_stat(v1, "total_inactive_file"), Some(596_905_984));
        for bad in ["", "anon", "anon x", "anonymous 3", "anon -1"] {
            assert_eq!(memory_stat(bad, "anon"), None, "{bad}");
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
