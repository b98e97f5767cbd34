//! `CreateSandbox`.

use super::{
    Call, Host, HostError, NotMade, Request, blocking, error_chain,
    holder::Holder,
    start_turns::StartCall,
    user_namespaces::{self, UserNamespaceError},
};
use crate::{
    blocking::PODS,
    clock,
    cri::{DnsInputs, SandboxInputs, from_cri, to_cri, v1},
    hostfiles::{DnsWarning, NodeDns, PodDns, ResolvConf, pod_dns},
    model::{
        EventKind, NetworkMode, NodeObjects, ObservedSandbox, RuntimeView, SandboxId, SandboxState,
        k8s,
    },
    plan::{CreateSandbox, Outcome, Step, Taken},
    podspec::{
        NoRuntimeClass, check_user_namespace, hostname, pod_cgroup_name, runtime_handler,
        volume_groups,
    },
};
use std::collections::BTreeSet;

pub(super) async fn create(host: &Host, request: &Request, create: &CreateSandbox) -> Outcome {
    let step = Step::Sandbox { attempt: create.attempt };
    let failed = |message: String, taken: Option<Taken>| {
        let message = format!("Failed to create pod sandbox: {message}");
        // As with the kubelet: nobody needs the sandbox of a pod that is to end.
        if !request.cancel.is_cancelled() {
            host.record(request, EventKind::Warning, "FailedCreatePodSandBox", message.clone());
        }
        let mut failure = request.failure(step.clone(), "FailedCreatePodSandBox", message);
        failure.taken = taken;
        Outcome::Failed(failure)
    };
    let Some(pod) = request.pod.as_deref() else {
        return failed("the pod's specification is not known".to_owned(), None);
    };
    let handler = match host.handler(pod, &request.objects) {
        Ok(handler) => handler,
        Err(error) => return failed(error.to_string(), None),
    };
    let deadline = host.settings.request_timeout * 2;
    // The configuration takes kilobytes, so it is made with the turn, too.
    let call = || -> Call<'_, Result<_, NotMade>> {
        Box::pin(async {
            if request.cancel.is_cancelled() {
                return Err(NotMade::NotWanted);
            }
            check_user_namespace(pod, &host.pleg.health().borrow().runtime, handler)
                .map_err(|error| NotMade::Config(UserNamespaceError::from(error).into()))?;
            let made = config(host, request, pod, create.attempt).await;
            let (config, warnings) = made.map_err(NotMade::Config)?;
            let made = Box::pin(host.runtime.run_sandbox(config, handler)).await;
            Ok((made.map_err(NotMade::Runtime)?, warnings))
        })
    };
    let made = request.awaited_in_turn(host, StartCall::RunPodSandbox, deadline, call).await;
    let (id, warnings) = match made {
        Ok(made) => made,
        Err(NotMade::Config(error)) => return failed(error.message(), None),
        Err(NotMade::NotWanted) => {
            let message = "the sandbox is not wanted any more, or the agent stops".to_owned();
            let failure = request.failure(Step::Cancelled, "FailedCreatePodSandBox", message);
            return Outcome::Failed(failure);
        }
        Err(NotMade::Runtime(error)) => {
            let mut message = host.explained(error.to_string());
            let holder = Box::pin(Holder::of_sandbox(host, &error)).await;
            message.extend(holder.iter().map(|holder| holder.note.as_str()));
            return failed(message, holder.map(|holder| holder.taken));
        }
    };
    for warning in warnings {
        host.record_dns(request, &warning);
    }
    if let Err(error) = host.cgroups.sandbox_made(&pod_cgroup_name(pod)) {
        tracing::debug!(pod = %request.key, err = %error_chain(&error), "cannot see whether its sandbox is in its cgroup");
    }
    match Box::pin(host.runtime.sandbox_status(&id)).await {
        Ok(status) => Outcome::SandboxCreated(observed(host, request, create, id, &status)),
        // The sandbox runs, and the next listing shows it.
        Err(error) => {
            let message = format!("Unable to get pod sandbox status: {error}");
            host.record(request, EventKind::Warning, "FailedPodSandBoxStatus", message.clone());
            Outcome::Failed(request.failure(step, "FailedPodSandBoxStatus", message))
        }
    }
}

