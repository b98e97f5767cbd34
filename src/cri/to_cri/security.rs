//! Security contexts, namespaces and profiles.

use super::{ConfigError, ContainerInputs, SandboxInputs};
use crate::cri::v1;
use crate::model::{ContainerId, PodKey, k8s};
use crate::podspec::{
    APP_ARMOR_ANNOTATION, IdRange, all_containers, names_app_armor_profile, pod_display, uid_of,
};
use std::{collections::BTreeSet, path::Path};

/// Kernel interfaces that containers don't see.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// Kernel interfaces that containers don't change.
const READONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Context of a pod's sandbox.
pub(super) fn sandbox(
    spec: &k8s::PodSpec,
    inputs: &SandboxInputs<'_>,
) -> v1::LinuxSandboxSecurityContext {
    let pod = spec.security_context.as_ref();
    let [fs_group, own, of_volumes] = supplemental_groups(pod, inputs.volume_groups);
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(spec, inputs.ids)),
        selinux_options: pod.and_then(|sc| sc.se_linux_options.as_ref()).map(selinux),
        run_as_user: int64(pod.and_then(|sc| sc.run_as_user)),
        run_as_group: int64(pod.and_then(|sc| sc.run_as_group)),
        supplemental_groups: [fs_group, of_volumes, own].concat(),
        supplemental_groups_policy: groups_policy(pod).into(),
        privileged: all_containers(spec).any(|container| is_privileged(&container)),
        // Independent of the containers: a sandbox runs no program of the user.
        seccomp: Some(profile(v1::security_profile::ProfileType::RuntimeDefault, "")),
        readonly_rootfs: false,
        apparmor: None,
    }
}

/// Context of a container: its own settings over the pod's.
///
/// # Errors
/// When the pod must not run as root and would, or a profile has no name.
pub(super) fn container(
    inputs: &ContainerInputs<'_>,
) -> Result<v1::LinuxContainerSecurityContext, ConfigError> {
    let default_spec = k8s::PodSpec::default();
    let spec = inputs.pod.spec.as_ref().unwrap_or(&default_spec);
    let pod = spec.security_context.as_ref();
    let own = inputs.container.security_context.as_ref();
    check_non_root(inputs, pod, own)?;
    let user = own.and_then(|sc| sc.run_as_user).or_else(|| pod.and_then(|sc| sc.run_as_user));
    let group = own.and_then(|sc| sc.run_as_group).or_else(|| pod.and_then(|sc| sc.run_as_group));
    let se_linux = own
        .and_then(|sc| sc.se_linux_options.as_ref())
        .or_else(|| pod.and_then(|sc| sc.se_linux_options.as_ref()));
    let (run_as_user, run_as_username) = match (user, image_user(inputs)) {
        (Some(user), _) => (Some(user), String::new()),
        (None, ImageUser::Number(uid)) => (Some(uid), String::new()),
        (None, ImageUser::Name(name)) => (None, name.to_owned()),
    };
    let unmasked = own.and_then(|sc| sc.proc_mount.as_deref()) == Some("Unmasked");
    let paths = |list: &[&str]| match unmasked {
        true => Vec::new(),
        false => list.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>(),
    };
    let mut masked_paths = paths(&MASKED);
    if !unmasked {
        masked_paths.extend(inputs.node.masked_paths.iter().cloned());
    }
    let [fs_group, own_groups, of_volumes] = supplemental_groups(pod, inputs.volume_groups);
    let (apparmor, apparmor_profile) = apparmor(inputs, pod, own)?;
    #[allow(deprecated, reason = "older runtimes read the text form of the AppArmor profile only")]
    Ok(v1::LinuxContainerSecurityContext {
        capabilities: own.and_then(|sc| sc.capabilities.as_ref()).map(|c| v1::Capability {
            add_capabilities: c.add.clone().unwrap_or_default(),
            drop_capabilities: c.drop.clone().unwrap_or_default(),
            add_ambient_capabilities: Vec::new(),
        }),
        privileged: is_privileged(inputs.container),
        namespace_options: Some(with_target(namespaces(spec, inputs.ids), inputs.target)),
        selinux_options: se_linux.map(selinux),
        run_as_user: int64(run_as_user),
        run_as_group: int64(group),
        run_as_username,
        readonly_rootfs: own.and_then(|sc| sc.read_only_root_filesystem) == Some(true),
        supplemental_groups: [fs_group, own_groups, of_volumes].concat(),
        supplemental_groups_policy: groups_policy(pod).into(),
        no_new_privs: own.and_then(|sc| sc.allow_privilege_escalation) == Some(false),
        masked_paths,
        readonly_paths: paths(&READONLY),
        seccomp: Some(seccomp(inputs, pod, own)?),
        apparmor,
        apparmor_profile,
    })
}

