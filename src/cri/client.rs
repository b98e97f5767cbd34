//! The client. One HTTP/2 connection over the runtime's Unix socket, opened when first needed and
//! opened anew by the next call after it broke.

use super::{CriError, v1};
use crate::{
    metrics::metrics,
    model::{ContainerId, PodKey, SandboxId, ToldDriver, k8s},
};
use hyper_util::rt::TokioIo;
use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};
use tokio::{net::UnixStream, time::Instant};
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint, Uri},
};
use v1::{image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient};

/// What the kubelet allows too: a list of everything on a full node stays below it.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// `VersionRequest.version`, a constant of the protocol.
const API_VERSION: &str = "0.1.0";

/// Client of the runtime and image services. Cheap to clone; all clones share the connections.
#[derive(Clone, Debug)]
pub struct RuntimeClient {
    pub(super) channel: Channel,
    pub(super) runtime: RuntimeServiceClient<Channel>,
    pub(super) images: ImageServiceClient<Channel>,
    pub(super) endpoint: Arc<str>,
    pub(super) image_endpoint: Arc<str>,
    pub(super) read_deadline: Duration,
}

/// Answer to `Version`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// `containerd`: also the scheme of container ids in statuses.
    pub name: String,
    /// Its version.
    pub version: String,
    /// `v1`
    pub api_version: String,
}

/// The two conditions of `Status`, in the kubelet's words where they don't hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Readiness {
    /// `None` when `RuntimeReady` is true.
    pub runtime_not_ready: Option<String>,
    /// `None` when `NetworkReady` is true.
    pub network_not_ready: Option<String>,
    /// Every handler by name.
    pub handlers: Vec<k8s::NodeRuntimeHandler>,
    /// What the runtime can do as a whole, where it tells.
    pub features: Option<k8s::NodeFeatures>,
}

/// Which objects to list.
#[derive(Clone, Copy, Debug)]
pub enum ListFilter<'a> {
    /// Every one.
    All,
    /// Those of one pod name, of every uid.
    Pod(&'a PodKey),
}

impl ListFilter<'_> {
    fn labels(self) -> BTreeMap<String, String> {
        match self {
            Self::All => BTreeMap::new(),
            Self::Pod(key) => BTreeMap::from([
                (super::POD_NAME_LABEL.to_owned(), key.name.to_string()),
                (super::POD_NAMESPACE_LABEL.to_owned(), key.namespace.to_string()),
            ]),
        }
    }
}

