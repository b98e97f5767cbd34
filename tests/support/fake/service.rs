//! The CRI services of the fake: from messages to [`super::state`] and back.

use super::{
    Shared,
    events::EventService,
    state::{self, Container, Run, Sandbox},
};
use hyper::body::Incoming;
use nodelet::cri::{
    containerd::services::events_server::EventsServer,
    v1::{
        self,
        image_service_server::{ImageService, ImageServiceServer},
        runtime_service_server::{RuntimeService, RuntimeServiceServer},
    },
};
use std::{collections::BTreeMap, pin::Pin, sync::Arc};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, body::Body, codegen::Service as _};

/// All services of the socket.
#[derive(Clone)]
pub(super) struct Services {
    runtime: RuntimeServiceServer<CriService>,
    images: ImageServiceServer<CriService>,
    events: EventsServer<EventService>,
}

impl Services {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let cri = Arc::new(CriService(Arc::clone(shared)));
        Self {
            runtime: RuntimeServiceServer::from_arc(Arc::clone(&cri)),
            images: ImageServiceServer::from_arc(cri),
            events: EventsServer::new(EventService(Arc::clone(shared))),
        }
    }

    /// Answers one call.
    pub(super) async fn call(mut self, request: hyper::Request<Incoming>) -> hyper::Response<Body> {
        let service = request.uri().path().split('/').nth(1).unwrap_or_default();
        let answered = match service {
            "runtime.v1.RuntimeService" => self.runtime.call(request).await,
            "runtime.v1.ImageService" => self.images.call(request).await,
            "containerd.services.events.v1.Events" => self.events.call(request).await,
            other => Ok(Status::unimplemented(format!("unknown service {other}")).into_http()),
        };
        match answered {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

struct CriService(Arc<Shared>);

type Answer<T> = Result<Response<T>, Status>;

fn ok<T>(message: T) -> Answer<T> {
    Ok(Response::new(message))
}

#[tonic::async_trait]
impl RuntimeService for CriService {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        ok(v1::VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "containerd".to_owned(),
            runtime_version: "1.6.20-fake".to_owned(),
            runtime_api_version: "v1".to_owned(),
        })
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let (network_ready, strict_groups, runtime_handlers) = {
            let state = self.0.state();
            (state.network_ready, state.strict_groups, state.handlers.clone())
        };
        let condition =
            |kind: &str, status: bool, reason: &str, message: &str| v1::RuntimeCondition {
                r#type: kind.to_owned(),
                status,
                reason: if status { String::new() } else { reason.to_owned() },
                message: if status { String::new() } else { message.to_owned() },
            };
        let no_network = "Network plugin returns error: cni plugin not initialized";
        let conditions = vec![
            condition("RuntimeReady", true, "", ""),
            condition("NetworkReady", network_ready, "NetworkPluginNotReady", no_network),
        ];
        ok(v1::StatusResponse {
            status: Some(v1::RuntimeStatus { conditions }),
            features: Some(v1::RuntimeFeatures {
                supplemental_groups_policy: strict_groups,
                ..Default::default()
            }),
            runtime_handlers,
            ..Default::default()
        })
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Answer<v1::RunPodSandboxResponse> {
        let config = request.into_inner().config.unwrap_or_default();
        let pod_sandbox_id = state::run_sandbox(&self.0, config)?;
        ok(v1::RunPodSandboxResponse { pod_sandbox_id })
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> Answer<v1::StopPodSandboxResponse> {
        state::stop_sandbox(&self.0, &request.into_inner().pod_sandbox_id).await?;
        ok(v1::StopPodSandboxResponse {})
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Answer<v1::RemovePodSandboxResponse> {
        state::remove_sandbox(&self.0, &request.into_inner().pod_sandbox_id).await?;
        ok(v1::RemovePodSandboxResponse {})
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Answer<v1::PodSandboxStatusResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let state = self.0.state();
        let Some(sandbox) = state.sandboxes.get(&id) else {
            return Err(Status::not_found(format!(
                "an error occurred when try to find sandbox: {id:?}: not found"
            )));
        };
        let status = Some(sandbox_status(&id, sandbox, state.second_family));
        ok(v1::PodSandboxStatusResponse { status, ..Default::default() })
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Answer<v1::ListPodSandboxResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let state = self.0.state();
        let items = state.sandboxes.iter().map(|(id, sandbox)| v1::PodSandbox {
            id: id.clone(),
            metadata: sandbox.config.metadata.clone(),
            state: sandbox_state(sandbox).into(),
            created_at: sandbox.created_at,
            labels: sandbox.config.labels.clone(),
            annotations: sandbox.config.annotations.clone(),
            ..Default::default()
        });
        let wanted = |item: &v1::PodSandbox| {
            (filter.id.is_empty() || item.id.starts_with(&filter.id))
                && filter.state.as_ref().is_none_or(|state| state.state == item.state)
                && has_labels(&item.labels, &filter.label_selector)
        };
        ok(v1::ListPodSandboxResponse { items: items.filter(wanted).collect() })
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Answer<v1::CreateContainerResponse> {
        let container_id = state::create_container(&self.0, request.into_inner())?;
        ok(v1::CreateContainerResponse { container_id })
    }

    async fn start_container(
        &self,
        request: Request<v1::StartContainerRequest>,
    ) -> Answer<v1::StartContainerResponse> {
        state::start_container(&self.0, &request.into_inner().container_id)?;
        ok(v1::StartContainerResponse {})
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> Answer<v1::StopContainerResponse> {
        let request = request.into_inner();
        state::stop_container(&self.0, &request.container_id, request.timeout).await?;
        ok(v1::StopContainerResponse {})
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Answer<v1::RemoveContainerResponse> {
        state::remove_container(&self.0, &request.into_inner().container_id).await?;
        ok(v1::RemoveContainerResponse {})
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Answer<v1::ListContainersResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let state = self.0.state();
        let containers = state.containers.iter().map(|(id, container)| v1::Container {
            id: id.clone(),
            pod_sandbox_id: container.sandbox_id.clone(),
            metadata: container.config.metadata.clone(),
            image: container.config.image.clone(),
            image_ref: container.image_ref.clone(),
            state: container_state(container).into(),
            created_at: container.created_at,
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
            ..Default::default()
        });
        let wanted = |item: &v1::Container| {
            (filter.id.is_empty() || item.id.starts_with(&filter.id))
                && (filter.pod_sandbox_id.is_empty()
                    || item.pod_sandbox_id == filter.pod_sandbox_id)
                && filter.state.as_ref().is_none_or(|state| state.state == item.state)
                && has_labels(&item.labels, &filter.label_selector)
        };
        ok(v1::ListContainersResponse { containers: containers.filter(wanted).collect() })
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Answer<v1::ContainerStatusResponse> {
        let id = request.into_inner().container_id;
        let state = self.0.state();
        let Some(container) = state.containers.get(&id) else {
            return Err(Status::not_found(format!(
                "an error occurred when try to find container {id:?}: not found"
            )));
        };
        let status = Some(container_status(&id, container));
        ok(v1::ContainerStatusResponse { status, ..Default::default() })
    }

    async fn runtime_config(
        &self,
        _: Request<v1::RuntimeConfigRequest>,
    ) -> Answer<v1::RuntimeConfigResponse> {
        let Some(driver) = self.0.state().cgroup_driver else {
            return Err(Status::unimplemented("method RuntimeConfig not implemented"));
        };
        let linux = v1::LinuxRuntimeConfiguration { cgroup_driver: driver.into() };
        ok(v1::RuntimeConfigResponse { linux: Some(linux) })
    }

    async fn update_runtime_config(
        &self,
        _: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Answer<v1::UpdateRuntimeConfigResponse> {
        ok(v1::UpdateRuntimeConfigResponse {})
    }

    // Not answered, as by containerd 1.6.

    type GetContainerEventsStream =
        Pin<Box<dyn Stream<Item = Result<v1::ContainerEventResponse, Status>> + Send>>;

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Answer<Self::GetContainerEventsStream> {
        Err(Status::unimplemented("method GetContainerEvents not implemented"))
    }

    async fn reopen_container_log(
        &self,
        request: Request<v1::ReopenContainerLogRequest>,
    ) -> Answer<v1::ReopenContainerLogResponse> {
        state::reopen_log(&self.0, &request.into_inner().container_id)?;
        Ok(Response::new(v1::ReopenContainerLogResponse {}))
    }

    // Beyond this fake: scenarios that need them run on the real runtime only.

    async fn update_container_resources(
        &self,
        _: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Answer<v1::UpdateContainerResourcesResponse> {
        Err(Status::unimplemented("the fake runtime has no resources"))
    }

    async fn list_container_stats(
        &self,
        _: Request<v1::ListContainerStatsRequest>,
    ) -> Answer<v1::ListContainerStatsResponse> {
        Err(Status::unimplemented("the fake runtime measures nothing"))
    }

    async fn exec_sync(
        &self,
        request: Request<v1::ExecSyncRequest>,
    ) -> Answer<v1::ExecSyncResponse> {
        let (exit_code, text) = state::exec(&self.0, request.into_inner()).await?;
        ok(v1::ExecSyncResponse { stdout: text.into_bytes(), exit_code, ..Default::default() })
    }

    async fn exec(&self, _: Request<v1::ExecRequest>) -> Answer<v1::ExecResponse> {
        Err(Status::unimplemented("the fake runtime has no streaming server"))
    }

    async fn attach(&self, _: Request<v1::AttachRequest>) -> Answer<v1::AttachResponse> {
        Err(Status::unimplemented("the fake runtime has no streaming server"))
    }

    async fn port_forward(
        &self,
        _: Request<v1::PortForwardRequest>,
    ) -> Answer<v1::PortForwardResponse> {
        Err(Status::unimplemented("the fake runtime has no streaming server"))
    }
}

#[tonic::async_trait]
impl ImageService for CriService {
    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Answer<v1::ImageStatusResponse> {
        let name = request.into_inner().image.unwrap_or_default().image;
        let state = self.0.state();
        let image = state.image(&name).map(|id| image(&state.images, id));
        ok(v1::ImageStatusResponse { image, ..Default::default() })
    }

    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Answer<v1::PullImageResponse> {
        let name = request.into_inner().image.unwrap_or_default().image;
        let mut state = self.0.state();
        if !state.published.contains(&name) {
            return Err(Status::unknown(format!(
                "failed to pull and unpack image {name:?}: failed to resolve reference {name:?}: failed to do request: Head \"https://nodelet.test/v2/\": dial tcp: lookup nodelet.test: no such host"
            )));
        }
        let id = state::image_id(&name);
        state.images.insert(name, id.clone());
        ok(v1::PullImageResponse { image_ref: id })
    }

    async fn list_images(
        &self,
        _: Request<v1::ListImagesRequest>,
    ) -> Answer<v1::ListImagesResponse> {
        let state = self.0.state();
        let images = state.images.values().map(|id| image(&state.images, id)).collect();
        ok(v1::ListImagesResponse { images })
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Answer<v1::RemoveImageResponse> {
        let name = request.into_inner().image.unwrap_or_default().image;
        self.0.state().images.retain(|tag, id| *tag != name && *id != name);
        ok(v1::RemoveImageResponse {})
    }

    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Answer<v1::ImageFsInfoResponse> {
        let root = v1::FilesystemUsage {
            fs_id: Some(v1::FilesystemIdentifier { mountpoint: "/".to_owned() }),
            ..Default::default()
        };
        Ok(Response::new(v1::ImageFsInfoResponse {
            image_filesystems: vec![root],
            ..Default::default()
        }))
    }
}

fn image(images: &BTreeMap<String, String>, id: &str) -> v1::Image {
    let names = images.iter().filter(|(_, of)| *of == id).map(|(name, _)| name.clone());
    v1::Image { id: id.to_owned(), repo_tags: names.collect(), size: 1 << 20, ..Default::default() }
}

fn has_labels(labels: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn sandbox_state(sandbox: &Sandbox) -> v1::PodSandboxState {
    match sandbox.ready {
        true => v1::PodSandboxState::SandboxReady,
        false => v1::PodSandboxState::SandboxNotready,
    }
}

fn sandbox_status(
    id: &str,
    sandbox: &Sandbox,
    second_family: Option<&str>,
) -> v1::PodSandboxStatus {
    let linux = sandbox.config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let options = linux.and_then(|context| context.namespace_options.clone());
    // As in containerd, a dead sandbox has no addresses any more.
    let ip = if sandbox.ready { sandbox.ip.clone() } else { String::new() };
    let second = second_family.filter(|_| !ip.is_empty());
    let second = second.map(|prefix| ip.replacen("10.88.", prefix, 1).replace('.', ":"));
    let additional_ips = second.map(|ip| v1::PodIp { ip }).into_iter().collect();
    v1::PodSandboxStatus {
        id: id.to_owned(),
        metadata: sandbox.config.metadata.clone(),
        state: sandbox_state(sandbox).into(),
        created_at: sandbox.created_at,
        network: Some(v1::PodSandboxNetworkStatus { ip, additional_ips }),
        linux: Some(v1::LinuxPodSandboxStatus { namespaces: Some(v1::Namespace { options }) }),
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        ..Default::default()
    }
}

fn container_state(container: &Container) -> v1::ContainerState {
    match container.run {
        Run::Created => v1::ContainerState::ContainerCreated,
        Run::Running { .. } => v1::ContainerState::ContainerRunning,
        Run::Exited { .. } => v1::ContainerState::ContainerExited,
    }
}

fn container_status(id: &str, container: &Container) -> v1::ContainerStatus {
    let (started_at, finished_at, exit_code) = match container.run {
        Run::Created => (0, 0, 0),
        Run::Running { started_at, .. } => (started_at, 0, 0),
        Run::Exited { started_at, finished_at, code } => (started_at, finished_at, code),
    };
    let reason = match (&container.run, exit_code) {
        (Run::Exited { .. }, 0) => "Completed",
        (Run::Exited { .. }, _) => "Error",
        (Run::Created | Run::Running { .. }, _) => "",
    };
    v1::ContainerStatus {
        id: id.to_owned(),
        metadata: container.config.metadata.clone(),
        state: container_state(container).into(),
        created_at: container.created_at,
        started_at,
        finished_at,
        exit_code,
        image: container.config.image.clone(),
        image_ref: container.image_ref.clone(),
        reason: reason.to_owned(),
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
        mounts: container.config.mounts.clone(),
        log_path: container.log_path.display().to_string(),
        ..Default::default()
    }
}
