//! The settings of the parts, from the configuration and the machine.

use crate::{
    admission,
    cgroup::{CgroupSettings, CgroupVersion, Cgroups, SystemdSockets},
    config::{Config, Enforce, PidsLimit, SwapBehavior},
    cri::{NodeFacts, to_cri, to_cri::Swap},
    image::{CredentialPaths, ImageSettings, PullRecords, gc::GcSettings},
    machine,
    model::NodeCapacity,
    plan::PlanSettings,
    podspec::{CgroupOptions, IdSpace, IdSpaceError},
    serve::{MachineFacts, ServeSettings},
    worker::HostSettings,
};
use anyhow::Context as _;
use std::{path::Path, time::Duration};

/// Starts of sandboxes and containers at a time, where the configuration names no number: what
/// makes a batch fastest on small machines (see docs/performance.md).
const START_CONCURRENCY: usize = 4;

pub(super) fn host_settings(
    config: &Config,
    node: &admission::NodeFacts,
    owner: Box<str>,
    capacity: &NodeCapacity,
    cgroups: &Cgroups,
) -> HostSettings {
    let micros = |period: Duration| u64::try_from(period.as_micros()).unwrap_or(u64::MAX);
    let period = config.pods.cfs_period.unwrap_or(Duration::from_millis(100));
    HostSettings {
        node_name: node.name.clone(),
        plan: PlanSettings {
            owner: owner.clone(),
            crash_loop_cap: config.pods.crash_loop_cap,
            prepare_updates: config.pods.prepare_updates,
            runtime_classes: config.pods.runtime_classes.clone(),
        },
        owner,
        facts: NodeFacts {
            memory_bytes: capacity.memory_bytes,
            cgroup_v2: cgroups.version() == CgroupVersion::V2,
            hugepage_sizes_bytes: cgroups.limited_page_sizes(capacity),
            swap: swap(config, cgroups.version()),
            cpu_cfs_quota: config.pods.cfs_period.is_some(),
            cpu_period_micros: micros(period),
            single_process_oom_kill: config.pods.single_process_oom_kill,
            seccomp_default: config.pods.seccomp_default,
            selinux: Path::new("/sys/fs/selinux/enforce").exists(),
            seccomp_root: config.paths.root_dir.join("seccomp").to_string_lossy().into_owned(),
            masked_paths: to_cri::thermal_throttle_paths(Path::new("/sys")),
        },
        cgroup: CgroupOptions {
            cpu_cfs_quota: config.pods.cfs_period.is_some(),
            cpu_period_micros: micros(period),
            pids_limit: match config.pods.pids_limit {
                PidsLimit::Automatic => Some((capacity.pids / 8).max(1024)),
                PidsLimit::Unlimited => None,
                PidsLimit::Tasks(tasks) => Some(tasks),
            },
        },
        allocatable: node.allocatable.amounts(),
        resolv_conf: config.pods.dns.resolv_conf.clone(),
        in_cluster: config.cluster.kubeconfig.is_some(),
        cluster_dns: config.pods.dns.cluster_dns.clone(),
        cluster_domain: config.pods.dns.cluster_domain.clone(),
        request_timeout: config.cri.request_timeout,
    }
}

/// The ids that pods with a user namespace may have. A file that can't be read counts as empty.
pub(super) fn id_space(config: &Config) -> Result<IdSpace, IdSpaceError> {
    let [uids, gids] = ["/etc/subuid", "/etc/subgid"]
        .map(|path| std::fs::read_to_string(path).unwrap_or_default());
    IdSpace::of_machine(&uids, &gids, config.pods.ids_per_pod, config.pods.max_pods)
}

pub(super) fn cgroup_settings(config: &Config) -> CgroupSettings {
    CgroupSettings {
        root: config.cgroup.root.clone(),
        per_qos: config.cgroup.per_qos,
        driver: config.cgroup.driver,
        systemd: SystemdSockets::default(),
    }
}