impl Host {
    /// The class of a pod that runs may be gone from the configuration or the cluster.
    fn handler<'a>(
        &'a self,
        pod: &k8s::Pod,
        objects: &'a NodeObjects,
    ) -> Result<&'a str, NoRuntimeClass> {
        runtime_handler(pod, &self.settings.plan.runtime_classes, objects)
    }

    /// Whether the runtime can make mounts of this pod read-only with everything below them.
    pub(in crate::worker) fn has_recursive_read_only(
        &self,
        pod: &k8s::Pod,
        objects: &NodeObjects,
        runtime: &RuntimeView,
    ) -> bool {
        self.handler(pod, objects).is_ok_and(|handler| runtime.has_recursive_read_only(handler))
    }
}

/// The new sandbox, with the fields that only the runtime knows.
fn observed(
    host: &Host,
    request: &Request,
    create: &CreateSandbox,
    id: SandboxId,
    status: &v1::PodSandboxStatus,
) -> ObservedSandbox {
    let mut sandbox = ObservedSandbox {
        id,
        uid: request.uid.clone(),
        attempt: create.attempt,
        state: SandboxState::Ready,
        created_at: clock::now().wall,
        ips: Vec::new(),
        network: NetworkMode::Pod,
        owner: Some(host.settings.owner.clone()),
    };
    from_cri::inspected_sandbox(&mut sandbox, status);
    sandbox
}

/// The sandbox's configuration, and the problems with its DNS configuration. Containers are created
/// with the same configuration.
pub(super) async fn config(
    host: &Host,
    request: &Request,
    pod: &k8s::Pod,
    attempt: u32,
) -> Result<(v1::PodSandboxConfig, Vec<DnsWarning>), HostError> {
    let name = hostname(pod, &host.settings.cluster_domain)?;
    let (files, key, uid) = (host.files.clone(), request.key.clone(), request.uid.clone());
    let (cgroups, cgroup) = (host.cgroups.clone(), pod_cgroup_name(pod));
    let resolv_conf = host.settings.resolv_conf.clone();
    // In one piece: each start of a container waits for it.
    let look = move || -> Result<_, HostError> {
        let log_directory = files.ensure_pod_log_dir(&key, &uid)?;
        let resolv_conf = resolv_conf.map(|path| ResolvConf::read(&path)).transpose()?;
        Ok((log_directory, resolv_conf, cgroups.cri_parent(&cgroup)?))
    };
    let (log_directory, resolv_conf, cgroup_parent) = blocking(&PODS, look).await?;
    let dns = dns(host, request, pod, resolv_conf);
    let warnings = dns.warnings;
    let dns = DnsInputs { servers: dns.servers, searches: dns.searches, options: dns.options };
    let config = to_cri::sandbox_config(&SandboxInputs {
        pod,
        attempt,
        owner: &host.settings.owner,
        hostname: &name.hostname,
        dns: &dns,
        log_directory: &log_directory.to_string_lossy(),
        cgroup_parent: &cgroup_parent,
        volume_groups: &volume_groups(pod, &request.objects),
        ids: user_namespaces::ids(host, request, pod).await?,
        node: &host.settings.facts,
    });
    Ok((config, warnings))
}

/// The part of a sandbox's configuration that tells for which pod an image is pulled. Nothing on the
/// host is read or made for it: the pod may never begin.
pub(super) fn config_for_pulls(host: &Host, pod: &k8s::Pod) -> v1::PodSandboxConfig {
    to_cri::sandbox_config(&SandboxInputs {
        pod,
        attempt: 0,
        owner: &host.settings.owner,
        hostname: "",
        dns: &DnsInputs::default(),
        log_directory: "",
        cgroup_parent: "",
        volume_groups: &BTreeSet::new(),
        ids: None,
        node: &host.settings.facts,
    })
}

fn dns(host: &Host, request: &Request, pod: &k8s::Pod, resolv_conf: Option<ResolvConf>) -> PodDns {
    let Some(spec) = &pod.spec else { return PodDns::default() };
    let node = NodeDns {
        resolv_conf,
        cluster_servers: host.settings.cluster_dns.iter().map(ToString::to_string).collect(),
        cluster_domain: host.settings.cluster_domain.clone(),
        node_ips: host.node_ips.borrow().to_vec(),
    };
    pod_dns(spec, &request.key.namespace, &node)
}
