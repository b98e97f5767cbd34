//! The floor: a bare CRI client that makes the calls which every agent has to make, with the same
//! requests, and nothing else. It decides nothing, keeps nothing and looks at nothing; what it is
//! told to do is known beforehand.

use crate::{
    stage::{Moment, name_of, now},
    support::{
        block_on, cri::node_facts, manifest::Pod, slot::Slot, tokio_runtime, world::full_name,
    },
};
use nodelet::{
    cri::{
        RuntimeClient, RuntimeEvent,
        to_cri::{
            ContainerInputs, DnsInputs, ImageInputs, MountInput, NodeFacts, SandboxInputs,
            container_config, sandbox_config,
        },
        v1,
    },
    model::{ContainerId, SandboxId, k8s},
};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::Semaphore, task::JoinSet};

/// The client.
#[derive(Clone)]
pub struct Floor {
    client: RuntimeClient,
    dir: PathBuf,
    cgroup_root: String,
}

/// A pod that it started.
pub struct Started {
    config: v1::PodSandboxConfig,
    pod: k8s::Pod,
    sandbox: SandboxId,
    container: ContainerId,
}

impl Started {
    /// The id of its container.
    pub fn container(&self) -> &ContainerId {
        &self.container
    }
}

impl Floor {
    /// A client of the runtime at `socket`.
    pub fn new(slot: &Slot, socket: &Path) -> Self {
        let _in_runtime = tokio_runtime().enter();
        let client =
            RuntimeClient::new(&socket.display().to_string(), None, Duration::from_secs(120))
                .unwrap();
        let dir = slot.dir().join("floor");
        fs::create_dir_all(dir.join("logs")).unwrap();
        fs::write(dir.join("etc-hosts"), "127.0.0.1 localhost\n").unwrap();
        fs::write(dir.join("termination-log"), "").unwrap();
        Self { client, dir, cgroup_root: slot.cgroup_root() }
    }

    /// Runs a pod and removes it without a trace.
    pub fn warm_up(&self) {
        let started = self.run(&Pod::running("warm-up"));
        block_on(async {
            self.client.stop_container(&started.container, 0).await.unwrap();
            self.client.stop_sandbox(&started.sandbox).await.unwrap();
            self.client.remove_sandbox(&started.sandbox).await.unwrap();
        });
    }

    /// Runs one pod.
    pub fn run(&self, pod: &Pod) -> Started {
        block_on(self.run_pod(typed(pod)))
    }

    /// Runs pods, so many at a time; gives the moment before the first.
    pub fn run_all(&self, pods: &[Pod], at_a_time: usize) -> Moment {
        let typed: Vec<k8s::Pod> = pods.iter().map(typed).collect();
        let begun = now();
        block_on(async {
            let places = Arc::new(Semaphore::new(at_a_time));
            let mut tasks = JoinSet::new();
            for pod in typed {
                let (floor, places) = (self.clone(), Arc::clone(&places));
                tasks.spawn(async move {
                    let _place = places.acquire().await.unwrap();
                    Box::pin(floor.run_pod(pod)).await
                });
            }
            tasks.join_all().await;
        });
        begun
    }

    /// Waits for the event of a container's end, which `kill` brings about, and starts the next
    /// one.
    pub fn restart_on_exit(&self, started: &Started, kill: impl FnOnce() -> Moment) -> Moment {
        block_on(async {
            let client = self.client.clone();
            // The head of the answer comes with the first event, so this ends only after the kill.
            let mut subscribing = Box::pin(client.subscribe_containerd());
            let subscribed =
                tokio::time::timeout(Duration::from_millis(200), &mut subscribing).await;
            let begun = kill();
            let mut events = match subscribed {
                Ok(stream) => stream.unwrap(),
                Err(_) => subscribing.await.unwrap(),
            };
            let id_of_ended = |event| match event {
                RuntimeEvent::Exited { id, .. } => Some(id),
                RuntimeEvent::Started { .. }
                | RuntimeEvent::OutOfMemory { .. }
                | RuntimeEvent::Removed { .. } => None,
            };
            let of_started = Some(started.container.to_string());
            while id_of_ended(events.next().await.unwrap().expect("the stream goes on").event)
                != of_started
            {}
            self.start_container(&started.pod, &started.config, &started.sandbox, 1).await;
            begun
        })
    }

