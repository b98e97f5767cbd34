//! `StartContainer`: images, configuration, create, start.

mod images;

use super::{
    Call, Host, HostError, NotMade, Progress, Request, blocking, holder::Holder, hooks::Hooked,
    sandbox, start_turns::StartCall, stop::stop_container, user_namespaces,
    volume_turns::with_volumes,
};
use crate::{
    blocking::PODS,
    clock,
    cri::{ContainerInputs, CriError, ImageFound, ImageInputs, MountInput, to_cri, v1},
    hostfiles::EtcHosts,
    model::{
        ContainerId, ContainerState, Event, EventKind, ObservedContainer, ObservedSandbox, k8s,
    },
    plan::{Failure, Outcome, Restart, StartContainer, Step, Stop},
    podspec::{
        EnvContext, any_container_of, build_env, claimed_volumes, container_amounts,
        container_hash, expand_sub_path, grace_seconds, hostname, is_host_network, primary_ips,
        volume_groups,
    },
    volume::{HostMount, MountInputs, RecursiveReadOnly},
};
use futures_util::FutureExt as _;
use images::{ImageOfVolume, Images, VolumeImages};
use std::{
    future::ready,
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
};
use tokio::time::Instant;

/// The progress of a start; each step adds to it.
struct Start<'a> {
    host: &'a Host,
    request: &'a Request,
    action: &'a StartContainer,
    pod: &'a Arc<k8s::Pod>,
    container: &'a k8s::Container,
    restart_count: u32,
}

/// What a container finds inside.
struct Inside {
    env: Vec<(String, String)>,
    mounts: Vec<MountInput>,
}

/// Both configurations that CreateContainer takes.
struct Configs {
    container: v1::ContainerConfig,
    sandbox: v1::PodSandboxConfig,
}

pub(super) async fn start(host: &Host, request: &Request, action: &StartContainer) -> Outcome {
    match try_start(host, request, action).await {
        Ok(container) => Outcome::ContainerStarted(container),
        Err(failure) => Outcome::Failed(*failure),
    }
}

async fn try_start(
    host: &Host,
    request: &Request,
    action: &StartContainer,
) -> Result<ObservedContainer, Box<Failure>> {
    let config_step = || Step::Config { container: action.name.clone() };
    let unknown = |what: &str| {
        Box::new(request.failure(config_step(), "CreateContainerConfigError", what.to_owned()))
    };
    let pod = request.pod.as_ref();
    let pod = pod.ok_or_else(|| unknown("the pod's specification is not known"))?;
    let container = any_container_of(pod, &action.name);
    let container = container.ok_or_else(|| unknown("the pod has no such container"))?;
    let container = &*container;
    let mut start = Start { host, request, action, pod, container, restart_count: 0 };
    start.restart_count = match action.restart_count {
        Some(count) => count,
        None => start.count_from_logs().await?,
    };
    let made = match &action.created {
        Some(id) => start.already_created(id)?,
        None => {
            // On the heap, as below: a large future that ends before the wait for a turn.
            let begun = Instant::now();
            let images = Box::pin(start.images()).await;
            let took = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            request.images_millis.store(took, Ordering::Relaxed);
            let images = images?;
            start.create(&images).await?
        }
    };
    start.run(made).await
}