pub(super) fn image_settings(config: &Config) -> anyhow::Result<ImageSettings> {
    Ok(ImageSettings {
        parallel: config.images.parallel,
        qps: config.images.qps,
        burst: config.images.burst,
        credentials: CredentialPaths {
            root_dir: config.paths.root_dir.clone(),
            work_dir: std::env::current_dir().context("the working directory is gone")?,
            home_dir: config.paths.home_dir.clone(),
        },
        providers: config.images.providers.clone(),
        records: PullRecords::load(
            config.paths.root_dir.join("image_manager"),
            config.images.verification.clone(),
        ),
    })
}

pub(super) fn gc_settings(config: &Config) -> GcSettings {
    let gc = &config.images.gc;
    GcSettings {
        high_percent: gc.high_percent,
        low_percent: gc.low_percent,
        minimum_age: gc.minimum_age,
        maximum_age: gc.maximum_age,
        include_foreign: gc.include_foreign,
    }
}

pub(super) fn serve_settings(
    config: &Config,
    capacity: &NodeCapacity,
    cgroups: CgroupVersion,
) -> ServeSettings {
    ServeSettings {
        run_dir: config.paths.run_dir.clone(),
        healthz: config.health.address,
        read_only: config.server.read_only,
        pod_logs_dir: config.paths.pod_logs_dir.clone(),
        machine: machine_facts(capacity, cgroups),
        configuration: config.effective.clone(),
        stream_idle: config.server.stream_idle,
        sync_frequency: config.pods.sync_frequency,
    }
}

fn machine_facts(capacity: &NodeCapacity, cgroups: CgroupVersion) -> MachineFacts {
    let root = Path::new("/");
    MachineFacts {
        cpus: capacity.cpu_milli / 1000,
        cores: machine::physical_cores(root),
        memory_bytes: capacity.memory_bytes,
        swap_bytes: machine::swap_bytes(root),
        machine_id: machine::machine_id(root),
        system_uuid: machine::system_uuid(root),
        boot_id: machine::boot_id(root),
        kernel: machine::kernel_release(),
        os: machine::os_image(root),
        cgroup_version: match cgroups {
            CgroupVersion::V1 => 1,
            CgroupVersion::V2 => 2,
        },
    }
}

pub(super) fn start_turns(config: &Config) -> usize {
    let configured = config.pods.start_concurrency.and_then(|n| usize::try_from(n).ok());
    configured.unwrap_or(START_CONCURRENCY).max(1)
}

/// `systemReserved` and `kubeReserved` together.
pub(super) fn reserved(config: &Config) -> crate::cgroup::Reserved {
    let (system, kube) = (&config.cgroup.system_reserved, &config.cgroup.kube_reserved);
    crate::cgroup::Reserved {
        cpu_milli: system.cpu_milli.saturating_add(kube.cpu_milli),
        memory_bytes: system.memory_bytes.saturating_add(kube.memory_bytes),
        pids: system.pids.saturating_add(kube.pids),
    }
}

/// Whether all pods together are held below what is not reserved.
pub(super) fn enforces_pods(config: &Config) -> bool {
    config.cgroup.enforce == Enforce::Pods
}

/// What of swap containers may use, as far as the kernel can tell.
fn swap(config: &Config, version: CgroupVersion) -> Option<Swap> {
    accounts_swap(version).then(|| match config.pods.swap {
        SwapBehavior::NoSwap => Swap::No,
        SwapBehavior::LimitedSwap => {
            Swap::Limited { node_bytes: machine::swap_bytes(Path::new("/")) }
        }
    })
}

/// Whether memory cgroups account for swap, which is off on some kernels.
fn accounts_swap(version: CgroupVersion) -> bool {
    let root = Path::new("/sys/fs/cgroup");
    match version {
        CgroupVersion::V1 => root.join("memory/memory.memsw.limit_in_bytes").exists(),
        CgroupVersion::V2 => {
            // The root cgroup has no limits; any of its children shows what the kernel has.
            let children = std::fs::read_dir(root).into_iter().flatten().flatten();
            children.into_iter().any(|child| child.path().join("memory.swap.max").exists())
        }
    }
}
