//! Sysctls that a pod may have of its own.

/// The namespace that holds a sysctl's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SysctlNamespace {
    /// Shared with `hostIPC`.
    Ipc,
    /// Shared with `hostNetwork`.
    Net,
}

/// The kubelet's list of what concerns only the pod's own namespaces and can't hurt its neighbours,
/// each with the first kernel (major, minor) of which that is true.
const SAFE: [(&str, (u32, u32)); 12] = [
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];

/// Whether a sysctl (with dots) is safe with a kernel; `None` counts as a recent one.
#[must_use]
pub fn is_safe_sysctl(name: &str, kernel: Option<(u32, u32)>) -> bool {
    SAFE.iter().any(|(safe, since)| *safe == name && kernel.is_none_or(|kernel| kernel >= *since))
}

/// Whether an entry of `allowedUnsafeSysctls` (a name, or a prefix with `*`) covers `name`.
#[must_use]
pub fn is_allowed_sysctl(pattern: &str, name: &str) -> bool {
    let pattern = sysctl_name(pattern);
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}

/// The namespace that a sysctl (with dots) belongs to; `None` for one of the whole machine.
#[must_use]
pub fn sysctl_namespace(name: &str) -> Option<SysctlNamespace> {
    let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."];
    if name == "kernel.sem" || ipc.iter().any(|prefix| name.starts_with(prefix)) {
        return Some(SysctlNamespace::Ipc);
    }
    name.starts_with("net.").then_some(SysctlNamespace::Net)
}

/// A sysctl's name with dots: `net/ipv4/conf/eth0.1/x` and `net.ipv4.conf.eth0/1.x` are the same,
/// the first separator decides.
#[must_use]
pub fn sysctl_name(name: &str) -> String {
    match name.find(['.', '/']).map(|at| name.as_bytes()[at]) {
        Some(b'/') => name
            .chars()
            .map(|c| match c {
                '/' => '.',
                '.' => '/',
                other => other,
            })
            .collect(),
        Some(_) | None => name.to_owned(),
    }
}
