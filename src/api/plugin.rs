//! Running an exec plugin: a program that an administrator names and that prints credentials.
//!
//! The plugin is not trusted to end or to print little. It runs in a process group of its own,
//! which is killed when the plugin takes too long, prints too much, or is not waited for any more
//! (the agent ends, or its kubeconfig has changed). Nothing that it prints is logged.

use super::{
    kubeconfig::Plugin,
    secret::{self, SecretError},
    tls::ClientIdentity,
};
use crate::{
    blocking::CREDENTIALS,
    document::{self, Node},
};
use http::HeaderValue;
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use serde_json::{Value, json};
use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};
use thiserror::Error;
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, Command},
    time::timeout,
};

/// The longest time that a plugin may run.
const DEADLINE: Duration = Duration::from_secs(60);
/// The most that a plugin may print, in bytes. A token and a certificate have a few thousand.
const MAX_OUTPUT: u64 = 1 << 20;

/// Why a plugin gave no credentials.
#[derive(Debug, Error)]
pub(super) enum PluginError {
    /// It could not be started.
    #[error("the plugin can't be run: {0}")]
    Start(io::Error),
    /// Its output could not be read.
    #[error("the plugin's output can't be read: {0}")]
    Read(io::Error),
    /// It ran too long, and was killed.
    #[error("the plugin did not end within {} s and was killed", DEADLINE.as_secs())]
    Late,
    /// It printed too much, and was killed.
    #[error("the plugin printed more than {MAX_OUTPUT} bytes and was killed")]
    TooLong,
    /// It said itself that it failed.
    #[error("the plugin failed ({0}); run it by hand to see why")]
    Failed(ExitStatus),
    /// What it printed is no ExecCredential.
    #[error("the plugin printed no ExecCredential with a status")]
    Output,
    /// A field of its status is wrong.
    #[error("the plugin's status.{field} {wrong}")]
    Field {
        /// `token`
        field: &'static str,
        /// What is wrong with it.
        wrong: SecretError,
    },
    /// Its time is no time.
    #[error("the plugin's status.expirationTimestamp is no time in RFC 3339")]
    Expiry,
    /// Neither a token nor a certificate with its key.
    #[error("the plugin's status has neither a token nor a certificate with its key")]
    Nothing,
}

/// What a plugin gave.
pub(super) struct Issued {
    pub header: Option<HeaderValue>,
    pub identity: Option<ClientIdentity>,
    pub expires: Option<jiff::Timestamp>,
}

/// Kills the process group of a plugin, unless it was waited for.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0.take()
            && let Err(err) = killpg(group, Signal::SIGKILL)
        {
            tracing::debug!(%err, "cannot kill the process group of a plugin");
        }
    }
}

/// A plugin that runs. The fields are dropped in this order: the group's leader is not reaped yet
/// when its group is killed, so no other group can have its number.
struct Running {
    group: Group,
    child: Child,
}

/// Runs a plugin and reads what it prints. `cluster` is passed to a plugin that asks for it.
///
/// # Cancel safety
/// Dropping it kills the plugin and its children.
pub(super) async fn run(plugin: &Plugin, cluster: Value) -> Result<Issued, PluginError> {
    let finished = timeout(DEADLINE, async {
        let plugin = plugin.clone();
        // The file system of the program may not answer.
        let started = CREDENTIALS.run(move || start(&plugin, cluster)).await;
        let started = started.map_err(|crashed| PluginError::Start(io::Error::other(crashed)))?;
        finish(started.map_err(PluginError::Start)?).await
    });
    let (text, status) = finished.await.map_err(|_| PluginError::Late)??;
    if !status.success() {
        return Err(PluginError::Failed(status));
    }
    parse(&text)
}

fn start(plugin: &Plugin, cluster: Value) -> io::Result<Running> {
    let mut spec = json!({"interactive": false});
    if plugin.wants_cluster {
        spec["cluster"] = cluster;
    }
    let info = json!({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec});
    let child = Command::new(&plugin.command)
        .args(&plugin.args)
        .envs(plugin.env.iter().map(|(name, value)| (name, value)))
        .env("KUBERNETES_EXEC_INFO", info.to_string())
        // These speak to systemd in the agent's name.
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_PID")
        .env_remove("WATCHDOG_USEC")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    // The agent is protected from the OOM killer (OOMScoreAdjust= of its unit), and a plugin is not
    // the agent.
    if let Some(pid) = child.id() {
        let path = format!("/proc/{pid}/oom_score_adj");
        if let Err(err) = std::fs::write(path, "0") {
            tracing::debug!(%err, "cannot set the OOM score of a plugin");
        }
    }
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    Ok(Running { group: Group(pid.map(Pid::from_raw)), child })
}

/// Everything that a plugin prints, and how it ended.
async fn finish(mut running: Running) -> Result<(Vec<u8>, ExitStatus), PluginError> {
    let mut text = Vec::new();
    if let Some(output) = running.child.stdout.take() {
        output.take(MAX_OUTPUT + 1).read_to_end(&mut text).await.map_err(PluginError::Read)?;
    }
    if u64::try_from(text.len()).is_ok_and(|length| length > MAX_OUTPUT) {
        return Err(PluginError::TooLong);
    }
    let status = running.child.wait().await.map_err(PluginError::Read)?;
    running.group.0 = None;
    Ok((text, status))
}