impl Start<'_> {
    fn event(&self, kind: EventKind, reason: &'static str, message: String) {
        let target = self.request.target(Some(self.action.kind.field_path(&self.action.name)));
        self.host.events.record(Event { target, kind, reason, message });
    }

    /// A failure with the `Failed` event that goes with it.
    fn failed(&self, step: Step, reason: &str, message: String) -> Box<Failure> {
        self.event(EventKind::Warning, "Failed", format!("Error: {message}"));
        Box::new(self.request.failure(step, reason, message))
    }

    fn config_failed(&self, message: String) -> Box<Failure> {
        let step = Step::Config { container: self.action.name.clone() };
        self.failed(step, "CreateContainerConfigError", message)
    }

    async fn count_from_logs(&self) -> Result<u32, Box<Failure>> {
        let (files, key, uid) =
            (self.host.files.clone(), self.request.key.clone(), self.request.uid.clone());
        let name = self.action.name.clone();
        let count = blocking(&PODS, move || files.next_restart_count(&key, &uid, &name)).await;
        count.map_err(|error| self.config_failed(error.message()))
    }

    /// The created container that is to be started as it is.
    fn already_created(&self, id: &ContainerId) -> Result<ObservedContainer, Box<Failure>> {
        let found = self.request.observed.containers.iter().find(|c| c.id == *id);
        found.cloned().ok_or_else(|| self.config_failed(format!("container {id} is gone")))
    }

    async fn create(&self, images: &Images) -> Result<ObservedContainer, Box<Failure>> {
        let (sandbox, image) = (self.sandbox()?, &images.own);
        // Before the turn, because host paths may hang.
        let inside = Box::pin(self.inside(sandbox, &images.of_volumes)).await;
        let inside = inside.map_err(|error| self.config_failed(error.message()))?;
        let deadline = self.host.settings.request_timeout;
        let call = || -> Call<'_, Result<_, NotMade>> {
            Box::pin(async {
                if self.request.cancel.is_cancelled() {
                    return Err(NotMade::NotWanted);
                }
                let configs = self.configs(sandbox, image, &inside).await;
                let Configs { container, sandbox: of_sandbox } =
                    configs.map_err(NotMade::Config)?;
                let termination_log = termination_log(self.container, &container);
                let log_path = format!("{}/{}", of_sandbox.log_directory, container.log_path);
                let call = self.host.runtime.create_container(&sandbox.id, container, of_sandbox);
                let id = Box::pin(call).await.map_err(NotMade::Runtime)?;
                Ok((id, termination_log, log_path))
            })
        };
        let made = self
            .request
            .awaited_in_turn(self.host, StartCall::CreateContainer, deadline, call)
            .await;
        let (id, termination_log, log_path) = match made {
            Ok(made) => made,
            Err(NotMade::Config(error)) => return Err(self.config_failed(error.message())),
            Err(NotMade::NotWanted) => return Err(self.not_wanted("CreateContainerError")),
            Err(NotMade::Runtime(error)) => return Err(Box::pin(self.not_created(&error)).await),
        };
        self.event(EventKind::Normal, "Created", "Container created".to_owned());
        Ok(self.observed(id, image, termination_log, log_path))
    }

    async fn not_created(&self, error: &CriError) -> Box<Failure> {
        let holder = Holder::of_container(self.host, self.request, error).await;
        let mut message = error.message();
        message.extend(holder.iter().map(|holder| holder.note.as_str()));
        let (container, restart_count) = (self.action.name.clone(), self.restart_count);
        let step = Step::Create { container, restart_count };
        let mut failure = self.failed(step, "CreateContainerError", message);
        failure.taken = holder.map(|holder| holder.taken);
        failure
    }

    fn sandbox(&self) -> Result<&ObservedSandbox, Box<Failure>> {
        let id = &self.action.sandbox_id;
        let found = self.request.observed.sandboxes.iter().find(|s| s.id == *id);
        found.ok_or_else(|| self.config_failed(format!("sandbox {id} is gone")))
    }

    /// Starts what was created.
    async fn run(&self, mut made: ObservedContainer) -> Result<ObservedContainer, Box<Failure>> {
        let deadline = self.host.settings.request_timeout;
        let call = || -> Call<'_, Option<_>> {
            match self.request.cancel.is_cancelled() {
                true => Box::pin(ready(None)),
                false => Box::pin(self.host.runtime.start_container(&made.id).map(Some)),
            }
        };
        let started = self
            .request
            .awaited_in_turn(self.host, StartCall::StartContainer, deadline, call)
            .await;
        let failure = match started {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(self.not_started(&error, &made)),
            // Not `Step::Start`: the container can still be started.
            None => Some(self.not_wanted("RunContainerError")),
        };
        if let Some(mut failure) = failure {
            failure.left = Some(Box::new(made));
            return Err(failure);
        }
        made.state = ContainerState::Running { started_at: clock::now().wall };
        self.event(EventKind::Normal, "Started", "Container started".to_owned());
        self.link_log(&made).await;
        let lifecycle = self.container.lifecycle.as_ref();
        match lifecycle.and_then(|lifecycle| lifecycle.post_start.as_ref()) {
            Some(hook) => Box::pin(self.post_start(hook, made)).await,
            None => Ok(made),
        }
    }

    fn not_started(&self, error: &CriError, made: &ObservedContainer) -> Box<Failure> {
        let step = Step::Start { container: self.action.name.clone(), id: made.id.clone() };
        let message = self.host.explained(error.message());
        // As in the kubelet's events, so that all failures of a crash loop are one event.
        let shown = message.replace(made.id.as_str(), &self.action.name);
        self.event(EventKind::Warning, "Failed", format!("Error: {shown}"));
        Box::new(self.request.failure(step, "RunContainerError", message))
    }

    /// The outcome of a start that was cancelled before the runtime was asked.
    fn not_wanted(&self, reason: &str) -> Box<Failure> {
        let message = "the container is not wanted any more, or the agent stops".to_owned();
        Box::new(self.request.failure(Step::Cancelled, reason, message))
    }

    /// Calls the hook. A container whose hook fails is stopped. The call is dropped when the pod is
    /// no longer wanted or a person wants the container restarted: a hook may take for ever.
    async fn post_start(
        &self,
        hook: &k8s::LifecycleHandler,
        made: ObservedContainer,
    ) -> Result<ObservedContainer, Box<Failure>> {
        let Start { host, request, pod, container, .. } = *self;
        let hooked = Hooked { host, request, pod, container, id: &made.id };
        let call = request.shown("calling its postStart hook", hooked.call(hook, None));
        // Both are cancel-safe.
        let called = tokio::select! {
            biased;
            () = request.cancel_hook.cancelled() => Ok(()),
            called = call => called,
        };
        request.progress.send_modify(|progress| *progress = Progress::default());
        let Err(message) = called.map_err(|failed| failed.to_string()) else { return Ok(made) };
        hooked.event(EventKind::Warning, "FailedPostStartHook", "PostStartHook failed");
        let pod = Some(&**pod);
        let (key, grace_seconds) = (&request.key, grace_seconds(pod));
        let stop = Stop { key, pod, grace_seconds, restart: Restart::ByPolicy };
        let kill = stop.kill(&made, Some("FailedPostStartHook".to_owned()));
        if let Err(error) = stop_container(host, request, &kill).await {
            // The next listing shows that it runs. It is left to itself then, as the kubelet does.
            tracing::warn!(pod = %request.key, container = %container.name, err = %error.message(), "cannot stop it after its postStart hook has failed");
        }
        let step = Step::Start { container: self.action.name.clone(), id: made.id.clone() };
        let mut failure = request.failure(step, "PostStartHookError", message);
        failure.left = Some(Box::new(made));
        Err(Box::new(failure))
    }

    /// The symbolic link by which log collectors find the log. A container also runs without it.
    async fn link_log(&self, made: &ObservedContainer) {
        let (files, key, name) =
            (self.host.files.clone(), self.request.key.clone(), self.action.name.clone());
        let (id, log_path) = (made.id.clone(), PathBuf::from(&*made.log_path));
        let linked =
            blocking(&PODS, move || files.link_container_log(&key, &name, &id, &log_path)).await;
        if let Err(error) = linked {
            tracing::warn!(pod = %self.request.key, container = %self.action.name, err = %error.message(), "cannot link its log");
        }
    }

    fn observed(
        &self,
        id: ContainerId,
        image: &ImageFound,
        termination_log: Option<Box<str>>,
        log_path: String,
    ) -> ObservedContainer {
        let (container, request) = (self.container, self.request);
        ObservedContainer {
            id,
            sandbox_id: self.action.sandbox_id.clone(),
            uid: request.uid.clone(),
            name: container.name.as_str().into(),
            restart_count: self.restart_count,
            hash: container_hash(container).into(),
            made_with: Some(Box::new(container_amounts(self.pod, container))),
            state: ContainerState::Created,
            ended_with: None,
            created_at: clock::now().wall,
            image: container.image.as_deref().unwrap_or_default().into(),
            image_ref: image.id.as_str().into(),
            termination_message_path: text(container.termination_message_path.as_deref()),
            termination_message_policy: text(container.termination_message_policy.as_deref()),
            termination_log,
            log_path: log_path.into(),
            user: None,
        }
    }

    async fn inside(
        &self,
        sandbox: &ObservedSandbox,
        images: &VolumeImages,
    ) -> Result<Inside, HostError> {
        let objects = Arc::clone(&self.request.latest_objects.borrow());
        let objects = self.request.begun_with.get_or_init(|| objects);
        let host_ips = Arc::clone(&self.host.node_ips.borrow());
        let pod_ips: &[IpAddr] = if is_host_network(self.pod) { &host_ips } else { &sandbox.ips };
        let env = build_env(
            self.pod,
            self.container,
            &EnvContext {
                node_name: &self.host.settings.node_name,
                host_ips: &host_ips,
                pod_ips: &primary_ips(pod_ips, &host_ips),
                allocatable: &self.host.settings.allocatable,
                objects,
            },
        )?;
        let mounts = self.mounts(&env, pod_ips, images).await?;
        Ok(Inside { env, mounts })
    }

    async fn configs(
        &self,
        sandbox: &ObservedSandbox,
        image: &ImageFound,
        inside: &Inside,
    ) -> Result<Configs, HostError> {
        let (of_sandbox, _) =
            sandbox::config(self.host, self.request, self.pod, sandbox.attempt).await?;
        let container = to_cri::container_config(&ContainerInputs {
            pod: self.pod,
            container: self.container,
            restart_count: self.restart_count,
            image: ImageInputs { reference: &image.id, uid: image.uid, username: &image.username },
            env: &inside.env,
            mounts: &inside.mounts,
            target: self.action.target.as_ref(),
            volume_groups: &volume_groups(self.pod, &self.request.objects),
            ids: user_namespaces::ids(self.host, self.request, self.pod).await?,
            node: &self.host.settings.facts,
        })?;
        Ok(Configs { container, sandbox: of_sandbox })
    }
}

