//! Where containerd keeps what a container writes, asked of containerd's own services. The
//! container itself, and the kernel's table of its mounts, are never asked: a container can forge
//! both.
//!
//! Another runtime does not have these services. What its layers take is asked with
//! `writable_layers`.

use super::{
    CriError, RuntimeClient,
    client::within,
    containerd::{
        containers::{Container, GetContainerRequest, containers_client::ContainersClient},
        snapshots::{Mount, MountsRequest, snapshots_client::SnapshotsClient},
    },
    events::NAMESPACE,
};
use crate::model::ContainerId;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};

/// The files that containerd makes for a sandbox, in `sandboxes/ID`, and mounts into its
/// containers, which may write to them.
const SANDBOX_FILES: [&str; 3] = ["hostname", "hosts", "resolv.conf"];

/// Where what a container writes goes, as the runtime tells. Fixed for the life of the container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WritePlaces {
    /// The directory of its writable layer. `None` where the layer is no directory of its own, or
    /// the runtime does not tell.
    layer: Option<PathBuf>,
    /// Files of its sandbox.
    files: Vec<PathBuf>,
    /// Volumes that its image declares.
    volumes: Vec<PathBuf>,
}

impl WritePlaces {
    /// The directory of the writable layer, if it lies in one of the directories that the runtime
    /// has for layers (`told`).
    #[must_use]
    pub fn layer(&self, told: &[PathBuf]) -> Option<&Path> {
        let layer = self.layer.as_deref()?;
        told.iter().any(|root| is_below(layer, root)).then_some(layer)
    }

    /// The files of the sandbox, as far as they lie in the runtime's directory: the one above those
    /// for layers (`told`).
    pub fn files<'a>(&'a self, told: &'a [PathBuf]) -> impl Iterator<Item = &'a Path> {
        in_runtime(&self.files, told)
    }

    /// The directories of volumes that the image declares, under the same condition.
    pub fn volumes<'a>(&'a self, told: &'a [PathBuf]) -> impl Iterator<Item = &'a Path> {
        in_runtime(&self.volumes, told)
    }
}

fn in_runtime<'a>(paths: &'a [PathBuf], told: &'a [PathBuf]) -> impl Iterator<Item = &'a Path> {
    let roots = || told.iter().filter_map(|root| root.parent());
    let ours = move |path: &&Path| roots().any(|root| is_below(path, root));
    paths.iter().map(PathBuf::as_path).filter(ours)
}

/// Whether an absolute path lies below `root`, which is not `/`.
fn is_below(path: &Path, root: &Path) -> bool {
    let upward = path.components().any(|one| one == Component::ParentDir);
    !upward && root.parent().is_some() && path != root && path.starts_with(root)
}

impl RuntimeClient {
    /// Where what a container writes goes. Nothing is known (the default) with a runtime that has
    /// no such service.
    ///
    /// # Errors
    /// As every read: see [`CriError`].
    pub async fn write_places(
        &self,
        id: &ContainerId,
        deadline: Duration,
    ) -> Result<WritePlaces, CriError> {
        let mut containers = ContainersClient::new(self.channel.clone());
        let call = containers.get(in_namespace(GetContainerRequest { id: id.to_string() }));
        let container = match within(deadline, "Containers.Get", &self.endpoint, call).await {
            Ok(answer) => answer.container.unwrap_or_default(),
            Err(CriError::Unimplemented { .. }) => return Ok(WritePlaces::default()),
            Err(error) => return Err(error),
        };
        let mut places = provided(&container);
        let Container { snapshotter, snapshot_key: key, .. } = container;
        let mut snapshots = SnapshotsClient::new(self.channel.clone());
        let call = snapshots.mounts(in_namespace(MountsRequest { snapshotter, key }));
        let answer = within(deadline, "Snapshots.Mounts", &self.endpoint, call).await?;
        places.layer = upper_directory(&answer.mounts);
        Ok(places)
    }

    /// The same for several containers, `at_once` of them at a time. One for which the runtime has
    /// not answered `within` this time is missing.
    ///
    /// # Cancel safety
    /// Nothing is lost but the answers.
    pub async fn all_write_places(
        &self,
        ids: &[ContainerId],
        at_once: usize,
        within: Duration,
    ) -> BTreeMap<ContainerId, WritePlaces> {
        let until = Instant::now() + within;
        let mut waiting = ids.iter().cloned();
        let mut calls = JoinSet::new();
        let mut found = BTreeMap::new();
        loop {
            while calls.len() < at_once.max(1) {
                let Some(id) = waiting.next() else { break };
                let client = self.clone();
                calls.spawn(async move {
                    let places = client.write_places(&id, within).await;
                    (id, places)
                });
            }
            match tokio::time::timeout_at(until, calls.join_next()).await {
                Ok(Some(Ok((id, Ok(places))))) => drop(found.insert(id, places)),
                // There is no answer for it, or asking has panicked.
                Ok(Some(Ok((_, Err(_))) | Err(_))) => {}
                Ok(None) | Err(_) => return found,
            }
        }
    }
}

