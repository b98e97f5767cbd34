//! `spec.volumes`, and where containers mount them.

use super::{
    Report,
    container::{Named, check_image},
    files, given, names,
};
use crate::{
    model::{Quantity, k8s},
    podspec::{
        HugePagesError, HugepageLimit, check_nfs_path, huge_pages, hugepage_limits,
        is_on_huge_pages, nfs_server, pod_limits,
    },
};
use std::collections::{HashMap, HashSet};

const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "DirectoryOrCreate",
    "Directory",
    "FileOrCreate",
    "File",
    "Socket",
    "CharDevice",
    "BlockDevice",
];

pub(super) fn check(report: &mut Report, spec: &k8s::PodSpec, named: &Named<'_>) {
    let mut names = HashSet::new();
    let huge = hugepage_limits(&pod_limits(spec));
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = format!("spec.volumes[{index}]");
        let name_path = format!("{path}.name");
        report.name(&name_path, &volume.name, names::dns_label);
        if !volume.name.is_empty() && !names.insert(volume.name.as_str()) {
            report.duplicate(&name_path, volume.name.as_str());
        }
        check_source(report, &path, volume, &huge, named);
    }
}

/// `huge` are the pod's limits of huge pages.
fn check_source(
    report: &mut Report,
    path: &str,
    volume: &k8s::Volume,
    huge: &[HugepageLimit],
    named: &Named<'_>,
) {
    let kinds = [
        ("emptyDir", volume.empty_dir.is_some()),
        ("hostPath", volume.host_path.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("secret", volume.secret.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("projected", volume.projected.is_some()),
        ("image", volume.image.is_some()),
        ("nfs", volume.nfs.is_some()),
    ];
    for (kind, _) in kinds.into_iter().filter(|(_, given)| *given).skip(1) {
        report.forbidden(&format!("{path}.{kind}"), "may not specify more than 1 volume type");
    }
    if let Some(empty_dir) = &volume.empty_dir {
        check_empty_dir(report, &format!("{path}.emptyDir"), empty_dir, huge);
    }
    if let Some(host_path) = &volume.host_path {
        check_host_path(report, &format!("{path}.hostPath"), host_path);
    }
    if let Some(image) = &volume.image {
        let path = format!("{path}.image");
        check_image(
            report,
            (&format!("{path}.reference"), image.reference.as_ref()),
            (&format!("{path}.pullPolicy"), image.pull_policy.as_deref()),
        );
    }
    if let Some(nfs) = &volume.nfs {
        check_nfs(report, &format!("{path}.nfs"), nfs);
    }
    files::check(report, path, volume, named);
}

fn check_nfs(report: &mut Report, path: &str, source: &k8s::NFSVolumeSource) {
    let fields = [
        ("server", &source.server, nfs_server(&source.server).map(drop)),
        ("path", &source.path, check_nfs_path(&source.path)),
    ];
    for (field, value, checked) in fields {
        let path = format!("{path}.{field}");
        if value.is_empty() {
            report.required(&path);
        } else if let Err(error) = checked {
            report.invalid(&path, value.as_str(), &error.to_string());
        }
    }
}

fn check_empty_dir(
    report: &mut Report,
    path: &str,
    source: &k8s::EmptyDirVolumeSource,
    huge: &[HugepageLimit],
) {
    let medium = given(source.medium.as_ref()).unwrap_or_default();
    let of_huge_pages = is_on_huge_pages(medium).then(|| huge_pages(huge, medium));
    let media = ["", "HugePages", "HugePages-*", "Memory"];
    let path_of_medium = format!("{path}.medium");
    match of_huge_pages {
        Some(Ok(_)) => {}
        None | Some(Err(HugePagesError::Medium(_))) => {
            report.one_of(&path_of_medium, Some(medium), &media);
        }
        Some(Err(error)) => report.invalid(&path_of_medium, medium, &error.to_string()),
    }
    let Some(limit) = &source.size_limit else { return };
    let path = format!("{path}.sizeLimit");
    if Quantity::parse(&limit.0).is_ok_and(Quantity::is_negative) {
        report.invalid(&path, limit.0.as_str(), "must be greater than or equal to 0");
    }
}

fn check_host_path(report: &mut Report, path: &str, source: &k8s::HostPathVolumeSource) {
    let where_path = format!("{path}.path");
    if source.path.is_empty() {
        report.required(&where_path);
    } else if let Err(detail) = names::no_backsteps(&source.path) {
        report.invalid(&where_path, source.path.as_str(), &detail.to_string());
    } else if !source.path.starts_with('/') {
        report.invalid(&where_path, source.path.as_str(), "must be an absolute path");
    }
    report.one_of(&format!("{path}.type"), source.type_.as_deref(), &HOST_PATH_TYPES);
}

/// The mounts of one container.
pub(super) fn check_mounts(
    report: &mut Report,
    path: &str,
    container: &k8s::Container,
    named: &Named<'_>,
) {
    let privileged =
        container.security_context.as_ref().is_some_and(|s| s.privileged == Some(true));
    let mut targets: HashMap<&str, usize> = HashMap::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = format!("{path}.volumeMounts[{index}]");
        if mount.name.is_empty() {
            report.required(&format!("{path}.name"));
        } else if !named.volumes.contains(mount.name.as_str()) {
            report.not_found(&format!("{path}.name"), &mount.name);
        }
        let target = mount.mount_path.as_str();
        if target.is_empty() {
            report.required(&format!("{path}.mountPath"));
        } else if targets.insert(target, index).is_some() {
            report.invalid(&format!("{path}.mountPath"), target, "must be unique");
        } else if target.contains(':') {
            let message = "the colon is a part of the path: for options like ':ro', set fields like `readOnly`";
            report.warn(&format!("{path}.mountPath"), message);
        }
        sub_path(report, &path, mount);
        report.one_of(
            &format!("{path}.mountPropagation"),
            mount.mount_propagation.as_deref(),
            &["Bidirectional", "HostToContainer", "None"],
        );
        if mount.mount_propagation.as_deref() == Some("Bidirectional") && !privileged {
            let detail =
                "Bidirectional mount propagation is available only to privileged containers";
            report.forbidden(&format!("{path}.mountPropagation"), detail);
        }
        recursive_read_only(report, &format!("{path}.recursiveReadOnly"), mount);
    }
}

fn sub_path(report: &mut Report, path: &str, mount: &k8s::VolumeMount) {
    let plain = given(mount.sub_path.as_ref());
    let expression = given(mount.sub_path_expr.as_ref());
    if let Some(text) = plain
        && let Err(detail) = names::inner_path(text)
    {
        report.invalid(&format!("{path}.subPath"), text, &detail.to_string());
    }
    let Some(text) = expression else { return };
    let path = format!("{path}.subPathExpr");
    if plain.is_some() {
        report.invalid(&path, text, "subPathExpr and subPath are mutually exclusive");
    }
    if let Err(detail) = names::inner_path(text) {
        report.invalid(&path, text, &detail.to_string());
    }
}

fn recursive_read_only(report: &mut Report, path: &str, mount: &k8s::VolumeMount) {
    let mode = mount.recursive_read_only.as_deref();
    report.one_of(path, mode, &["Disabled", "IfPossible", "Enabled"]);
    if !matches!(mode, Some("IfPossible" | "Enabled")) {
        return;
    }
    if mount.read_only != Some(true) {
        report.forbidden(path, "may only be specified when `readOnly` is true");
    }
    if mount.mount_propagation.as_deref().is_some_and(|p| p != "None") {
        report.forbidden(path, "may only be specified when `mountPropagation` is None or not set");
    }
}