impl Start<'_> {
    /// Volumes in the order of the specification, then the files that the agent provides.
    async fn mounts(
        &self,
        env: &[(String, String)],
        pod_ips: &[IpAddr],
        images: &VolumeImages,
    ) -> Result<Vec<MountInput>, HostError> {
        let container_mounts = self.container.volume_mounts.as_deref().unwrap_or_default();
        let expanded = container_mounts
            .iter()
            .map(|mount| {
                let expression = mount.sub_path_expr.as_deref().filter(|text| !text.is_empty());
                expression.map(|text| expand_sub_path(text, env)).transpose()
            })
            .collect::<Result<Vec<_>, _>>()?;
        let hosts = self.wants_etc_hosts(pod_ips);
        let name = hostname(self.pod, &self.host.settings.cluster_domain)?;
        let pod_ips = pod_ips.to_vec();
        let objects = &self.request.objects;
        let recursive = self.host.has_recursive_read_only(
            self.pod,
            objects,
            &self.host.pleg.health().borrow().runtime,
        );
        let (volumes, files) = (self.host.volumes.clone(), self.host.files.clone());
        let (pod, uid, container) =
            (Arc::clone(self.pod), self.request.uid.clone(), self.container.clone());
        let (key, images) = (self.request.key.clone(), images.clone());
        let used_logs = self.used_termination_logs();
        let claimed = claimed_volumes(self.pod, objects);
        with_volumes(self.host, self.request, move || {
            files.ensure_container_log_dir(&key, &uid, &container.name)?;
            let from_volumes = volumes.mounts_for(&MountInputs {
                pod: &pod,
                uid: &uid,
                container: &container.name,
                mounts: container.volume_mounts.as_deref().unwrap_or_default(),
                expanded_sub_paths: &expanded,
                claimed: &claimed,
            })?;
            let mut mounts = from_volumes
                .into_iter()
                .map(|mount| volume_mount(mount, recursive, &images))
                .collect::<Result<Vec<MountInput>, HostError>>()?;
            if hosts {
                let spec = pod.spec.as_ref();
                let aliases = spec.and_then(|spec| spec.host_aliases.as_deref());
                let hosts = EtcHosts {
                    node_hosts: None,
                    pod_ips: &pod_ips,
                    hostname: &name.short,
                    domain: &name.domain,
                    aliases: aliases.unwrap_or_default(),
                };
                let path = files.write_etc_hosts(&uid, is_host_network(&pod), &hosts)?;
                mounts.push(file_mount(&path, "/etc/hosts"));
            }
            let message_path = container.termination_message_path.as_deref();
            if let Some(target) = message_path.filter(|path| !path.is_empty()) {
                let path =
                    files.create_termination_log(&uid, &container.name, used_logs.as_deref())?;
                mounts.push(file_mount(&path, target));
            }
            Ok(mounts)
        })
        .await?
    }

    /// The termination logs that the listed instances of the container have mounted. `None` when
    /// the runtime did not tell one of them.
    fn used_termination_logs(&self) -> Option<Vec<Box<str>>> {
        let listed = &self.request.observed.containers;
        let has_one = |c: &&ObservedContainer| {
            c.uid == self.request.uid
                && *c.name == *self.container.name
                && !c.termination_message_path.is_empty()
        };
        listed.iter().filter(has_one).map(|c| c.termination_log.clone()).collect()
    }

    /// True when the agent provides the hosts file: not if the container mounts its own, or if no
    /// address for it is known.
    fn wants_etc_hosts(&self, pod_ips: &[IpAddr]) -> bool {
        let mut own = self.container.volume_mounts.iter().flatten();
        !own.any(|mount| mount.mount_path.trim_end_matches('/') == ETC_HOSTS)
            && (!pod_ips.is_empty() || is_host_network(self.pod))
    }
}

