//! The exec plugin of a kubeconfig: what it is told, and what its output means. Nothing that it
//! prints is logged.

use super::{
    kubeconfig::Plugin,
    secret::{self, SecretError},
    tls::ClientIdentity,
};
use crate::{
    blocking::CREDENTIALS,
    document::{self, Node},
    program::{PLUGIN_DEADLINE, Program, ProgramFailure, StandardError, run as run_program},
};
use http::HeaderValue;
use serde_json::{Value, json};
use thiserror::Error;

/// Why a plugin gave no credentials.
#[derive(Debug, Error)]
pub(super) enum PluginError {
    /// It printed nothing that can be used.
    #[error("the plugin {0}")]
    Run(ProgramFailure),
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

/// Runs a plugin and reads what it prints. `cluster` is passed to a plugin that asks for it.
///
/// # Cancel safety
/// Dropping it kills the plugin and its children.
pub(super) async fn run(plugin: &Plugin, cluster: Value) -> Result<Issued, PluginError> {
    let mut spec = json!({"interactive": false});
    if plugin.wants_cluster {
        spec["cluster"] = cluster;
    }
    let info = json!({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec});
    let mut env = plugin.env.clone();
    env.push(("KUBERNETES_EXEC_INFO".to_owned(), info.to_string()));
    let command = Program { program: plugin.command.clone(), args: plugin.args.clone(), env };
    let deadline = PLUGIN_DEADLINE;
    let run = run_program(command, Vec::new(), StandardError::Dropped, deadline, &CREDENTIALS);
    parse(&run.await.map_err(PluginError::Run)?)
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

    #[tokio::test]
    async fn a_plugin_is_told_of_the_cluster_and_its_token_is_trimmed() {
        let script = r#"case "$KUBERNETES_EXEC_INFO" in *'"server":"https://here"'*) ;; *) exit 1;; esac
            echo "{\"status\": {\"token\": \"  $GIVEN\\n\", \"expirationTimestamp\": \"2030-01-01T00:00:00Z\"}}""#;
        let issued = run(&plugin(script), json!({"server": "https://here"})).await.unwrap();
        assert_eq!(issued.header.unwrap(), "Bearer given");
        assert_eq!(issued.expires.unwrap().to_string(), "2030-01-01T00:00:00Z");
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
}
