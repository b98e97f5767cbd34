//! `nodelet exec`, `attach`, `cp` and `port-forward`: sessions with a pod over the local socket.
//!
//! ```text
//!  this command ── SPDY/3.1 over the local socket ──► agent ──► the runtime's streaming server
//! ```

mod carry;
mod cp;
mod forward;
mod spdy;
mod terminal;

pub(super) use cp::{CopyError, cp};
pub(super) use forward::port_forward;

use super::{
    EXIT_NO_AGENT,
    args::{AgentArgs, AttachArgs, ExecArgs, NamespaceArgs, UsageError},
    status::{SelectError, Wanted, reach},
};
use crate::{
    model::{PodKey, PodView, k8s},
    podspec::as_container,
    serve::{Client, ClientError, Upgraded},
    status::container_statuses,
};
use carry::{Ends, InputEnd, OutputEnd};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::{
    borrow::Cow,
    fmt::{self, Write as _},
    io,
    process::ExitCode,
};
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};

/// What the streams of a session are, in Kubernetes' words.
const PROTOCOL: &str = "v4.channel.k8s.io";

/// Why there is no session, or how it has failed.
#[derive(Debug, Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("wrong command line")]
    Usage(#[from] UsageError),
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error("container {container:?} not found in pod {pod}; it has {known}")]
    NoContainer { container: String, pod: PodKey, known: String },
    #[error("no container of pod {0} runs")]
    NothingRuns(PodKey),
    #[error("container {container:?} of pod {pod} does not run: {why}")]
    DoesNotRun { container: String, pod: PodKey, why: String },
    #[error("the session with the container runtime broke")]
    Broke(#[source] io::Error),
    #[error("can't use the terminal, standard input or standard output")]
    Terminal(#[from] io::Error),
    #[error("{0}")]
    Failed(String),
    #[error("the container runtime ended the session before it told how the command ended")]
    Unfinished,
    #[error("the session ended because this end of it was closed")]
    Closed,
    #[error("the local connection broke")]
    Local(#[source] io::Error),
    #[error("interrupted")]
    Interrupted,
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("can't listen on {address}")]
    Listen { address: String, source: io::Error },
}

/// Waits until this process is told to end by a signal. What must not be left as it is, such as
/// the terminal, can be put right then.
async fn interrupted() -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    // Cancel-safe: every arm only waits.
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

/// The pod that is meant, and the agent.
struct Found {
    client: Client,
    view: PodView,
}

/// `None` when no agent answers, which was told.
async fn find(
    agent: &AgentArgs,
    pod: &str,
    namespace: &NamespaceArgs,
) -> Result<Option<Found>, SessionError> {
    let wanted = Wanted::new(pod, namespace.namespace.as_deref())?;
    let Some((client, mut document)) = reach(agent).await? else { return Ok(None) };
    let keys = document.pods.iter().map(|view| &view.key);
    let key = wanted.select(&document.node.name, keys)?.clone();
    let at = document.pods.iter().position(|view| view.key == key);
    Ok(at.map(|at| Found { client, view: document.pods.swap_remove(at) }))
}

pub(super) async fn exec(args: ExecArgs) -> Result<ExitCode, SessionError> {
    let Some(found) = find(&args.agent, &args.pod, &args.namespace).await? else {
        return Ok(ExitCode::from(EXIT_NO_AGENT));
    };
    let container = container(&found.view, args.container.as_deref())?;
    let ends = Ends { input: own_input(args.stdin), output: OutputEnd::Own, tty: args.tty };
    Ok(found.exec(&container, &args.command, ends).await?.into())
}

pub(super) async fn attach(args: AttachArgs) -> Result<ExitCode, SessionError> {
    let Some(found) = find(&args.agent, &args.pod, &args.namespace).await? else {
        return Ok(ExitCode::from(EXIT_NO_AGENT));
    };
    let container = container(&found.view, args.container.as_deref())?;
    // As its specification says: the runtime has made the terminal, or has not.
    let own = containers(&found.view).find(|one| one.name == container);
    let tty = own.and_then(|one| one.tty) == Some(true);
    let ends = Ends { input: own_input(args.stdin), output: OutputEnd::Own, tty };
    let mut path = found.path("attach", &container);
    ends.put(&mut path);
    let stream = found.session("/attach", &path, &container).await?;
    Ok(ends.run(stream).await?.into())
}

fn own_input(wanted: bool) -> InputEnd {
    if wanted { InputEnd::Own } else { InputEnd::None }
}

impl Found {
    /// Runs a command in a container, and gives its exit code.
    async fn exec<S: AsRef<str>>(
        &self,
        container: &str,
        command: &[S],
        ends: Ends,
    ) -> Result<u8, SessionError> {
        let mut path = self.path("exec", container);
        ends.put(&mut path);
        for word in command {
            // Writing to a String can't fail.
            write!(path, "&command={}", encoded(word.as_ref())).ok();
        }
        let stream = self.session("/exec", &path, container).await?;
        ends.run(stream).await
    }

    /// Begins a session with a container.
    async fn session(
        &self,
        what: &'static str,
        path: &str,
        container: &str,
    ) -> Result<Upgraded, SessionError> {
        let refused = match self.client.upgrade(what, path, PROTOCOL).await {
            Err(refused @ ClientError::Refused { .. }) => refused,
            begun => return Ok(begun?),
        };
        let Some(why) = why_not_running(&self.view, container) else { return Err(refused.into()) };
        let (container, pod) = (container.to_owned(), self.view.key.clone());
        Err(SessionError::DoesNotRun { container, pod, why })
    }

    fn path(&self, what: &str, container: &str) -> String {
        let key = &self.view.key;
        format!("/{what}/{}/{}/{container}?output=1", key.namespace, key.name)
    }
}

/// All containers of the pod, regular ones first.
fn containers(view: &PodView) -> impl Iterator<Item = Cow<'_, k8s::Container>> {
    let spec = view.pod.as_ref().and_then(|pod| pod.spec.as_ref());
    spec.into_iter().flat_map(|spec| {
        let declared = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let ephemeral = spec.ephemeral_containers.iter().flatten();
        declared.map(Cow::Borrowed).chain(ephemeral.map(as_container).map(Cow::Owned))
    })
}