/// The `thermal_throttle` directories of this machine, which are masked too: they tell one
/// container what others do. `sys_root` is `/sys`.
#[must_use]
pub fn thermal_throttle_paths(sys_root: &Path) -> Vec<String> {
    let cpus = sys_root.join("devices/system/cpu");
    let entries = std::fs::read_dir(&cpus).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix("cpu")?.parse::<u32>().ok()?;
        entry.path().join("thermal_throttle").exists().then_some(number)
    });
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    numbers
        .into_iter()
        .map(|number| format!("/sys/devices/system/cpu/cpu{number}/thermal_throttle"))
        .collect()
}

enum ImageUser<'a> {
    Number(i64),
    Name(&'a str),
}

/// The image's user; an image that names none runs as root.
fn image_user<'a>(inputs: &ContainerInputs<'a>) -> ImageUser<'a> {
    match (inputs.image.uid, inputs.image.username) {
        (Some(uid), _) => ImageUser::Number(uid),
        (None, "") => ImageUser::Number(0),
        (None, name) => ImageUser::Name(name),
    }
}

fn check_non_root(
    inputs: &ContainerInputs<'_>,
    pod: Option<&k8s::PodSecurityContext>,
    own: Option<&k8s::SecurityContext>,
) -> Result<(), ConfigError> {
    let asked = own
        .and_then(|sc| sc.run_as_non_root)
        .or_else(|| pod.and_then(|sc| sc.run_as_non_root))
        .unwrap_or(false);
    if !asked {
        return Ok(());
    }
    let meta = &inputs.pod.metadata;
    let key = PodKey::new(
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
    );
    let shown = pod_display(&key, &uid_of(inputs.pod));
    let container = inputs.container.name.clone();
    let user = own.and_then(|sc| sc.run_as_user).or_else(|| pod.and_then(|sc| sc.run_as_user));
    match (user, image_user(inputs)) {
        (Some(0), _) => Err(ConfigError::RunsAsRoot { pod: shown, container }),
        (Some(_), _) => Ok(()),
        (None, ImageUser::Number(0)) => Err(ConfigError::ImageRunsAsRoot { pod: shown, container }),
        (None, ImageUser::Number(_)) => Ok(()),
        (None, ImageUser::Name(user)) => {
            Err(ConfigError::UserUnknown { user: user.to_owned(), pod: shown, container })
        }
    }
}

fn namespaces(spec: &k8s::PodSpec, ids: Option<IdRange>) -> v1::NamespaceOption {
    use v1::NamespaceMode::{Container, Node, Pod};
    let node_or_pod = |host: Option<bool>| if host == Some(true) { Node } else { Pod };
    let pid = match (spec.host_pid, spec.share_process_namespace) {
        (Some(true), _) => Node,
        (_, Some(true)) => Pod,
        (_, _) => Container,
    };
    v1::NamespaceOption {
        network: node_or_pod(spec.host_network).into(),
        pid: pid.into(),
        ipc: node_or_pod(spec.host_ipc).into(),
        target_id: String::new(),
        userns_options: Some(v1::UserNamespace {
            mode: if ids.is_some() { Pod } else { Node }.into(),
            uids: id_mappings(ids),
            gids: id_mappings(ids),
        }),
    }
}

/// Replaces the container's own process id namespace by that of the target. A namespace that the
/// pod or the host shares stays, as with the kubelet.
fn with_target(
    namespaces: v1::NamespaceOption,
    target: Option<&ContainerId>,
) -> v1::NamespaceOption {
    match target {
        Some(target) if namespaces.pid() == v1::NamespaceMode::Container => v1::NamespaceOption {
            pid: v1::NamespaceMode::Target.into(),
            target_id: target.to_string(),
            ..namespaces
        },
        Some(_) | None => namespaces,
    }
}

/// The ids of a user namespace, from 0 on.
pub(super) fn id_mappings(ids: Option<IdRange>) -> Vec<v1::IdMapping> {
    let mapping =
        |ids: IdRange| v1::IdMapping { host_id: ids.first, container_id: 0, length: ids.length };
    ids.map(mapping).into_iter().collect()
}

