//! What the proxy makes out of a call: its name, its pod, whether it changes anything.

use super::State;
use nodelet::cri::v1;
use prost::Message;
use std::collections::BTreeMap;
use tokio::time::Instant;
use tonic::Code;

/// The calls that change what the runtime has.
///
/// A log that is opened anew changes no pod, and when that happens depends on the clock.
pub const MUTATING: [&str; 10] = [
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "UpdateContainerResources",
    "PullImage",
    "RemoveImage",
];

/// The pod (and container) that a call is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRef {
    /// Full name.
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
    /// Container name, where the call is about one.
    pub container: String,
}

/// A recorded call.
#[derive(Clone)]
pub struct Call {
    /// Place in the recording, from 0.
    pub number: usize,
    /// Place among the mutating calls, from 0; `None` for a read.
    pub mutating: Option<usize>,
    /// Without the service: `RunPodSandbox`.
    pub method: String,
    /// The request message, encoded.
    pub request: Vec<u8>,
    /// Which pod it is about, where that is known.
    pub pod: Option<PodRef>,
    /// When it arrived.
    pub at: Instant,
    /// Whether it was passed on to the runtime.
    pub reached: bool,
    /// What the caller was answered, and when; `None` while it is not.
    pub answered: Option<(Code, Instant)>,
}

impl Call {
    /// Decodes the request.
    pub fn request<M: Message + Default>(&self) -> M {
        M::decode(self.request.as_slice()).unwrap()
    }

    /// Whether it is about the pod whose name begins with `pod` or whose uid is `pod`.
    pub fn is_for(&self, pod: &str) -> bool {
        self.pod.as_ref().is_some_and(|p| p.name.starts_with(pod) || p.uid == pod)
    }
}

/// `#12 CreateContainer web-node1/main: Ok after 12ms`
impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{} {}", self.number, self.method)?;
        if let Some(pod) = &self.pod {
            write!(f, " {}/{}", pod.name, pod.container)?;
        }
        match self.answered {
            Some((code, at)) => write!(f, ": {code:?} after {:?}", at - self.at),
            None => f.write_str(": unanswered"),
        }
    }
}

/// The pod that a request is about.
pub(super) fn pod_of(state: &State, method: &str, request: &[u8]) -> Option<PodRef> {
    match method {
        "RunPodSandbox" => of_config(decode::<v1::RunPodSandboxRequest>(request)?.config, ""),
        "CreateContainer" => {
            let request: v1::CreateContainerRequest = decode(request)?;
            let container = request.config.and_then(|c| c.metadata).unwrap_or_default().name;
            of_config(request.sandbox_config, &container)
        }
        "PullImage" => of_config(decode::<v1::PullImageRequest>(request)?.sandbox_config, ""),
        // These carry the id as field 1, whatever their type.
        "StopPodSandbox" | "RemovePodSandbox" | "PodSandboxStatus" => state
            .sandboxes
            .get(&decode::<v1::StopPodSandboxRequest>(request)?.pod_sandbox_id)
            .cloned(),
        "StartContainer" | "StopContainer" | "RemoveContainer" | "ContainerStatus" | "ExecSync" => {
            state
                .containers
                .get(&decode::<v1::StartContainerRequest>(request)?.container_id)
                .cloned()
        }
        "ListPodSandbox" => {
            let filter = decode::<v1::ListPodSandboxRequest>(request)?.filter?;
            of_labels(&filter.label_selector)
        }
        "ListContainers" => {
            let filter = decode::<v1::ListContainersRequest>(request)?.filter?;
            let by_sandbox = state.sandboxes.get(&filter.pod_sandbox_id).cloned();
            by_sandbox.or_else(|| of_labels(&filter.label_selector))
        }
        _ => None,
    }
}

/// Remembers which ids belong to which pod.
pub(super) fn learn(state: &mut State, method: &str, pod: Option<&PodRef>, response: &[u8]) {
    match (method, pod) {
        ("RunPodSandbox", Some(pod)) => {
            if let Some(answer) = decode::<v1::RunPodSandboxResponse>(response) {
                state.sandboxes.insert(answer.pod_sandbox_id, pod.clone());
            }
        }
        ("CreateContainer", Some(pod)) => {
            if let Some(answer) = decode::<v1::CreateContainerResponse>(response) {
                state.containers.insert(answer.container_id, pod.clone());
            }
        }
        ("ListPodSandbox", _) => {
            for item in decode::<v1::ListPodSandboxResponse>(response).unwrap_or_default().items {
                if let Some(metadata) = item.metadata {
                    let pod =
                        PodRef { name: metadata.name, uid: metadata.uid, ..PodRef::default() };
                    state.sandboxes.insert(item.id, pod);
                }
            }
        }
        ("ListContainers", _) => {
            for item in
                decode::<v1::ListContainersResponse>(response).unwrap_or_default().containers
            {
                if let Some(pod) = of_labels(&item.labels) {
                    state.containers.insert(item.id, pod);
                }
            }
        }
        _ => {}
    }
}

fn of_config(config: Option<v1::PodSandboxConfig>, container: &str) -> Option<PodRef> {
    let metadata = config?.metadata?;
    Some(PodRef { name: metadata.name, uid: metadata.uid, container: container.to_owned() })
}

fn of_labels(labels: &BTreeMap<String, String>) -> Option<PodRef> {
    let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
    let pod = PodRef {
        name: label("io.kubernetes.pod.name"),
        uid: label("io.kubernetes.pod.uid"),
        container: label("io.kubernetes.container.name"),
    };
    (!pod.name.is_empty() || !pod.uid.is_empty()).then_some(pod)
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Option<M> {
    M::decode(bytes).ok()
}