/// The status of an ExecCredential, in JSON or YAML.
pub(super) fn parse(text: &[u8]) -> Result<Issued, PluginError> {
    let documents = document::parse(text).map_err(|_| PluginError::Output)?;
    let [document] = documents.as_slice() else { return Err(PluginError::Output) };
    let status = document.root.get("status").ok_or(PluginError::Output)?;
    let text = |key| status.get(key).and_then(Node::as_str).filter(|text| !text.is_empty());
    let wrong = |field| move |wrong| PluginError::Field { field, wrong };
    let header = text("token").map(secret::bearer).transpose().map_err(wrong("token"))?;
    let identity = match (text("clientCertificateData"), text("clientKeyData")) {
        (Some(certificate), Some(key)) => {
            let certificates = secret::certificates(certificate.as_bytes())
                .map_err(wrong("clientCertificateData"))?;
            let key = secret::private_key(key.as_bytes()).map_err(wrong("clientKeyData"))?;
            Some(ClientIdentity { certificates, key })
        }
        (Some(_), None) | (None, Some(_) | None) => None,
    };
    let expires = text("expirationTimestamp").map(|time| time.parse()).transpose();
    let expires = expires.map_err(|_: jiff::Error| PluginError::Expiry)?;
    if header.is_none() && identity.is_none() {
        return Err(PluginError::Nothing);
    }
    Ok(Issued { header, identity, expires })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::path::Path;

    fn plugin(script: &str) -> Plugin {
        Plugin {
            field: "users[n].user.exec".to_owned(),
            command: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: vec![("GIVEN".to_owned(), "given".to_owned())],
            api_version: "client.authentication.k8s.io/v1".to_owned(),
            wants_cluster: true,
        }
    }

    async fn wait_gone(pid: &str) {
        let process = Path::new("/proc").join(pid.trim());
        let gone = async {
            // A killed process without a parent stays a zombie where nobody reaps it.
            let zombie = || {
                std::fs::read_to_string(process.join("stat"))
                    .is_ok_and(|text| text.contains(") Z "))
            };
            while process.exists() && !zombie() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone).await.expect("the process is there");
    }

    #[tokio::test]
    async fn a_plugin_is_told_of_the_cluster_and_its_token_is_trimmed() {
        let script = r#"case "$KUBERNETES_EXEC_INFO" in *'"server":"https://here"'*) ;; *) exit 1;; esac
            echo "{\"status\": {\"token\": \"  $GIVEN\\n\", \"expirationTimestamp\": \"2030-01-01T00:00:00Z\"}}""#;
        let issued = run(&plugin(script), json!({"server": "https://here"})).await.unwrap();
        assert_eq!(issued.header.unwrap(), "Bearer given");
        assert_eq!(issued.expires.unwrap().to_string(), "2030-01-01T00:00:00Z");
    }

    #[tokio::test]
    async fn output_without_end_is_cut_and_the_plugin_killed() {
        let error = run(&plugin("yes"), Value::Null).await.err().unwrap();
        assert!(matches!(error, PluginError::TooLong), "{error}");
    }

    #[tokio::test]
    async fn dropping_kills_the_plugin_and_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pids");
        let script =
            format!("sleep 1000 & echo $! $$ > {0}.new; mv {0}.new {0}; wait", file.display());
        let plugin = plugin(&script);
        let started = async {
            while !file.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            _ = run(&plugin, Value::Null) => panic!("it ended"),
            () = started => {}
        }
        for pid in std::fs::read_to_string(&file).unwrap().split_whitespace() {
            wait_gone(pid).await;
        }
    }

    #[tokio::test]
    async fn errors_do_not_repeat_what_a_plugin_prints() {
        let scripts = [
            "echo TOPSECRET; exit 3",
            "echo TOPSECRET",
            "echo '{\"status\": {\"token\": \"TOP\\u0007SECRET\"}}'",
            "echo '{\"status\": {\"token\": [\"TOPSECRET\"]}}'",
            "echo '{\"status\": {\"token\": \"a\", \"expirationTimestamp\": \"TOPSECRET\"}}'",
        ];
        for script in scripts {
            let error = run(&plugin(script), Value::Null).await.err().unwrap();
            let texts = format!("{error} {error:?}");
            assert!(!texts.contains("SECRET"), "{texts}");
        }
    }

    #[tokio::test]
    async fn a_plugin_that_can_not_be_run_is_an_error() {
        let missing = Plugin { command: "/nonexistent/plugin".into(), ..plugin("") };
        assert!(matches!(run(&missing, Value::Null).await, Err(PluginError::Start(_))));
        let nul = Plugin { args: vec!["a\0b".to_owned()], ..plugin("") };
        assert!(matches!(run(&nul, Value::Null).await, Err(PluginError::Start(_))));
    }
}
