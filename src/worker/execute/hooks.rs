//! Lifecycle hooks: what a container is told right after its start and before it is stopped.

use super::{Host, Request};
use crate::{
    handler::{HOOK_USER_AGENT, HttpGet, named_host},
    model::{ContainerId, Event, EventKind, k8s},
    plan::kind_of,
    podspec::{is_host_network, pod_display},
};
use std::time::Duration;

/// A hook without a limit of its own ends with this, as good as never.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

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

    /// Calls a hook and waits until it has ended. The error is a sentence in the words of the
    /// kubelet. `limit` is how long the hook may take; `None`: as long as it wants.
    ///
    /// # Cancel safety
    /// A dropped command is ended by the runtime. Nothing else is left behind.
    pub(super) async fn call(
        &self,
        hook: &k8s::LifecycleHandler,
        limit: Option<Duration>,
    ) -> Result<(), String> {
        let (what, failed) = if let Some(exec) = &hook.exec {
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
        failed.map_err(|error| {
            let pod = pod_display(&self.request.key, &self.request.uid);
            let name = &self.container.name;
            format!("{what} for Container \"{name}\" in Pod \"{pod}\" failed - {error}")
        })
    }

    async fn exec(&self, command: Vec<String>, limit: Option<Duration>) -> Result<(), String> {
        let words = command.join(" ");
        match self.host.runtime.exec_sync(self.id, command, limit).await {
            Ok(done) if done.exit_code == 0 => Ok(()),
            Ok(done) => {
                let output = String::from_utf8_lossy(&done.output);
                let code = done.exit_code;
                Err(format!(
                    "error: command '{words}' exited with {code}: {output}, message: {output:?}"
                ))
            }
            Err(error) => Err(format!("error: {error}, message: \"\"")),
        }
    }

    async fn http_get(
        &self,
        action: &k8s::HTTPGetAction,
        limit: Option<Duration>,
    ) -> Result<(), String> {
        let named = named_host(action.host.as_ref()).map(str::to_owned);
        let host = named.or_else(|| self.address());
        let host = host.ok_or("error: failed to find a pod IP address")?;
        let get = HttpGet::of(action, self.container, &host, HOOK_USER_AGENT)
            .map_err(|error| format!("error: {error}"))?;
        let answer = self.host.handlers.http_hook(&get, limit.unwrap_or(FOREVER)).await;
        let answer = answer.map_err(|error| format!("error: {error}"))?;
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
