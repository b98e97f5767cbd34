//! The kernel's log about a machine that has run out of memory.

/// The kernel killed a process because the whole machine had no memory left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemOom {
    /// Name of the victim, at most 15 bytes.
    pub victim: String,
    /// Its process id.
    pub pid: u32,
    /// The cgroup it was in; empty where the kernel does not tell.
    pub cgroup: String,
}

impl SystemOom {
    /// The event's message, as the kubelet words it.
    #[must_use]
    pub fn message(&self) -> String {
        format!("System OOM encountered, victim process: {}, pid: {}", self.victim, self.pid)
    }
}

/// Reads one record of `/dev/kmsg`: `6,1234,98765,-;oom-kill:constraint=CONSTRAINT_NONE,...` (Linux
/// 5.0). A kill because of a cgroup's limit, or of a set of memory nodes, is none of the system's.
#[must_use]
pub(in crate::signals) fn system_oom(record: &str) -> Option<SystemOom> {
    let (head, message) = record.split_once(';')?;
    // Only messages of the kernel: no other program can write with facility 0.
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    if priority >= 8 {
        return None;
    }
    let message = message.lines().next()?;
    let fields = message.strip_prefix("oom-kill:constraint=CONSTRAINT_NONE,")?;
    // A name may hold anything: what is around it is found from the outside.
    let (rest, _uid) = fields.rsplit_once(",uid=")?;
    let (rest, pid) = rest.rsplit_once(",pid=")?;
    let (rest, victim) = rest.split_once(",task=")?;
    let cgroup = rest.split_once(",task_memcg=").map_or("", |(_, cgroup)| cgroup);
    Some(SystemOom { victim: victim.to_owned(), pid: pid.parse().ok()?, cgroup: cgroup.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GLOBAL: &str = "6,1871,3924818321,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),\
        cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice/user-0.slice,task=stress,pid=29581,uid=0\n";

    #[test]
    fn a_global_kill_is_told() {
        let oom = system_oom(GLOBAL).unwrap();
        assert_eq!((oom.victim.as_str(), oom.pid), ("stress", 29_581));
        assert_eq!(oom.cgroup, "/user.slice/user-0.slice");
        assert_eq!(oom.message(), "System OOM encountered, victim process: stress, pid: 29581");
        // With CONFIG_PRINTK_CALLER, and with fields below.
        let caller = GLOBAL.replace(",-;", ",-,caller=T29581;") + " SUBSYSTEM=memory\n";
        assert_eq!(system_oom(&caller), Some(oom));
    }

    #[test]
    fn a_name_cannot_pretend() {
        let named = GLOBAL.replace("task=stress", "task=a,pid=1,uid=0");
        let oom = system_oom(&named).unwrap();
        assert_eq!((oom.victim.as_str(), oom.pid), ("a,pid=1,uid=0", 29_581));
        // Written to /dev/kmsg by a process: facility 1 (user).
        assert_eq!(system_oom(&GLOBAL.replacen('6', "14", 1)), None);
    }

    #[test]
    fn other_records_are_none() {
        for other in [
            // By a cgroup's limit.
            "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cri-containerd-1.scope,mems_allowed=0,oom_memcg=/kubepods/pod1,task_memcg=/kubepods/pod1/2,task=hog,pid=12,uid=0",
            "6,1,2,-;oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=0,cpuset=a,mems_allowed=0,global_oom,task_memcg=/,task=hog,pid=12,uid=0",
            "3,1872,2,-;Out of memory: Killed process 29581 (stress) total-vm:9kB, anon-rss:8kB",
            "4,1,2,-;stress invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0",
            "6,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,task=hog,pid=x,uid=0",
            "6,1,2,-;oom-kill:constraint=CONSTRAINT_NONE",
            "x,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,task=hog,pid=12,uid=0",
            "oom-kill:constraint=CONSTRAINT_NONE,task=hog,pid=12,uid=0",
            "",
        ] {
            assert_eq!(system_oom(other), None, "{other}");
        }
    }
}