impl RuntimeClient {
    /// A client of the services at `endpoint` (`unix:///run/containerd/containerd.sock` or a
    /// path); images at `image_endpoint` where that is another one. Nothing is connected yet.
    /// `read_deadline` is `runtimeRequestTimeout`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When an endpoint is no Unix socket address.
    pub fn new(
        endpoint: &str,
        image_endpoint: Option<&str>,
        read_deadline: Duration,
    ) -> Result<Self, CriError> {
        let (path, channel) = channel(endpoint)?;
        let (image_path, image_channel) = match image_endpoint.filter(|other| *other != endpoint) {
            None => (path.clone(), channel.clone()),
            Some(other) => self::channel(other)?,
        };
        Ok(Self {
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE_BYTES),
            images: ImageServiceClient::new(image_channel)
                .max_decoding_message_size(MAX_MESSAGE_BYTES),
            channel,
            endpoint: path,
            image_endpoint: image_path,
            read_deadline,
        })
    }

    /// Path of the runtime's socket.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Name and version of the runtime.
    ///
    /// # Errors
    /// As every read: see [`CriError`].
    pub async fn version(&self) -> Result<RuntimeVersion, CriError> {
        let request = v1::VersionRequest { version: API_VERSION.to_owned() };
        let mut runtime = self.runtime.clone();
        let answer = self.read("Version", runtime.version(request)).await?;
        Ok(RuntimeVersion {
            name: answer.runtime_name,
            version: answer.runtime_version,
            api_version: answer.runtime_api_version,
        })
    }

    /// Whether the runtime and the pod network are ready.
    ///
    /// # Errors
    /// As every read: see [`CriError`].
    pub async fn status(&self) -> Result<Readiness, CriError> {
        let mut runtime = self.runtime.clone();
        let call = runtime.status(v1::StatusRequest { verbose: false });
        let answer = self.read("Status", call).await?;
        Ok(super::from_cri::readiness(&answer))
    }

    /// The image of sandboxes, where the runtime tells it: containerd 1.x does, which does not
    /// always pin it.
    pub async fn sandbox_image(&self) -> Option<String> {
        let mut runtime = self.runtime.clone();
        let call = runtime.status(v1::StatusRequest { verbose: true });
        let answer = self.read("Status", call).await.ok()?;
        let config: serde_json::Value = serde_json::from_str(answer.info.get("config")?).ok()?;
        config.get("sandboxImage")?.as_str().map(str::to_owned)
    }

    /// The cgroup driver that the runtime uses. Older ones (containerd 1.x) do not have the call.
    ///
    /// # Errors
    /// As every read: see [`CriError`].
    pub async fn cgroup_driver(&self) -> Result<ToldDriver, CriError> {
        let mut runtime = self.runtime.clone();
        let call = runtime.runtime_config(v1::RuntimeConfigRequest {});
        match self.read("RuntimeConfig", call).await {
            Ok(answer) => super::from_cri::told_driver(&answer),
            Err(CriError::Unimplemented { .. }) => Ok(ToldDriver::NotOffered),
            Err(error) => Err(error),
        }
    }

    /// Tells the runtime the addresses of the node's pods: one CIDR, or several with commas between
    /// them.
    ///
    /// # Errors
    /// The runtime refuses it, or does not have the call.
    pub async fn update_pod_cidr(&self, pod_cidr: &str) -> Result<(), CriError> {
        let network_config = Some(v1::NetworkConfig { pod_cidr: pod_cidr.to_owned() });
        let runtime_config = Some(v1::RuntimeConfig { network_config });
        let request = v1::UpdateRuntimeConfigRequest { runtime_config };
        let mut runtime = self.runtime.clone();
        self.change("UpdateRuntimeConfig", runtime.update_runtime_config(request)).await.map(drop)
    }

    /// Sandboxes, dead ones included.
    ///
    /// # Errors
    /// As every read: see [`CriError`].
    pub async fn list_sandboxes(
        &self,
        filter: ListFilter<'_>,
    ) -> Result<Vec<v1::PodSandbox>, CriError> {
        let filter = v1::PodSandboxFilter { label_selector: filter.labels(), ..Default::default() };
        let mut runtime = self.runtime.clone();
        let call = runtime.list_pod_sandbox(v1::ListPodSandboxRequest { filter: Some(filter) });
        Ok(self.read("ListPodSandbox", call).await?.items)
    }

    /// Containers, dead ones included.
    ///
    /// # Errors
    /// As every read: see [`CriError`].
    pub async fn list_containers(
        &self,
        filter: ListFilter<'_>,
    ) -> Result<Vec<v1::Container>, CriError> {
        let filter = v1::ContainerFilter { label_selector: filter.labels(), ..Default::default() };
        let mut runtime = self.runtime.clone();
        let call = runtime.list_containers(v1::ListContainersRequest { filter: Some(filter) });
        Ok(self.read("ListContainers", call).await?.containers)
    }

    /// Everything about one sandbox.
    ///
    /// # Errors
    /// As every read: see [`CriError`].
    pub async fn sandbox_status(&self, id: &SandboxId) -> Result<v1::PodSandboxStatus, CriError> {
        let pod_sandbox_id = id.to_string();
        let mut runtime = self.runtime.clone();
        let call = runtime
            .pod_sandbox_status(v1::PodSandboxStatusRequest { pod_sandbox_id, verbose: false });
        let answer = self.read("PodSandboxStatus", call).await?;
        answer.status.ok_or_else(|| empty("PodSandboxStatus"))
    }

    /// Everything about one container.
    ///
    /// # Errors
    /// As every read: see [`CriError`].
    pub async fn container_status(
        &self,
        id: &ContainerId,
    ) -> Result<v1::ContainerStatus, CriError> {
        let container_id = id.to_string();
        let mut runtime = self.runtime.clone();
        let call =
            runtime.container_status(v1::ContainerStatusRequest { container_id, verbose: false });
        let answer = self.read("ContainerStatus", call).await?;
        answer.status.ok_or_else(|| empty("ContainerStatus"))
    }

    /// Makes and starts a sandbox, its network included.
    ///
    /// # Errors
    /// See [`CriError`]; `NameReserved` when an earlier attempt left something half-made.
    ///
    /// # Cancel safety
    /// None: dropping it cancels the call half-way inside the runtime. So do all that follow here.
    pub async fn run_sandbox(
        &self,
        config: v1::PodSandboxConfig,
        runtime_handler: &str,
    ) -> Result<SandboxId, CriError> {
        let handler = [runtime_handler];
        let runtime_handler = runtime_handler.to_owned();
        let request = v1::RunPodSandboxRequest { config: Some(config), runtime_handler };
        let mut runtime = self.runtime.clone();
        let begun = Instant::now();
        let answer = self.change("RunPodSandbox", runtime.run_pod_sandbox(request)).await;
        let (pods, took) = (&metrics().pods, begun.elapsed().as_secs_f64());
        pods.sandbox_seconds.with_label_values(&handler).observe(took);
        if answer.is_err() {
            pods.sandbox_errors.with_label_values(&handler).inc();
        }
        Ok(SandboxId::from(answer?.pod_sandbox_id))
    }

    /// Stops a sandbox and whatever runs in it. Stopping a stopped or unknown one succeeds.
    ///
    /// # Errors
    /// See [`CriError`].
    pub async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), CriError> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_string() };
        let mut runtime = self.runtime.clone();
        gone_is_done(self.change("StopPodSandbox", runtime.stop_pod_sandbox(request)).await)
    }

    /// Removes a sandbox and its containers. Removing an unknown one succeeds.
    ///
    /// # Errors
    /// See [`CriError`].
    pub async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), CriError> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_string() };
        let mut runtime = self.runtime.clone();
        gone_is_done(self.change("RemovePodSandbox", runtime.remove_pod_sandbox(request)).await)
    }

    /// Makes a container in a sandbox, without starting it.
    ///
    /// # Errors
    /// See [`CriError`]; `NameReserved` when an earlier attempt left something half-made.
    pub async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<ContainerId, CriError> {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_string(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let mut runtime = self.runtime.clone();
        // On the heap: the request is large and would be part of every future that awaits this.
        let call = Box::pin(runtime.create_container(request));
        let answer = self.change("CreateContainer", call).await?;
        Ok(ContainerId::from(answer.container_id))
    }

    /// Starts a container that was made.
    ///
    /// # Errors
    /// See [`CriError`].
    pub async fn start_container(&self, id: &ContainerId) -> Result<(), CriError> {
        let request = v1::StartContainerRequest { container_id: id.to_string() };
        let mut runtime = self.runtime.clone();
        self.change("StartContainer", runtime.start_container(request)).await.map(drop)
    }

    /// Asks a container to end, and kills it after `grace_seconds`. Stopping a stopped or unknown
    /// one succeeds.
    ///
    /// # Errors
    /// See [`CriError`].
    pub async fn stop_container(
        &self,
        id: &ContainerId,
        grace_seconds: i64,
    ) -> Result<(), CriError> {
        let container_id = id.to_string();
        let request = v1::StopContainerRequest { container_id, timeout: grace_seconds };
        let mut runtime = self.runtime.clone();
        gone_is_done(self.change("StopContainer", runtime.stop_container(request)).await)
    }

    /// Removes a container, killing it if it runs. Removing an unknown one succeeds.
    ///
    /// # Errors
    /// See [`CriError`].
    pub async fn remove_container(&self, id: &ContainerId) -> Result<(), CriError> {
        let request = v1::RemoveContainerRequest { container_id: id.to_string() };
        let mut runtime = self.runtime.clone();
        gone_is_done(self.change("RemoveContainer", runtime.remove_container(request)).await)
    }

    /// Gives a container that runs other cpu and memory limits.
    ///
    /// # Errors
    /// See [`CriError`].
    pub async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: v1::LinuxContainerResources,
    ) -> Result<(), CriError> {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.to_string(),
            linux: Some(resources),
            ..Default::default()
        };
        let mut runtime = self.runtime.clone();
        let call = runtime.update_container_resources(request);
        self.change("UpdateContainerResources", call).await.map(drop)
    }

    /// Asks the runtime to open a container's log anew, after the file was renamed. When it answers,
    /// what the container writes next goes to the new file.
    ///
    /// # Errors
    /// See [`CriError`]; also when the container does not run.
    pub async fn reopen_container_log(&self, id: &ContainerId) -> Result<(), CriError> {
        let request = v1::ReopenContainerLogRequest { container_id: id.to_string() };
        let mut runtime = self.runtime.clone();
        self.read("ReopenContainerLog", runtime.reopen_container_log(request)).await.map(drop)
    }

    pub(super) async fn read<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CriError> {
        within(self.read_deadline, call, &self.endpoint, answer).await
    }

    pub(super) async fn change<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CriError> {
        let begun = Instant::now();
        let answer = answer.await;
        metrics().runtime_called(call, begun.elapsed(), answer.is_err());
        Ok(answer.map_err(|s| CriError::from_status(&s, call, &self.endpoint))?.into_inner())
    }

    /// The stream of CRI's own container events.
    pub(super) async fn cri_events(
        &self,
    ) -> Result<tonic::Streaming<v1::ContainerEventResponse>, CriError> {
        let mut runtime = self.runtime.clone();
        let request = Request::new(v1::GetEventsRequest {});
        self.change("GetContainerEvents", runtime.get_container_events(request)).await
    }
}

