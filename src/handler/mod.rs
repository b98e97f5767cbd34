//! What probes and lifecycle hooks ask a container over the network: HTTP, TCP and gRPC. Each
//! request opens a connection of its own and closes it; dropping its future drops the connection.

mod connect;
mod error;
mod grpc;
mod request;
mod target;

use crate::{model::Finding, verifier::AnyServer};
use connect::{LookupWaits, connect};
use error::host_and_port;
pub use error::{HookRequestError, NetworkError};
use request::Waits;
use rustls::{ClientConfig, crypto::ring};
use std::{sync::Arc, time::Duration};
pub use target::{HttpGet, TargetError, named_host, resolve_port};
use tokio::time::timeout;

/// `User-Agent` of probes.
pub const PROBE_USER_AGENT: &str = "kube-probe/1.36";
/// `User-Agent` of hooks.
pub const HOOK_USER_AGENT: &str = "kube-lifecycle/1.36";

/// The error of a body that comes too late, in the words of Go's network library.
const BODY_TIMED_OUT: &str =
    "context deadline exceeded (Client.Timeout or context cancellation while reading body)";

/// The gRPC health service, as generated from `proto/grpc_health.proto`.
#[allow(missing_docs, reason = "generated; the comments are in proto/")]
#[allow(clippy::all, clippy::pedantic, clippy::restriction, reason = "generated")]
mod health {
    tonic::include_proto!("grpc.health.v1");
}

/// Makes requests to containers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handlers {
    tls: Arc<ClientConfig>,
}

/// What came of a hook over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookAnswer {
    /// The server speaks no TLS and was asked again without.
    pub fell_back: bool,
}

impl Handlers {
    /// # Errors
    /// When the cryptography library refuses its own defaults.
    pub fn new() -> Result<Self, rustls::Error> {
        let provider = ring::default_provider();
        let algorithms = provider.signature_verification_algorithms;
        let mut tls = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer(algorithms)))
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        tls.resumption = rustls::client::Resumption::disabled();
        Ok(Self { tls: Arc::new(tls) })
    }

    /// A probe by HTTP: an answer with a status from 200 to 399 is a success. The timeout covers
    /// everything from the name's lookup to the end of the answer. As with the kubelet, a body that
    /// fails or comes too late is an error, which does not count.
    pub async fn http_probe(&self, get: &HttpGet, limit: Duration) -> Finding {
        let waits = Waits::default();
        match timeout(limit, request::get(&self.tls, get, &waits)).await {
            Ok(Ok(answer)) => answer.finding(),
            Ok(Err(error)) => match error.of_body() {
                Some(error) => Finding::Error(error.to_string()),
                None => Finding::Failure(error.to_string()),
            },
            Err(_) if waits.lookup.get() => no_lookup(&get.address()),
            Err(_) if waits.for_body() => Finding::Error(BODY_TIMED_OUT.to_owned()),
            Err(_) => Finding::Failure(format!(
                "Get \"{}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
                get.url()
            )),
        }
    }

    /// A hook by HTTP: any answer will do, whatever becomes of its body. A server that speaks no TLS
    /// is asked without.
    ///
    /// # Errors
    /// When the request failed, or there was no answer in time.
    pub async fn http_hook(
        &self,
        get: &HttpGet,
        limit: Duration,
    ) -> Result<HookAnswer, HookRequestError> {
        let waits = Waits::default();
        let asked = async {
            let (answer, fell_back) = match request::get(&self.tls, get, &waits).await {
                Err(error) if error.is_no_tls() => {
                    (request::get(&self.tls, &get.without_tls(), &waits).await, true)
                }
                answer => (answer, false),
            };
            match answer {
                Err(error) if error.of_body().is_none() => Err(error),
                Ok(_) | Err(_) => Ok(HookAnswer { fell_back }),
            }
        };
        match timeout(limit, asked).await {
            Ok(answer) => answer.map_err(HookRequestError::Network),
            Err(_) => Err(HookRequestError::TimedOut { url: get.url() }),
        }
    }

    /// A probe by TCP: a connection that opens is a success.
    pub async fn tcp_probe(&self, host: &str, port: u16, limit: Duration) -> Finding {
        let waits = LookupWaits::default();
        match timeout(limit, connect(host, port, &waits)).await {
            Ok(Ok(_)) => Finding::Success,
            Ok(Err(error)) => Finding::Failure(error.to_string()),
            Err(_) if waits.get() => no_lookup(&host_and_port(host, port)),
            Err(_) => {
                Finding::Failure(format!("dial tcp {}: i/o timeout", host_and_port(host, port)))
            }
        }
    }

    /// A probe by the gRPC health protocol, without TLS: a service that says SERVING is a success.
    pub async fn grpc_probe(
        &self,
        host: &str,
        port: u16,
        service: &str,
        limit: Duration,
    ) -> Finding {
        match grpc::check(&host_and_port(host, port), service, limit).await {
            Ok(()) => Finding::Success,
            Err(error) => Finding::Failure(error.to_string()),
        }
    }
}

/// The finding of a probe whose time ran out while the lookups of other probes had every thread. It
/// does not count: a pod must not fail the probes of another one.
fn no_lookup(address: &str) -> Finding {
    Finding::Error(format!("dial tcp {address}: too many lookups of hosts are under way"))
}

#[cfg(test)]
mod tests;
