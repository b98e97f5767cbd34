//! A bare CRI client for the tests' own looks and pokes at a runtime, past the proxy and the agent.

use super::block_on;
use nodelet::cri::{
    NodeFacts,
    v1::{
        self, image_service_client::ImageServiceClient,
        runtime_service_client::RuntimeServiceClient,
    },
};
use std::path::Path;
use tonic::transport::{Channel, Endpoint};

/// Connects lazily and again after the runtime's death.
#[derive(Clone)]
pub struct Cri {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
}

impl Cri {
    /// A client of the runtime that listens on `socket`.
    pub fn new(socket: &Path) -> Self {
        Self::at(&format!("unix:{}", socket.display()))
    }

    /// A client of the runtime at a URI (`http://127.0.0.1:1234`).
    pub fn at(uri: &str) -> Self {
        let endpoint = Endpoint::from_shared(uri.to_owned()).unwrap();
        let _in_runtime = super::tokio_runtime().enter();
        let channel = endpoint.connect_lazy();
        Self {
            runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(64 << 20),
            images: ImageServiceClient::new(channel),
        }
    }

    /// Whether the runtime answers; containerd listens a while before it has read its state back.
    pub fn answers(&self) -> bool {
        let request = v1::ListPodSandboxRequest::default();
        block_on(self.runtime.clone().list_pod_sandbox(request)).is_ok()
    }

    /// All sandboxes.
    pub fn sandboxes(&self) -> Vec<v1::PodSandbox> {
        let request = v1::ListPodSandboxRequest::default();
        block_on(self.runtime.clone().list_pod_sandbox(request)).unwrap().into_inner().items
    }

    /// All containers.
    pub fn containers(&self) -> Vec<v1::Container> {
        let request = v1::ListContainersRequest::default();
        block_on(self.runtime.clone().list_containers(request)).unwrap().into_inner().containers
    }

    /// A container's status.
    pub fn container_status(&self, id: &str) -> v1::ContainerStatus {
        let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        block_on(self.runtime.clone().container_status(request))
            .unwrap()
            .into_inner()
            .status
            .unwrap()
    }

    /// The pid of a running container's first process (real containerd only).
    #[track_caller]
    pub fn container_pid(&self, id: &str) -> i32 {
        self.find_container_pid(id).unwrap_or_else(|| panic!("container {id} has no process"))
    }

    /// As [`Self::container_pid`]; `None` when there is no process any more.
    pub fn find_container_pid(&self, id: &str) -> Option<i32> {
        let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
        let answer = block_on(self.runtime.clone().container_status(request)).ok()?.into_inner();
        pid_in(answer.info.get("info")?)
    }

    /// The pid of a sandbox's pause process (real containerd only).
    #[track_caller]
    pub fn sandbox_pid(&self, id: &str) -> i32 {
        self.find_sandbox_pid(id).unwrap_or_else(|| panic!("sandbox {id} has no process"))
    }

    /// As [`Self::sandbox_pid`]; `None` when there is no process any more.
    pub fn find_sandbox_pid(&self, id: &str) -> Option<i32> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
        let answer = block_on(self.runtime.clone().pod_sandbox_status(request)).ok()?.into_inner();
        pid_in(answer.info.get("info")?)
    }

    /// A sandbox's status.
    pub fn sandbox_status(&self, id: &str) -> v1::PodSandboxStatus {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        block_on(self.runtime.clone().pod_sandbox_status(request))
            .unwrap()
            .into_inner()
            .status
            .unwrap()
    }

    /// `RunPodSandbox`
    ///
    /// # Errors
    /// The runtime's.
    pub fn run_sandbox(&self, config: v1::PodSandboxConfig) -> Result<String, tonic::Status> {
        let request = v1::RunPodSandboxRequest { config: Some(config), ..Default::default() };
        let answer = block_on(self.runtime.clone().run_pod_sandbox(request))?;
        Ok(answer.into_inner().pod_sandbox_id)
    }

    /// `CreateContainer`
    ///
    /// # Errors
    /// The runtime's.
    pub fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String, tonic::Status> {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        Ok(block_on(self.runtime.clone().create_container(request))?.into_inner().container_id)
    }

    /// `StartContainer`
    ///
    /// # Errors
    /// The runtime's.
    pub fn start_container(&self, id: &str) -> Result<(), tonic::Status> {
        let request = v1::StartContainerRequest { container_id: id.to_owned() };
        block_on(self.runtime.clone().start_container(request)).map(drop)
    }

    /// `StopContainer`; `timeout` in seconds.
    ///
    /// # Errors
    /// The runtime's.
    pub fn stop_container(&self, id: &str, timeout: i64) -> Result<(), tonic::Status> {
        let request = v1::StopContainerRequest { container_id: id.to_owned(), timeout };
        block_on(self.runtime.clone().stop_container(request)).map(drop)
    }

    /// `StopPodSandbox` and `RemovePodSandbox`
    ///
    /// # Errors
    /// The runtime's.
    pub fn remove_sandbox(&self, id: &str) -> Result<(), tonic::Status> {
        let stop = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        block_on(self.runtime.clone().stop_pod_sandbox(stop))?;
        let remove = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        block_on(self.runtime.clone().remove_pod_sandbox(remove)).map(drop)
    }

    /// `PullImage`, with a user's name and password.
    ///
    /// # Errors
    /// The runtime's.
    pub fn pull_image(&self, image: &str, user: Option<(&str, &str)>) -> Result<(), tonic::Status> {
        let auth = user.map(|(name, password)| v1::AuthConfig {
            username: name.to_owned(),
            password: password.to_owned(),
            ..Default::default()
        });
        let image = Some(v1::ImageSpec { image: image.to_owned(), ..Default::default() });
        let request = v1::PullImageRequest { image, auth, ..Default::default() };
        block_on(self.images.clone().pull_image(request)).map(drop)
    }

    /// Whether an image of that name is there.
    pub fn has_image(&self, name: &str) -> bool {
        let image = v1::ImageSpec { image: name.to_owned(), ..Default::default() };
        let request = v1::ImageStatusRequest { image: Some(image), verbose: false };
        block_on(self.images.clone().image_status(request)).unwrap().into_inner().image.is_some()
    }
}

/// 0 and nothing mean that there is no process: a signal to 0 would hit ourselves.
fn pid_in(info: &str) -> Option<i32> {
    let info: serde_json::Value = serde_json::from_str(info).ok()?;
    i32::try_from(info["pid"].as_i64()?).ok().filter(|pid| *pid > 1)
}

/// The facts of a node with 8 GiB of memory and the default settings, for requests to a runtime.
pub fn node_facts(cgroup_v2: bool) -> NodeFacts {
    NodeFacts {
        memory_bytes: 8 << 30,
        cgroup_v2,
        hugepage_sizes_bytes: Vec::new(),
        swap: None,
        cpu_cfs_quota: true,
        cpu_period_micros: 100_000,
        single_process_oom_kill: None,
        seccomp_default: false,
        selinux: false,
        seccomp_root: String::new(),
        masked_paths: Vec::new(),
    }
}
