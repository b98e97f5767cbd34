//! A runtime on a Unix socket that shows whatever world it is given.

use crate::cri::{
    CONTAINER_NAME_LABEL, POD_NAME_LABEL, POD_NAMESPACE_LABEL, POD_UID_LABEL,
    containerd::{
        events::TaskExit,
        services::{
            Envelope, SubscribeRequest,
            events_server::{Events, EventsServer},
        },
    },
    v1::{
        self,
        runtime_service_server::{RuntimeService, RuntimeServiceServer},
    },
};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};
use tokio::{
    net::UnixListener,
    sync::{Notify, mpsc},
    task::JoinSet,
};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};
use tower::Service as _;

/// What runs, by container name: each in a pod of the same name with one sandbox.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "faults, each on or off")]
pub(super) struct World {
    pub(super) pods: BTreeMap<String, v1::ContainerState>,
    /// Ids of containers whose status hangs.
    pub(super) hang: BTreeSet<String>,
    pub(super) lists_fail: bool,
    pub(super) no_events: bool,
    pub(super) network_down: bool,
    /// Whole listings and listings of one pod that were made.
    pub(super) listings: (usize, usize),
    /// Container inspections that were made.
    pub(super) inspections: usize,
    subscribers: Vec<mpsc::Sender<Result<Envelope, Status>>>,
}

#[derive(Clone, Default)]
pub(super) struct Fake {
    pub(super) world: Arc<Mutex<World>>,
    pub(super) released: Arc<Notify>,
}

type Answer<T> = Result<Response<T>, Status>;

impl Fake {
    /// Serves on `socket` as long as the set lives; then every connection is cut.
    pub(super) fn serve(&self, socket: &Path) -> JoinSet<()> {
        let listener = UnixListener::bind(socket).unwrap();
        let runtime = RuntimeServiceServer::new(self.clone());
        let events = EventsServer::new(self.clone());
        let mut set = JoinSet::new();
        set.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (runtime, events) = (runtime.clone(), events.clone());
                let service =
                    hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
                        let (mut runtime, mut events) = (runtime.clone(), events.clone());
                        async move {
                            match request.uri().path().starts_with("/containerd") {
                                true => events.call(request).await,
                                false => runtime.call(request).await,
                            }
                        }
                    });
                connections.spawn(async move {
                    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service);
                    let _cut = connection.await;
                });
            }
        });
        set
    }

    pub(super) fn set(&self, pod: &str, state: v1::ContainerState) {
        self.world.lock().unwrap().pods.insert(pod.to_owned(), state);
    }

    /// Tells of the end of a container.
    pub(super) fn tell_exit(&self, pod: &str) {
        let id = format!("{pod}-c");
        let exit = TaskExit { container_id: id.clone(), id, pid: 1, exit_status: 3 };
        let event = prost_types::Any { type_url: String::new(), value: exit.encode_to_vec() };
        let envelope = Envelope {
            timestamp: None,
            namespace: "k8s.io".to_owned(),
            topic: "/tasks/exit".to_owned(),
            event: Some(event),
        };
        for subscriber in &self.world.lock().unwrap().subscribers {
            let _gone = subscriber.try_send(Ok(envelope.clone()));
        }
    }

    fn listed(&self, wanted: &BTreeMap<String, String>) -> Result<Vec<String>, Status> {
        let mut world = self.world.lock().unwrap();
        if world.lists_fail {
            return Err(Status::internal("no list"));
        }
        let name = wanted.get(POD_NAME_LABEL);
        match name {
            None => world.listings.0 += 1,
            Some(_) => world.listings.1 += 1,
        }
        Ok(world.pods.keys().filter(|pod| name.is_none_or(|n| n == *pod)).cloned().collect())
    }
}

fn labels(pod: &str) -> BTreeMap<String, String> {
    let pairs = [
        (POD_NAME_LABEL, pod),
        (POD_NAMESPACE_LABEL, "default"),
        (POD_UID_LABEL, "u"),
        (CONTAINER_NAME_LABEL, "main"),
    ];
    pairs.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

fn sandbox_metadata(pod: &str) -> v1::PodSandboxMetadata {
    v1::PodSandboxMetadata {
        name: pod.to_owned(),
        uid: "u".to_owned(),
        namespace: "default".to_owned(),
        attempt: 0,
    }
}

/// Methods that nobody here calls.
macro_rules! unused {
    ($($method:ident($request:ident) -> $answer:ident)*) => {
        $(fn $method<'life0, 'async_trait>(
            &'life0 self,
            _: Request<v1::$request>,
        ) -> Pin<Box<dyn Future<Output = Answer<v1::$answer>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async { Err(Status::unimplemented(stringify!($method))) })
        })*
    };
}