const ETC_HOSTS: &str = "/etc/hosts";

/// `recursive`: whether the runtime can also make submounts read-only.
fn volume_mount(
    mount: HostMount,
    recursive: bool,
    images: &VolumeImages,
) -> Result<MountInput, HostError> {
    use crate::{cri, volume};
    let access = match (mount.readonly, mount.recursive_read_only) {
        (false, _) => cri::Access::ReadWrite,
        (true, Some(_)) if recursive => cri::Access::RecursivelyReadOnly,
        (true, None | Some(RecursiveReadOnly::IfPossible)) => cri::Access::ReadOnly,
        (true, Some(RecursiveReadOnly::Enabled)) => {
            return Err(HostError::NoRecursiveReadOnly(mount.container_path));
        }
    };
    let source = match mount.source {
        volume::MountSource::Path(path) => cri::MountSource::Path(path),
        volume::MountSource::Image { volume, sub_path } => {
            let Some(ImageOfVolume { id, reference }) = images.get(&volume).cloned() else {
                return Err(HostError::NoImage(volume));
            };
            cri::MountSource::Image { id, reference, sub_path }
        }
    };
    Ok(MountInput {
        source,
        container_path: mount.container_path,
        access,
        selinux_relabel: mount.selinux_relabel,
        propagation: match mount.propagation {
            volume::Propagation::Private => cri::Propagation::Private,
            volume::Propagation::HostToContainer => cri::Propagation::HostToContainer,
            volume::Propagation::Bidirectional => cri::Propagation::Bidirectional,
        },
    })
}

fn file_mount(path: &std::path::Path, target: &str) -> MountInput {
    MountInput {
        source: crate::cri::MountSource::Path(path.to_string_lossy().into_owned()),
        container_path: target.to_owned(),
        access: crate::cri::Access::ReadWrite,
        selinux_relabel: true,
        propagation: crate::cri::Propagation::Private,
    }
}

/// Host path of what is mounted last at the termination message path: the agent's own file.
fn termination_log(container: &k8s::Container, config: &v1::ContainerConfig) -> Option<Box<str>> {
    let target = container.termination_message_path.as_deref()?;
    let mount = config.mounts.iter().rfind(|mount| mount.container_path == target)?;
    Some(mount.host_path.as_str().into())
}

fn text(field: Option<&str>) -> Box<str> {
    field.unwrap_or_default().into()
}
