//! The state of the fake as JSON: as much of each configuration as the fake and the agent read
//! again.

use super::{
    Shared,
    state::{self, Container, Run, Sandbox, now_nanos},
};
use jiff::SignedDuration;
use nodelet::cri::v1;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

#[derive(Serialize, Deserialize)]
struct Saved {
    sandboxes: BTreeMap<String, SavedSandbox>,
    containers: BTreeMap<String, SavedContainer>,
    images: BTreeMap<String, String>,
    next: u64,
}

#[derive(Serialize, Deserialize)]
struct SavedSandbox {
    /// As reserved: name, namespace, uid and attempt.
    reserved: String,
    name: String,
    namespace: String,
    uid: String,
    attempt: u32,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    log_directory: String,
    ready: bool,
    ip: String,
    created_at: i64,
}

#[derive(Serialize, Deserialize)]
struct SavedContainer {
    sandbox: String,
    /// As reserved: the container's name, the pod's names, and the attempt.
    reserved: String,
    name: String,
    attempt: u32,
    image: String,
    image_ref: String,
    command: Vec<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    log_path: PathBuf,
    /// Paths on the host and in the container.
    mounts: Vec<(String, String)>,
    created_at: i64,
    /// `None` of a container that was not started.
    started_at: Option<i64>,
    /// When it ended, and its exit code.
    ended: Option<(i64, i32)>,
}

pub(super) fn save(shared: &Shared) -> Value {
    let state = shared.state();
    let sandboxes = state.sandboxes.iter().map(|(id, sandbox)| (id.clone(), sandbox.into()));
    let containers = state.containers.iter().map(|(id, container)| (id.clone(), container.into()));
    let saved = Saved {
        sandboxes: sandboxes.collect(),
        containers: containers.collect(),
        images: state.images.clone(),
        next: state.next,
    };
    serde_json::to_value(saved).unwrap()
}

pub(super) fn restore(shared: &Arc<Shared>, saved: Value, later: SignedDuration) {
    let saved: Saved = serde_json::from_value(saved).unwrap();
    let later = i64::try_from(later.as_nanos()).unwrap();
    let mut running = Vec::new();
    {
        let state = &mut *shared.state();
        state.images = saved.images;
        state.next = saved.next;
        for (id, sandbox) in saved.sandboxes {
            state.names.insert(sandbox.reserved.clone(), id.clone());
            state.sandboxes.insert(id, sandbox.into_sandbox(later));
        }
        for (id, container) in saved.containers {
            state.names.insert(container.reserved.clone(), id.clone());
            if let (Some(started_at), None) = (container.started_at, container.ended) {
                running.push((id.clone(), started_at + later));
            }
            state.containers.insert(id, container.into_container(later));
        }
    }
    for (id, at) in running {
        state::start_container(shared, &id).unwrap();
        if let Some(Run::Running { started_at, .. }) =
            shared.state().containers.get_mut(&id).map(|container| &mut container.run)
        {
            *started_at = at.min(now_nanos());
        }
    }
}

impl From<&Sandbox> for SavedSandbox {
    fn from(sandbox: &Sandbox) -> Self {
        let config = &sandbox.config;
        let metadata = config.metadata.clone().unwrap();
        let network = state::network_mode(config);
        assert_eq!(network, v1::NamespaceMode::Pod, "{metadata:?}: another network is not saved");
        Self {
            reserved: sandbox.name.clone(),
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            attempt: metadata.attempt,
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
            log_directory: config.log_directory.clone(),
            ready: sandbox.ready,
            ip: sandbox.ip.clone(),
            created_at: sandbox.created_at,
        }
    }
}

impl SavedSandbox {
    fn into_sandbox(self, later: i64) -> Sandbox {
        let Self { name, namespace, uid, attempt, .. } = self;
        Sandbox {
            config: v1::PodSandboxConfig {
                metadata: Some(v1::PodSandboxMetadata { name, namespace, uid, attempt }),
                labels: self.labels,
                annotations: self.annotations,
                log_directory: self.log_directory,
                ..Default::default()
            },
            created_at: self.created_at + later,
            ready: self.ready,
            ip: self.ip,
            name: self.reserved,
        }
    }
}

impl From<&Container> for SavedContainer {
    fn from(container: &Container) -> Self {
        let config = &container.config;
        let metadata = config.metadata.clone().unwrap();
        let (started_at, ended) = match container.run {
            Run::Created => (None, None),
            Run::Running { started_at, .. } => (Some(started_at), None),
            Run::Exited { started_at, finished_at, code } => {
                (Some(started_at), Some((finished_at, code)))
            }
        };
        let mounts = config.mounts.iter();
        Self {
            sandbox: container.sandbox_id.clone(),
            reserved: container.name.clone(),
            name: metadata.name,
            attempt: metadata.attempt,
            image: config.image.clone().unwrap_or_default().image,
            image_ref: container.image_ref.clone(),
            command: config.command.iter().chain(&config.args).cloned().collect(),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
            log_path: container.log_path.clone(),
            mounts: mounts.map(|m| (m.host_path.clone(), m.container_path.clone())).collect(),
            created_at: container.created_at,
            started_at,
            ended,
        }
    }
}

impl SavedContainer {
    fn into_container(self, later: i64) -> Container {
        let run = match (self.started_at, self.ended) {
            (Some(started_at), Some((finished_at, code))) => Run::Exited {
                started_at: started_at + later,
                finished_at: finished_at + later,
                code,
            },
            (Some(_) | None, _) => Run::Created,
        };
        let mounts = self.mounts.into_iter().map(|(host_path, container_path)| v1::Mount {
            host_path,
            container_path,
            ..Default::default()
        });
        Container {
            sandbox_id: self.sandbox,
            config: v1::ContainerConfig {
                metadata: Some(v1::ContainerMetadata { name: self.name, attempt: self.attempt }),
                image: Some(v1::ImageSpec { image: self.image, ..Default::default() }),
                command: self.command,
                mounts: mounts.collect(),
                labels: self.labels,
                annotations: self.annotations,
                ..Default::default()
            },
            log_path: self.log_path,
            image_ref: self.image_ref,
            created_at: self.created_at + later,
            run,
            name: self.reserved,
        }
    }
}
