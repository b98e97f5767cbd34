//! Lifecycle hooks: what a container is told right after its start and before it is stopped.

use super::{Host, Request};
use crate::{
    cri::CriError,
    handler::{HOOK_USER_AGENT, HookRequestError, HttpGet, TargetError, named_host},
    model::{ContainerId, Event, EventKind, k8s},
    plan::kind_of,
    podspec::{is_host_network, pod_display},
};
use std::time::Duration;
use thiserror::Error;

/// A hook without a limit of its own ends with this, as good as never.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// A hook that failed. `Display` is the message of the kubelet.
#[derive(Debug, Error)]
#[error("{hook} for Container \"{container}\" in Pod \"{pod}\" failed - error: {error}")]
pub(super) struct HookFailed {
    /// The kind of the hook, with its command or path.
    hook: String,
    container: String,
    pod: String,
    error: Box<HookError>,
}

/// Why a hook failed.
#[derive(Debug, Error)]
enum HookError {
    #[error("command '{command}' exited with {code}: {output}, message: {output:?}")]
    Exited { command: String, code: i32, output: String },
    /// The runtime did not run the command to its end.
    #[error("{0}, message: \"\"")]
    Exec(CriError),
    #[error("failed to find a pod IP address")]
    NoAddress,
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Request(#[from] HookRequestError),
}

/// A container whose hook is called.
pub(super) struct Hooked<'a> {
    pub(super) host: &'a Host,
    pub(super) request: &'a Request,
    pub(super) pod: &'a k8s::Pod,
    pub(super) container: &'a k8s::Container,
    pub(super) id: &'a ContainerId,
}

impl Hooked<'_> {
    /// Records an event about the container.
    pub(super) fn event(&self, kind: EventKind, reason: &'static str, message: &str) {
        let name = &self.container.name;
        let path = kind_of(Some(self.pod), name).field_path(name);
        let target = self.request.target(Some(path));
        self.host.events.record(Event { target, kind, reason, message: message.to_owned() });
    }

    /// Calls a hook and waits until it has ended. `limit` is how long the hook may take; `None`: as
    /// long as it wants.
    ///
    /// # Cancel safety
    /// A dropped command is ended by the runtime. Nothing else is left behind.
    pub(super) async fn call(
        &self,
        hook: &k8s::LifecycleHandler,
        limit: Option<Duration>,
    ) -> Result<(), HookFailed> {
        let (hook, called) = if let Some(exec) = &hook.exec {
            let command = exec.command.clone().unwrap_or_default();
            let words = command.join(" ");
            (format!("Exec lifecycle hook ([{words}])"), Box::pin(self.exec(command, limit)).await)
        } else if let Some(get) = &hook.http_get {
            let path = get.path.as_deref().unwrap_or_default();
            (format!("HTTP lifecycle hook ({path})"), Box::pin(self.http_get(get, limit)).await)
        } else if let Some(sleep) = &hook.sleep {
            let length = Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or_default());
            tokio::time::sleep(length).await;
            return Ok(());
        } else {
            return Ok(());
        };
        called.map_err(|error| HookFailed {
            hook,
            container: self.container.name.clone(),
            pod: pod_display(&self.request.key, &self.request.uid),
            error: Box::new(error),
        })
    }

    async fn exec(&self, command: Vec<String>, limit: Option<Duration>) -> Result<(), HookError> {
        let words = command.join(" ");
        match self.host.runtime.exec_sync(self.id, command, limit).await {
            Ok(done) if done.exit_code == 0 => Ok(()),
            Ok(done) => Err(HookError::Exited {
                command: words,
                code: done.exit_code,
                output: String::from_utf8_lossy(&done.output).into_owned(),
            }),
            Err(error) => Err(HookError::Exec(error)),
        }
    }

    async fn http_get(
        &self,
        action: &k8s::HTTPGetAction,
        limit: Option<Duration>,
    ) -> Result<(), HookError> {
        let named = named_host(action.host.as_ref()).map(str::to_owned);
        let host = named.or_else(|| self.address());
        let host = host.ok_or(HookError::NoAddress)?;
        let get = HttpGet::of(action, self.container, &host, HOOK_USER_AGENT)?;
        let answer = self.host.handlers.http_hook(&get, limit.unwrap_or(FOREVER)).await?;
        if answer.fell_back {
            let message = format!(
                "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
                get.address()
            );
            self.event(EventKind::Warning, "LifecycleHTTPFallback", &message);
        }
        Ok(())
    }

    /// The address of the pod. Pods of the host network are asked at 127.0.0.1 where the node has
    /// no address.
    fn address(&self) -> Option<String> {
        if is_host_network(self.pod) {
            let node_ips = self.host.node_ips.borrow();
            return Some(node_ips.first().map_or("127.0.0.1".to_owned(), ToString::to_string));
        }
        let observed = &self.request.observed;
        let container = observed.containers.iter().find(|container| container.id == *self.id);
        let sandboxes = observed.sandboxes.iter().filter(|sandbox| {
            sandbox.uid == self.request.uid
                && container.is_none_or(|container| container.sandbox_id == sandbox.id)
        });
        let newest = sandboxes.max_by_key(|sandbox| sandbox.attempt)?;
        newest.ips.first().map(ToString::to_string)
    }
}