/// The container that is meant: the named one, or the pod's first.
fn container(view: &PodView, named: Option<&str>) -> Result<String, SessionError> {
    let names: Vec<String> = containers(view).map(|container| container.name.clone()).collect();
    match named {
        None => names.into_iter().next().ok_or_else(|| SessionError::NothingRuns(view.key.clone())),
        Some(name) if names.iter().any(|known| known == name) => Ok(name.to_owned()),
        Some(name) => Err(SessionError::NoContainer {
            container: name.to_owned(),
            pod: view.key.clone(),
            known: names.join(", "),
        }),
    }
}

/// Why a container does not run, as its status says, and where its log is.
fn why_not_running(view: &PodView, container: &str) -> Option<String> {
    let status = container_statuses(&view.status).find(|status| status.name == container)?;
    let state = status.state.as_ref()?;
    let (parts, previous) = if let Some(waiting) = &state.waiting {
        let has_run = status.last_state.as_ref().is_some_and(|last| last.terminated.is_some());
        ([waiting.reason.clone(), waiting.message.clone()], has_run.then_some(" -p"))
    } else {
        let ended = state.terminated.as_ref()?;
        let code = format!("exit code {}", ended.exit_code);
        ([ended.reason.clone(), Some(code)], Some(""))
    };
    let parts: Vec<String> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    let why = if parts.is_empty() { "it waits".to_owned() } else { parts.join(": ") };
    let log =
        previous.map(|option| format!("; see nodelet logs {} -c {container}{option}", view.key));
    Some(why + &log.unwrap_or_default())
}

/// What a value in a query has as it is: RFC 3986's unreserved characters.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A value in a query, percent-encoded.
fn encoded(text: &str) -> impl fmt::Display {
    utf8_percent_encode(text, UNRESERVED)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use serde_json::json;

    #[test]
    fn the_reason_why_a_container_does_not_run_is_told() {
        let why = |state: serde_json::Value, last: serde_json::Value| {
            let status = json!({"containerStatuses": [{"name": "main", "image": "i", "imageID": "",
                "ready": false, "restartCount": 1, "state": state, "lastState": last}]});
            let view = json!({
                "key": {"namespace": "default", "name": "web-n1"}, "uid": "u1", "pod": null,
                "status": status, "origin": null, "terminating": false, "hung": null,
                "waiting": null,
            });
            why_not_running(&serde_json::from_value(view).unwrap(), "main")
        };
        let waits = |reason: &str, message: &str| json!({"waiting": {"reason": reason, "message": message}});
        let ended = |reason: &str| json!({"terminated": {"exitCode": 3, "reason": reason}});
        let told = why(waits("CrashLoopBackOff", "back-off 40s"), ended("Error")).unwrap();
        assert_eq!(
            told,
            "CrashLoopBackOff: back-off 40s; see nodelet logs default/web-n1 -c main -p"
        );
        let told = why(waits("ErrImagePull", "no such image"), json!({})).unwrap();
        assert_eq!(told, "ErrImagePull: no such image");
        let told = why(ended("Error"), json!({})).unwrap();
        assert_eq!(told, "Error: exit code 3; see nodelet logs default/web-n1 -c main");
        let runs = json!({"running": {"startedAt": "2026-11-20T10:00:00Z"}});
        assert_eq!(why(runs, ended("Error")), None);
        assert_eq!(why(json!({}), json!({})), None);
    }

    #[test]
    fn words_are_percent_encoded() {
        assert_eq!(encoded("ls-l_~.").to_string(), "ls-l_~.");
        assert_eq!(encoded("a b&c=ü\n").to_string(), "a%20b%26c%3D%C3%BC%0A");
    }
}