#[tonic::async_trait]
impl RuntimeService for Fake {
    async fn exec(
        &self,
        _: Request<v1::ExecRequest>,
    ) -> Result<Response<v1::ExecResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn attach(
        &self,
        _: Request<v1::AttachRequest>,
    ) -> Result<Response<v1::AttachResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn port_forward(
        &self,
        _: Request<v1::PortForwardRequest>,
    ) -> Result<Response<v1::PortForwardResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    type GetContainerEventsStream =
        Pin<Box<dyn Stream<Item = Result<v1::ContainerEventResponse, Status>> + Send>>;

    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        Ok(Response::new(v1::VersionResponse {
            runtime_name: "fake".to_owned(),
            runtime_version: "1".to_owned(),
            ..Default::default()
        }))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let down = self.world.lock().unwrap().network_down;
        let condition = |name: &str, status| v1::RuntimeCondition {
            r#type: name.to_owned(),
            status,
            ..Default::default()
        };
        let conditions = vec![condition("RuntimeReady", true), condition("NetworkReady", !down)];
        let status = Some(v1::RuntimeStatus { conditions });
        Ok(Response::new(v1::StatusResponse { status, ..Default::default() }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Answer<v1::ListPodSandboxResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let pods = self.listed(&filter.label_selector)?;
        let items = pods.iter().map(|pod| v1::PodSandbox {
            id: format!("{pod}-s"),
            metadata: Some(sandbox_metadata(pod)),
            labels: labels(pod),
            ..Default::default()
        });
        Ok(Response::new(v1::ListPodSandboxResponse { items: items.collect() }))
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Answer<v1::ListContainersResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let world = self.world.lock().unwrap();
        let name = filter.label_selector.get(POD_NAME_LABEL);
        let pods = world.pods.iter().filter(|(pod, _)| name.is_none_or(|n| n == *pod));
        let containers = pods.map(|(pod, state)| v1::Container {
            id: format!("{pod}-c"),
            pod_sandbox_id: format!("{pod}-s"),
            state: (*state).into(),
            labels: labels(pod),
            ..Default::default()
        });
        Ok(Response::new(v1::ListContainersResponse { containers: containers.collect() }))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Answer<v1::PodSandboxStatusResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let ip = "10.0.0.1".to_owned();
        let status = v1::PodSandboxStatus {
            id,
            network: Some(v1::PodSandboxNetworkStatus { ip, ..Default::default() }),
            ..Default::default()
        };
        Ok(Response::new(v1::PodSandboxStatusResponse {
            status: Some(status),
            ..Default::default()
        }))
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Answer<v1::ContainerStatusResponse> {
        let id = request.into_inner().container_id;
        loop {
            let released = self.released.notified();
            if !self.world.lock().unwrap().hang.contains(&id) {
                break;
            }
            released.await;
        }
        let mut world = self.world.lock().unwrap();
        world.inspections += 1;
        let pod = id.trim_end_matches("-c");
        let state = *world.pods.get(pod).ok_or_else(|| Status::not_found("no container"))?;
        let status = v1::ContainerStatus {
            id: id.clone(),
            state: state.into(),
            started_at: 1,
            finished_at: 2,
            ..Default::default()
        };
        Ok(Response::new(v1::ContainerStatusResponse {
            status: Some(status),
            ..Default::default()
        }))
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Answer<Self::GetContainerEventsStream> {
        Err(Status::unimplemented("events"))
    }

    unused! {
        runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse
        update_runtime_config(UpdateRuntimeConfigRequest) -> UpdateRuntimeConfigResponse
        run_pod_sandbox(RunPodSandboxRequest) -> RunPodSandboxResponse
        stop_pod_sandbox(StopPodSandboxRequest) -> StopPodSandboxResponse
        remove_pod_sandbox(RemovePodSandboxRequest) -> RemovePodSandboxResponse
        create_container(CreateContainerRequest) -> CreateContainerResponse
        start_container(StartContainerRequest) -> StartContainerResponse
        stop_container(StopContainerRequest) -> StopContainerResponse
        remove_container(RemoveContainerRequest) -> RemoveContainerResponse
        update_container_resources(UpdateContainerResourcesRequest) -> UpdateContainerResourcesResponse
        reopen_container_log(ReopenContainerLogRequest) -> ReopenContainerLogResponse
        list_container_stats(ListContainerStatsRequest) -> ListContainerStatsResponse
        exec_sync(ExecSyncRequest) -> ExecSyncResponse
    }
}

#[tonic::async_trait]
impl Events for Fake {
    type SubscribeStream = Received;

    async fn subscribe(&self, _: Request<SubscribeRequest>) -> Answer<Received> {
        let mut world = self.world.lock().unwrap();
        if world.no_events {
            return Err(Status::unimplemented("events"));
        }
        let (sender, receiver) = mpsc::channel(16);
        world.subscribers.push(sender);
        Ok(Response::new(Received(receiver)))
    }
}

/// A channel as a stream.
pub(super) struct Received(mpsc::Receiver<Result<Envelope, Status>>);

impl Stream for Received {
    type Item = Result<Envelope, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}
