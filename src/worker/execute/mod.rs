//! Executes one action of a plan, without policy and without retries. This module makes everything
//! that the action does not contain (requests to the runtime, paths, the environment) from the pod
//! and the host.

mod error;
mod fetch;
mod holder;
mod hooks;
mod leftovers;
mod nfs;
mod prepare;
mod remove;
mod resize;
mod sandbox;
mod start;
mod start_turns;
mod stop;
mod stop_control;
mod user_namespaces;
mod volume_turns;

pub(crate) use error::HostError;
use error::NotMade;
pub(super) use fetch::fetch;
pub use leftovers::{Leftovers, Turn};
use start_turns::StartCall;
pub use start_turns::StartTurns;
pub(super) use stop_control::StopControl;
pub use user_namespaces::UserNamespaces;
pub use volume_turns::VolumeTurns;

use crate::{
    blocking::Pool,
    cgroup::Cgroups,
    cri::{NodeFacts, RuntimeClient},
    event::Recorder,
    handler::Handlers,
    hostfiles::{DnsWarning, HostFiles},
    image::Images,
    machine::NodeIps,
    model::{
        Event, EventKind, EventTarget, NodeObjects, ObservedPod, PodKey, PodUid, error_chain,
        format_duration, k8s,
    },
    plan::{Action, Failure, Outcome, PlanSettings, Step},
    pleg::PlegHandle,
    podspec::{Amounts, CgroupOptions, pod_display},
    store::Store,
    volume::Volumes,
};
use std::{
    net::IpAddr,
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

/// How long a start may keep its turn. A longer call probably hangs, so it gives its turn to the
/// next pod.
const TURN: Duration = Duration::from_secs(3);
/// Work on the host that takes longer than this is shown in the status. Its duration is updated at
/// this interval.
const SHOWN: Duration = Duration::from_secs(3);

/// The parts of the host that actions use; shared by all workers.
pub struct Host {
    pub runtime: RuntimeClient,
    pub store: Store,
    pub pleg: PlegHandle,
    pub events: Recorder,
    pub cgroups: Cgroups,
    pub volumes: Volumes,
    /// Logs, hosts files, termination messages.
    pub files: HostFiles,
    pub images: Images,
    /// Asks containers over the network.
    pub handlers: Handlers,
    /// Turns for starting sandboxes and containers.
    pub starts: StartTurns,
    pub volume_turns: VolumeTurns,
    /// The node's addresses.
    pub node_ips: watch::Receiver<NodeIps>,
    /// Removes what pods have left, by turns for each uid.
    pub leftovers: Leftovers,
    pub user_namespaces: UserNamespaces,
    pub settings: HostSettings,
}

/// Settings that do not change while the agent runs.
#[derive(Clone, Debug)]
pub struct HostSettings {
    pub node_name: Box<str>,
    /// This agent's owner id.
    pub owner: Box<str>,
    pub plan: PlanSettings,
    /// Facts that requests to the runtime depend on.
    pub facts: NodeFacts,
    /// Settings that pod cgroups depend on.
    pub cgroup: CgroupOptions,
    /// What pods may use together.
    pub allocatable: Amounts,
    /// `resolvConf`; `None`: nothing is taken from the host.
    pub resolv_conf: Option<PathBuf>,
    /// Whether the node belongs to a cluster (`--kubeconfig`).
    pub in_cluster: bool,
    /// `clusterDNS`
    pub cluster_dns: Vec<IpAddr>,
    /// `clusterDomain`
    pub cluster_domain: String,
    /// `runtimeRequestTimeout`: when a call that changes something counts as hung.
    pub request_timeout: Duration,
}

/// A call that is under way. It is on the heap because it is large (10 KiB and more) and
/// short-lived.
pub(super) type Call<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub(super) struct Request {
    pub key: PodKey,
    pub uid: PodUid,
    /// The pod as it runs or is wished; `None` when only the runtime knows it.
    pub pod: Option<Arc<k8s::Pod>>,
    pub observed: Arc<ObservedPod>,
    /// ConfigMaps and Secrets when the action began. Volumes are made from them.
    pub objects: Arc<NodeObjects>,
    /// ConfigMaps, Secrets and Services as they are now, once the volumes are written from them. A
    /// container begins with them, because its image may have taken minutes.
    pub latest_objects: watch::Sender<Arc<NodeObjects>>,
    /// What the container began with.
    pub begun_with: OnceLock<Arc<NodeObjects>>,
    /// Cancels what may take for ever: an image pull, a postStart hook or the wait for a turn.
    pub cancel: CancellationToken,
    /// Cancels an image pull alone. It is also cancelled with `cancel`.
    pub cancel_pull: CancellationToken,
    /// Cancels a postStart hook alone. It is also cancelled with `cancel`.
    pub cancel_hook: CancellationToken,
    pub progress: watch::Sender<Progress>,
    pub stop_control: StopControl,
    /// The one of an earlier action that is still under way.
    pub earlier_stop: Option<StopControl>,
    /// How long the images of a container took.
    pub images_millis: AtomicU64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// The calls that are past their soft deadline, the longest overdue first.
    pub overdue: Vec<String>,
    /// The work of the action on the host, and for how long; set only if it takes long.
    pub doing: Option<String>,
    /// No call is under way: nothing is lost when the action is dropped now.
    pub may_be_dropped: bool,
}

/// Executes `action`. Each future is boxed separately: they differ in size, and there is one for
/// each pod.
///
/// # Cancel safety
/// None: it awaits calls that must not be dropped.
pub(super) fn execute<'a>(
    host: &'a Host,
    request: &'a Request,
    action: &'a Action,
) -> Call<'a, Outcome> {
    match action {
        Action::PreparePod { .. } => Box::pin(prepare::prepare(host, request)),
        Action::CreateSandbox(create) => Box::pin(sandbox::create(host, request, create)),
        Action::StartContainer(start) => Box::pin(start::start(host, request, start)),
        Action::Resize(resize) => Box::pin(resize::resize(host, request, resize)),
        Action::KillContainer(kill) => Box::pin(stop::kill_container(host, request, kill)),
        Action::KillPod(kill) => Box::pin(stop::kill_pod(host, request, kill)),
        Action::RemoveContainer(remove) => Box::pin(remove::container(host, request, remove)),
        Action::RemoveSandbox(remove) => Box::pin(remove::sandbox(host, request, remove)),
        Action::Release { .. } => Box::pin(remove::release(host, request)),
        Action::CleanUp { .. } => Box::pin(remove::clean_up(host, request)),
    }
}

