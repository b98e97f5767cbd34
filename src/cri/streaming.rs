//! Sessions with a container or a sandbox: the runtime answers with the URL of its streaming server,
//! which waits for one client there. The URL is good for a minute.

use super::{CriError, RuntimeClient, client::within, v1, v1::runtime_service_client};
use crate::model::{ContainerId, SandboxId};
use std::time::Duration;
use tonic::transport::Channel;

/// The runtime only notes the request, so it answers at once.
const DEADLINE: Duration = Duration::from_secs(30);

/// The streams that a client asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "the fields of CRI's request")]
pub struct Streams {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error; false with a terminal, which has one output.
    pub stderr: bool,
    /// A terminal.
    pub tty: bool,
}

impl RuntimeClient {
    /// Prepares a command in a container. It starts when a client connects to the URL.
    ///
    /// # Errors
    /// `NotFound` for an unknown container. Otherwise see [`CriError`].
    pub async fn exec(
        &self,
        id: &ContainerId,
        command: Vec<String>,
        streams: Streams,
    ) -> Result<String, CriError> {
        let request = v1::ExecRequest {
            container_id: id.to_string(),
            cmd: command,
            tty: streams.tty,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
        };
        let mut client = self.streaming();
        Ok(within(DEADLINE, "Exec", self.endpoint(), client.exec(request)).await?.url)
    }

    /// Prepares a connection to the streams of a container's own process.
    ///
    /// # Errors
    /// As [`Self::exec`].
    pub async fn attach(&self, id: &ContainerId, streams: Streams) -> Result<String, CriError> {
        let request = v1::AttachRequest {
            container_id: id.to_string(),
            stdin: streams.stdin,
            tty: streams.tty,
            stdout: streams.stdout,
            stderr: streams.stderr,
        };
        let mut client = self.streaming();
        Ok(within(DEADLINE, "Attach", self.endpoint(), client.attach(request)).await?.url)
    }

    /// Prepares connections to ports in a sandbox's network.
    ///
    /// # Errors
    /// As [`Self::exec`].
    pub async fn port_forward(&self, id: &SandboxId, ports: Vec<i32>) -> Result<String, CriError> {
        let request = v1::PortForwardRequest { pod_sandbox_id: id.to_string(), port: ports };
        let mut client = self.streaming();
        Ok(within(DEADLINE, "PortForward", self.endpoint(), client.port_forward(request))
            .await?
            .url)
    }

    fn streaming(&self) -> runtime_service_client::RuntimeServiceClient<Channel> {
        runtime_service_client::RuntimeServiceClient::new(self.channel.clone())
    }
}
