//! A bare CRI client for the tests' own looks and pokes at a runtime, past the proxy and the agent.

use super::block_on;
use nodelet::cri::v1::{
    self, image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient,
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
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
        let _in_runtime = super::tokio_runtime().enter();
        let channel = endpoint.connect_lazy();
        Self {
            runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(64 << 20),
            images: ImageServiceClient::new(channel),
        }
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
        self.container_status_verbose(id, false).status.unwrap()
    }

    /// The pid of a running container's first process (real containerd only).
    pub fn container_pid(&self, id: &str) -> i32 {
        let info = self.container_status_verbose(id, true).info;
        pid_in(&info["info"])
    }

    /// The pid of a sandbox's pause process (real containerd only).
    pub fn sandbox_pid(&self, id: &str) -> i32 {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
        let answer =
            block_on(self.runtime.clone().pod_sandbox_status(request)).unwrap().into_inner();
        pid_in(&answer.info["info"])
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

    /// Whether an image of that name is there.
    pub fn has_image(&self, name: &str) -> bool {
        let image = v1::ImageSpec { image: name.to_owned(), ..Default::default() };
        let request = v1::ImageStatusRequest { image: Some(image), verbose: false };
        block_on(self.images.clone().image_status(request)).unwrap().into_inner().image.is_some()
    }

    fn container_status_verbose(&self, id: &str, verbose: bool) -> v1::ContainerStatusResponse {
        let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose };
        block_on(self.runtime.clone().container_status(request)).unwrap().into_inner()
    }
}

fn pid_in(info: &str) -> i32 {
    let info: serde_json::Value = serde_json::from_str(info).unwrap();
    i32::try_from(info["pid"].as_i64().unwrap()).unwrap()
}