pub(super) fn in_namespace<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    let namespace = tonic::metadata::MetadataValue::from_static(NAMESPACE);
    request.metadata_mut().insert("containerd-namespace", namespace);
    request
}

/// The upper directory of an overlay. Other snapshotters have the image in the same directory.
fn upper_directory(mounts: &[Mount]) -> Option<PathBuf> {
    let options = mounts.iter().flat_map(|mount| &mount.options);
    let path = options.filter_map(|option| option.strip_prefix("upperdir=")).next_back()?;
    path.starts_with('/').then(|| PathBuf::from(path))
}

/// The part of an OCI specification that is read.
#[derive(Deserialize)]
struct Spec {
    #[serde(default)]
    mounts: Vec<SpecMount>,
}

#[derive(Deserialize)]
struct SpecMount {
    #[serde(default)]
    source: PathBuf,
}

/// What the runtime itself has mounted into a container, by the names that it gives such paths.
fn provided(container: &Container) -> WritePlaces {
    let mut places = WritePlaces::default();
    let spec = container.spec.as_ref().map(|spec| serde_json::from_slice(&spec.value));
    let Some(Ok(Spec { mounts })) = spec else { return places };
    for SpecMount { source } in mounts {
        let names: Vec<&str> = source.iter().rev().map_while(|name| name.to_str()).collect();
        match names[..] {
            [name, _, "sandboxes", ..] if SANDBOX_FILES.contains(&name) => {
                places.files.push(source);
            }
            [_, "volumes", id, "containers", ..] if id == container.id => {
                places.volumes.push(source);
            }
            _ => {}
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: &str = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs";

    fn overlay(option: &str) -> Option<PathBuf> {
        let options = vec!["index=off".to_owned(), option.to_owned(), "lowerdir=/a:/b".to_owned()];
        upper_directory(&[Mount { r#type: "overlay".to_owned(), options, ..Mount::default() }])
    }

    #[test]
    fn a_layer_is_the_upper_directory_of_an_overlay() {
        assert_eq!(overlay("upperdir=/s/4/fs"), Some(PathBuf::from("/s/4/fs")));
        assert_eq!(overlay("upperdir=relative"), None);
        assert_eq!(overlay("rw"), None);
        assert_eq!(upper_directory(&[]), None);
    }

    #[test]
    fn a_layer_outside_the_directory_of_layers_is_not_used() {
        let told = [PathBuf::from(LAYERS)];
        for (path, used) in [
            (format!("{LAYERS}/snapshots/4/fs"), true),
            (format!("{LAYERS}/snapshots/../../../../../home"), false),
            (LAYERS.to_owned(), false),
            (format!("{LAYERS}2/snapshots/4/fs"), false),
            ("/home".to_owned(), false),
        ] {
            let places = WritePlaces { layer: Some(path.clone().into()), ..WritePlaces::default() };
            assert_eq!(places.layer(&told).is_some(), used, "{path}");
            assert_eq!(places.layer(&[]), None);
            assert_eq!(places.layer(&[PathBuf::from("/")]), None);
        }
    }

    #[test]
    fn what_the_runtime_provides_is_found_and_no_host_path_is() {
        let root = "/var/lib/containerd/io.containerd.grpc.v1.cri";
        let sources = [
            &format!("{root}/sandboxes/s1/resolv.conf"),
            &format!("{root}/containers/c1/volumes/v1"),
            "/srv/sandboxes/s1/hostname",
            "/var/lib/kubelet/pods/u/etc-hosts",
            &format!("{root}/containers/c2/volumes/v1"),
            &format!("{root}/sandboxes/s1/other"),
            "proc",
        ];
        let mounts = sources.map(|source| serde_json::json!({ "source": source }));
        let spec = |text: &str| {
            let value = text.as_bytes().to_vec();
            Some(prost_types::Any { type_url: String::new(), value })
        };
        let container = |text: &str| Container {
            id: "c1".to_owned(),
            spec: spec(text),
            ..Container::default()
        };
        let text = serde_json::json!({ "mounts": mounts }).to_string();
        let (told, places) = ([PathBuf::from(LAYERS)], provided(&container(&text)));
        let files: Vec<&Path> = places.files(&told).collect();
        assert_eq!(files, [Path::new(sources[0])]);
        let volumes: Vec<&Path> = places.volumes(&told).collect();
        assert_eq!(volumes, [Path::new(sources[1])]);
        assert_eq!(provided(&container("{")), WritePlaces::default());
    }
}