impl Host {
    fn record(&self, request: &Request, kind: EventKind, reason: &'static str, message: String) {
        self.events.record(Event { target: request.target(None), kind, reason, message });
    }

    /// Emits the events about the DNS configuration of a new sandbox, as the kubelet does.
    fn record_dns(&self, request: &Request, warning: &DnsWarning) {
        let (kind, reason) = (EventKind::Warning, warning.reason());
        let mut message = warning.to_string();
        if *warning == DnsWarning::MissingClusterDns {
            // Without a cluster there is no cluster DNS. ClusterFirst is the default of every
            // manifest, so there would be a warning for each pod.
            if !self.settings.in_cluster {
                return;
            }
            let of_pod = format!("pod: \"{}\". {message}", pod_display(&request.key, &request.uid));
            self.events.record(Event { target: EventTarget::Node, kind, reason, message });
            message = of_pod;
        }
        self.record(request, kind, reason, message);
    }

    /// The error message of the runtime. If the cgroup drivers do not match, an explanation is put
    /// before it.
    fn explained(&self, message: String) -> String {
        match self.cgroups.runtime_refused(&message) {
            Some(meaning) => format!("{meaning}: {message}"),
            None => message,
        }
    }
}

impl Request {
    /// How long the images of the container took that was started.
    pub(super) fn images_took(&self) -> Duration {
        Duration::from_millis(self.images_millis.load(Ordering::Relaxed))
    }

    fn target(&self, field_path: Option<String>) -> EventTarget {
        EventTarget::Pod { key: self.key.clone(), uid: self.uid.clone(), field_path }
    }

    fn failure(&self, step: Step, reason: &str, message: String) -> Failure {
        Failure {
            uid: self.uid.clone(),
            step,
            reason: reason.to_owned(),
            message,
            taken: None,
            left: None,
        }
    }

    /// Awaits a call that must not be dropped; past `deadline` it is shown as hung.
    async fn awaited<T>(&self, call: &str, deadline: Duration, mut answer: Call<'_, T>) -> T {
        if let Ok(answer) = tokio::time::timeout(deadline, &mut answer).await {
            return answer;
        }
        let waited = format_duration(deadline);
        tracing::warn!(pod = %self.key, uid = %self.uid, "{call}: no answer for {waited}, still waiting");
        let overdue = format!("{call}: no answer for {waited}");
        self.progress.send_modify(|progress| progress.overdue.push(overdue.clone()));
        let answer = answer.await;
        self.progress.send_modify(|progress| {
            let own = progress.overdue.iter().position(|other| *other == overdue);
            if let Some(own) = own {
                progress.overdue.remove(own);
            }
        });
        answer
    }

    /// Awaits work on the host that may be dropped and begun again. It is shown as `what` while it
    /// takes longer than [`SHOWN`].
    async fn shown<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        self.progress.send_modify(|progress| progress.may_be_dropped = true);
        let begun = Instant::now();
        let mut work = Box::pin(work);
        let result = loop {
            if let Ok(result) = tokio::time::timeout(SHOWN, &mut work).await {
                break result;
            }
            let doing = format!("{what} for {} s", begun.elapsed().as_secs());
            self.progress.send_modify(|progress| progress.doing = Some(doing));
        };
        self.progress.send_modify(|progress| {
            progress.doing = None;
            progress.may_be_dropped = false;
        });
        result
    }

    /// [`Self::awaited`] for a start: takes a turn first and gives it up when the call hangs. The
    /// call is made with the turn, because on a full node a hundred pods wait for theirs. When the
    /// start is cancelled meanwhile, `make` is called at once, and should make no call.
    async fn awaited_in_turn<'a, T>(
        &self,
        host: &Host,
        call: StartCall,
        deadline: Duration,
        make: impl FnOnce() -> Call<'a, T>,
    ) -> T {
        self.progress.send_modify(|progress| progress.may_be_dropped = true);
        // Both only wait.
        let turn = tokio::select! {
            biased;
            turn = host.starts.turn(call) => turn,
            () = self.cancel.cancelled() => None,
        };
        self.progress.send_modify(|progress| progress.may_be_dropped = false);
        let mut answer = make();
        if let Ok(answer) = tokio::time::timeout(TURN, &mut answer).await {
            return answer;
        }
        drop(turn);
        self.awaited(call.name(), deadline.saturating_sub(TURN), answer).await
    }
}

/// Runs something that may block (file systems) on a thread of `pool`; a panic there is an error.
pub(crate) async fn blocking<T: Send + 'static, E: Send + 'static>(
    pool: &'static Pool,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, HostError>
where
    HostError: From<E>,
{
    Ok(pool.run(work).await??)
}
