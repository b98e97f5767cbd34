//! Volumes whose files the agent writes: configMap, secret, downwardAPI, projected.

use super::{
    Report,
    container::Named,
    env::{field_ref, resource_ref},
    given, names,
};
use crate::{
    model::k8s,
    podspec::{clean_path, parent_paths},
};
use std::{collections::BTreeSet, ops::Bound};

/// Fields of the pod that a file may hold. Its addresses are not known when it is written.
const FIELD_PATHS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];

pub(super) fn check(report: &mut Report, path: &str, volume: &k8s::Volume, named: &Named<'_>) {
    if let Some(source) = &volume.config_map {
        let path = format!("{path}.configMap");
        report.name(&format!("{path}.name"), &source.name, names::dns_subdomain);
        mode(report, &format!("{path}.defaultMode"), source.default_mode);
        keys(report, &path, source.items.as_deref());
        Paths::default().claim_keys(report, &path, source.items.as_deref());
    }
    if let Some(source) = &volume.secret {
        let path = format!("{path}.secret");
        let name = given(source.secret_name.as_ref()).unwrap_or_default();
        report.name(&format!("{path}.secretName"), name, names::dns_subdomain);
        mode(report, &format!("{path}.defaultMode"), source.default_mode);
        keys(report, &path, source.items.as_deref());
        Paths::default().claim_keys(report, &path, source.items.as_deref());
    }
    if let Some(source) = &volume.downward_api {
        let path = format!("{path}.downwardAPI");
        mode(report, &format!("{path}.defaultMode"), source.default_mode);
        downward(report, &path, source.items.as_deref(), named);
        Paths::default().claim_fields(report, &path, source.items.as_deref());
    }
    if let Some(source) = &volume.projected {
        projected(report, &format!("{path}.projected"), source, named);
    }
}

fn projected(
    report: &mut Report,
    path: &str,
    source: &k8s::ProjectedVolumeSource,
    named: &Named<'_>,
) {
    mode(report, &format!("{path}.defaultMode"), source.default_mode);
    let mut paths = Paths { once: true, ..Paths::default() };
    for (index, projection) in source.sources.iter().flatten().enumerate() {
        let path = format!("{path}.sources[{index}]");
        let mut kinds = 0;
        if let Some(source) = &projection.config_map {
            kinds += 1;
            let path = format!("{path}.configMap");
            report.name(&format!("{path}.name"), &source.name, names::dns_subdomain);
            keys(report, &path, source.items.as_deref());
            paths.claim_keys(report, &path, source.items.as_deref());
        }
        if let Some(source) = &projection.secret {
            kinds += 1;
            let path = format!("{path}.secret");
            report.name(&format!("{path}.name"), &source.name, names::dns_subdomain);
            keys(report, &path, source.items.as_deref());
            paths.claim_keys(report, &path, source.items.as_deref());
        }
        if let Some(source) = &projection.downward_api {
            kinds += 1;
            let path = format!("{path}.downwardAPI");
            downward(report, &path, source.items.as_deref(), named);
            paths.claim_fields(report, &path, source.items.as_deref());
        }
        match kinds {
            0 => report.required_because(&path, "must be configMap, secret or downwardAPI"),
            1 => {}
            _ => report.forbidden(&path, "may not specify more than 1 volume type per source"),
        }
    }
}

/// The paths of the files of one volume.
#[derive(Default)]
struct Paths {
    taken: BTreeSet<String>,
    /// Two sources must not write the same path. Of two items, the later one counts.
    once: bool,
}

impl Paths {
    fn claim_keys(&mut self, report: &mut Report, path: &str, items: Option<&[k8s::KeyToPath]>) {
        self.claim(report, path, items.unwrap_or_default().iter().map(|item| &*item.path));
    }

    fn claim_fields(
        &mut self,
        report: &mut Report,
        path: &str,
        items: Option<&[k8s::DownwardAPIVolumeFile]>,
    ) {
        self.claim(report, path, items.unwrap_or_default().iter().map(|item| &*item.path));
    }

    fn claim<'a>(&mut self, report: &mut Report, path: &str, files: impl Iterator<Item = &'a str>) {
        for (index, written) in files.enumerate() {
            let file = clean_path(written);
            if file.is_empty() {
                continue;
            }
            let path = format!("{path}.items[{index}].path");
            if let Some(other) = self.in_the_way(&file) {
                let detail = format!(
                    "conflicts with the path {other:?} in this volume: one of them would be a file and a directory"
                );
                report.invalid(&path, written, &detail);
            } else if self.once && self.taken.contains(&file) {
                report.invalid(&path, written, "conflicting duplicate paths");
            } else {
                self.taken.insert(file);
            }
        }
    }

    /// A path that is a directory for this file, or the other way round.
    fn in_the_way(&self, file: &str) -> Option<&str> {
        let below = format!("{file}/");
        let from = (Bound::Included(&*below), Bound::Unbounded);
        let next = self.taken.range::<str, _>(from).next();
        let next = next.filter(|next| next.starts_with(&below));
        let above = || parent_paths(file).find_map(|parent| self.taken.get(parent));
        next.or_else(above).map(String::as_str)
    }
}

fn keys(report: &mut Report, path: &str, items: Option<&[k8s::KeyToPath]>) {
    for (index, item) in items.unwrap_or_default().iter().enumerate() {
        let path = format!("{path}.items[{index}]");
        report.name(&format!("{path}.key"), &item.key, names::config_key);
        report.name(&format!("{path}.path"), &item.path, names::volume_path);
        mode(report, &format!("{path}.mode"), item.mode);
    }
}

fn downward(
    report: &mut Report,
    path: &str,
    items: Option<&[k8s::DownwardAPIVolumeFile]>,
    named: &Named<'_>,
) {
    for (index, item) in items.unwrap_or_default().iter().enumerate() {
        let path = format!("{path}.items[{index}]");
        report.name(&format!("{path}.path"), &item.path, names::volume_path);
        mode(report, &format!("{path}.mode"), item.mode);
        match (&item.field_ref, &item.resource_field_ref) {
            (Some(_), Some(_)) => {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                report.invalid(&path, "", detail);
            }
            (Some(field), None) => {
                field_ref(report, &format!("{path}.fieldRef"), field, &FIELD_PATHS);
            }
            (None, Some(resource)) => {
                let path = format!("{path}.resourceFieldRef");
                if given(resource.container_name.as_ref()).is_none() {
                    report.required(&format!("{path}.containerName"));
                }
                resource_ref(report, &path, resource, named);
            }
            (None, None) => {
                report.required_because(&path, "must be either fieldRef or resourceFieldRef");
            }
        }
    }
}

fn mode(report: &mut Report, path: &str, mode: Option<i32>) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        report.invalid(path, mode, detail);
    }
}