/// `fsGroup`, the other groups of the pod, and those of its volumes that the pod has not named. As
/// with the kubelet, their order in a sandbox is not that in a container.
fn supplemental_groups(
    pod: Option<&k8s::PodSecurityContext>,
    volume_groups: &BTreeSet<i64>,
) -> [Vec<i64>; 3] {
    let fs_group: Vec<i64> = pod.and_then(|sc| sc.fs_group).into_iter().collect();
    let own = pod.and_then(|sc| sc.supplemental_groups.clone()).unwrap_or_default();
    let of_volumes = volume_groups.iter().copied();
    let of_volumes =
        of_volumes.filter(|gid| !fs_group.contains(gid) && !own.contains(gid)).collect();
    [fs_group, own, of_volumes]
}

fn groups_policy(pod: Option<&k8s::PodSecurityContext>) -> v1::SupplementalGroupsPolicy {
    match pod.and_then(|sc| sc.supplemental_groups_policy.as_deref()) {
        Some("Strict") => v1::SupplementalGroupsPolicy::Strict,
        _ => v1::SupplementalGroupsPolicy::Merge,
    }
}

fn is_privileged(container: &k8s::Container) -> bool {
    container.security_context.as_ref().and_then(|sc| sc.privileged) == Some(true)
}

fn selinux(options: &k8s::SELinuxOptions) -> v1::SeLinuxOption {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    v1::SeLinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        r#type: text(&options.type_),
        level: text(&options.level),
    }
}

fn int64(value: Option<i64>) -> Option<v1::Int64Value> {
    value.map(|value| v1::Int64Value { value })
}

fn profile(kind: v1::security_profile::ProfileType, reference: &str) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: kind.into(), localhost_ref: reference.to_owned() }
}

/// The container's profile, else the pod's, else the node's default.
fn seccomp(
    inputs: &ContainerInputs<'_>,
    pod: Option<&k8s::PodSecurityContext>,
    own: Option<&k8s::SecurityContext>,
) -> Result<v1::SecurityProfile, ConfigError> {
    use v1::security_profile::ProfileType::{Localhost, RuntimeDefault, Unconfined};
    let written = own
        .and_then(|sc| sc.seccomp_profile.as_ref())
        .or_else(|| pod.and_then(|sc| sc.seccomp_profile.as_ref()));
    let Some(written) = written else {
        let kind = if inputs.node.seccomp_default { RuntimeDefault } else { Unconfined };
        return Ok(profile(kind, ""));
    };
    Ok(match written.type_.as_str() {
        "RuntimeDefault" => profile(RuntimeDefault, ""),
        "Localhost" => {
            let name = written.localhost_profile.as_deref().filter(|name| !name.is_empty());
            let name = name.ok_or(ConfigError::ProfileMissing { kind: "seccomp" })?;
            profile(Localhost, &format!("{}/{name}", inputs.node.seccomp_root))
        }
        _ => profile(Unconfined, ""),
    })
}

/// The profile as message and as the older text, from the container's field, its annotation (the
/// only form before the field existed) or the pod's field.
fn apparmor(
    inputs: &ContainerInputs<'_>,
    pod: Option<&k8s::PodSecurityContext>,
    own: Option<&k8s::SecurityContext>,
) -> Result<(Option<v1::SecurityProfile>, String), ConfigError> {
    let of_field = |written: &k8s::AppArmorProfile| match written.type_.as_str() {
        "RuntimeDefault" => Ok("runtime/default".to_owned()),
        "Localhost" => {
            let name = written.localhost_profile.as_deref().filter(|name| !name.is_empty());
            let name = name.ok_or(ConfigError::ProfileMissing { kind: "AppArmor" })?;
            Ok(format!("localhost/{name}"))
        }
        _ => Ok("unconfined".to_owned()),
    };
    let annotation = format!("{APP_ARMOR_ANNOTATION}{}", inputs.container.name);
    let annotations = inputs.pod.metadata.annotations.as_ref();
    let text = if let Some(written) = own.and_then(|sc| sc.app_armor_profile.as_ref()) {
        of_field(written)?
    } else if let Some(text) = annotations
        .and_then(|list| list.get(&annotation))
        .filter(|text| names_app_armor_profile(text))
    {
        text.clone()
    } else if let Some(written) = pod.and_then(|sc| sc.app_armor_profile.as_ref()) {
        of_field(written)?
    } else {
        return Ok((None, String::new()));
    };
    use v1::security_profile::ProfileType::{Localhost, RuntimeDefault, Unconfined};
    let message = match (text.as_str(), text.strip_prefix("localhost/")) {
        ("runtime/default", _) => profile(RuntimeDefault, ""),
        (_, Some(name)) => profile(Localhost, name),
        (_, None) => profile(Unconfined, ""),
    };
    Ok((Some(message), text))
}