    /// Stops a pod as an agent does whose manifest is gone; gives the moment before.
    pub fn stop(&self, started: &Started) -> Moment {
        let begun = now();
        block_on(self.stop_pod(started));
        begun
    }

    /// As [`Self::stop`], inside the runtime.
    pub async fn stop_pod(&self, started: &Started) {
        self.client.stop_container(&started.container, 1).await.unwrap();
        self.client.stop_sandbox(&started.sandbox).await.unwrap();
    }

    /// The address of a pod.
    pub async fn address(&self, started: &Started) -> String {
        let status = self.client.sandbox_status(&started.sandbox).await.unwrap();
        status.network.unwrap().ip
    }

    /// Runs a command in a pod, which must succeed.
    pub fn exec(&self, started: &Started, command: &[&str]) {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let ended = block_on(self.client.exec_to_end(&started.container, command)).unwrap();
        assert_eq!(ended.exit_code, 0);
    }

    /// Removes a stopped pod.
    pub fn remove(&self, started: &Started) {
        block_on(self.remove_pod(started));
    }

    /// As [`Self::remove`], inside the runtime.
    pub async fn remove_pod(&self, started: &Started) {
        self.client.remove_sandbox(&started.sandbox).await.unwrap();
    }

    /// Runs a pod that has its name and its uid, inside the runtime.
    pub async fn run_pod(&self, pod: k8s::Pod) -> Started {
        let name = pod.metadata.name.clone().unwrap();
        let logs = self.dir.join("logs").join(&name);
        fs::create_dir_all(logs.join("main")).unwrap();
        let dns = DnsInputs { servers: vec!["192.0.2.1".to_owned()], ..DnsInputs::default() };
        let config = sandbox_config(&SandboxInputs {
            pod: &pod,
            attempt: 0,
            owner: "floor",
            hostname: &name,
            dns: &dns,
            log_directory: &logs.display().to_string(),
            cgroup_parent: &format!("{}/kubepods/besteffort/pod{name}", self.cgroup_root),
            volume_groups: &BTreeSet::new(),
            ids: None,
            node: &node(),
        });
        let sandbox = self.client.run_sandbox(config.clone(), "").await.unwrap();
        let container = self.start_container(&pod, &config, &sandbox, 0).await;
        Started { config, pod, sandbox, container }
    }

    async fn start_container(
        &self,
        pod: &k8s::Pod,
        sandbox_config: &v1::PodSandboxConfig,
        sandbox: &SandboxId,
        restart_count: u32,
    ) -> ContainerId {
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let image = self.client.image_status(container.image.as_deref().unwrap()).await.unwrap();
        let image = image.expect("the image is there");
        let config = container_config(&ContainerInputs {
            pod,
            container,
            restart_count,
            image: ImageInputs { reference: &image.id, uid: image.uid, username: "" },
            env: &[],
            mounts: &[
                self.mount("etc-hosts", "/etc/hosts"),
                self.mount("termination-log", "/dev/termination-log"),
            ],
            target: None,
            volume_groups: &BTreeSet::new(),
            ids: None,
            node: &node(),
        });
        let sandbox_config = sandbox_config.clone();
        let created = self.client.create_container(sandbox, config.unwrap(), sandbox_config);
        let id = created.await.unwrap();
        self.client.start_container(&id).await.unwrap();
        id
    }

    fn mount(&self, file: &str, container_path: &str) -> MountInput {
        MountInput {
            source: nodelet::cri::MountSource::Path(self.dir.join(file).display().to_string()),
            container_path: container_path.to_owned(),
            access: nodelet::cri::to_cri::Access::ReadWrite,
            selinux_relabel: false,
            propagation: nodelet::cri::to_cri::Propagation::Private,
        }
    }
}

/// The pod of a manifest, as an agent would name it.
fn typed(pod: &Pod) -> k8s::Pod {
    let mut typed: k8s::Pod = serde_json::from_value(pod.value().clone()).unwrap();
    let name = name_of(pod);
    typed.metadata.uid = Some(format!("uid-of-{name}"));
    typed.metadata.name = Some(full_name(&name));
    typed.metadata.namespace = Some("default".to_owned());
    typed
}

fn node() -> NodeFacts {
    node_facts(Path::new("/sys/fs/cgroup/cgroup.controllers").exists())
}