pub(super) async fn within<T>(
    deadline: Duration,
    call: &'static str,
    endpoint: &str,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, CriError> {
    let begun = Instant::now();
    let answer = tokio::time::timeout(deadline, answer).await;
    let failed = !matches!(answer, Ok(Ok(_)));
    metrics().runtime_called(call, begun.elapsed(), failed);
    match answer {
        Ok(answer) => {
            Ok(answer.map_err(|s| CriError::from_status(&s, call, endpoint))?.into_inner())
        }
        Err(_) => Err(CriError::DeadlineExceeded { call, seconds: deadline.as_secs() }),
    }
}

pub(super) fn gone_is_done<T>(result: Result<T, CriError>) -> Result<(), CriError> {
    match result {
        Ok(_) | Err(CriError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) fn empty(call: &str) -> CriError {
    CriError::Other { code: "Internal".to_owned(), message: format!("{call}: empty answer") }
}

/// The socket's path, and a channel that connects to it when first used.
fn channel(endpoint: &str) -> Result<(Arc<str>, Channel), CriError> {
    let path = endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:"));
    let path = path.unwrap_or(endpoint);
    if !path.starts_with('/') {
        return Err(CriError::Endpoint { endpoint: endpoint.to_owned() });
    }
    let path: Arc<str> = Arc::from(path);
    let target = path.clone();
    let connect = tower::service_fn(move |_: Uri| {
        let target = target.clone();
        async move { UnixStream::connect(&*target).await.map(TokioIo::new) }
    });
    // The address only fills the `:authority` header; gRPC servers on Unix sockets expect this one.
    let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connect);
    Ok((path, channel))
}
