//! The gRPC health protocol, in the words of the kubelet.

use super::{
    PROBE_USER_AGENT,
    health::{
        HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
    },
};
use crate::model::format_duration;
use hyper::rt::Executor;
use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};
use thiserror::Error;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

/// How long a server may take to let its connection be closed.
const GOODBYE: Duration = Duration::from_millis(100);

/// The tasks of a connection. tonic would leave them to themselves, and a server that reads nothing
/// would then keep them, and the connection, for as long as it lives.
type Tasks = Arc<Mutex<JoinSet<()>>>;

/// Where tonic puts them. They hold this themselves, so it must not keep them.
#[derive(Clone)]
struct TasksOfAttempt(Weak<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for TasksOfAttempt {
    fn execute(&self, task: F) {
        if let Some(tasks) = self.0.upgrade() {
            lock(&tasks).spawn(task);
        }
    }
}

fn lock(tasks: &Tasks) -> MutexGuard<'_, JoinSet<()>> {
    tasks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a service does not count as healthy. `Display` is the message of the failed probe.
#[derive(Debug, Error)]
pub(super) enum HealthError {
    /// The address is invalid.
    #[error("error: failed to connect service at \"{address}\": {error}")]
    Address { address: String, error: tonic::transport::Error },
    #[error("error: failed to connect service at \"{address}\": {}", innermost(.error))]
    Connect { address: String, error: tonic::transport::Error },
    #[error(
        "timeout: failed to connect service \"{address}\" within {within}: \
         context deadline exceeded"
    )]
    ConnectTimedOut { address: String, within: String },
    #[error("timeout: health rpc did not complete within {within}")]
    CallTimedOut { within: String },
    /// The server has no health service.
    #[error(
        "error: this server does not implement the grpc health protocol \
         (grpc.health.v1.Health): {message}"
    )]
    Unimplemented { message: String },
    #[error("error: health rpc probe failed: {}", error_of(.0))]
    Call(Status),
    /// The server answered with a status other than SERVING.
    #[error("service unhealthy (responded with \"{0}\")")]
    Unhealthy(&'static str),
}

/// Asks a service for its health. The connection is closed at the end, or when this is dropped.
pub(super) async fn check(
    address: &str,
    service: &str,
    limit: Duration,
) -> Result<(), HealthError> {
    let tasks = Tasks::default();
    let answer = ask(address, service, limit, TasksOfAttempt(Arc::downgrade(&tasks))).await;
    let mut closing = mem::take(&mut *lock(&tasks));
    timeout(GOODBYE, async { while closing.join_next().await.is_some() {} }).await.ok();
    answer
}

async fn ask(
    address: &str,
    service: &str,
    limit: Duration,
    tasks: TasksOfAttempt,
) -> Result<(), HealthError> {
    let deadline = Instant::now() + limit;
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .and_then(|endpoint| endpoint.user_agent(PROBE_USER_AGENT))
        .map_err(|error| HealthError::Address { address: address.to_owned(), error })?
        .executor(tasks);
    let channel: Channel = timeout_at(deadline, endpoint.connect())
        .await
        .map_err(|_| HealthError::ConnectTimedOut {
            address: address.to_owned(),
            within: format_duration(limit),
        })?
        .map_err(|error| HealthError::Connect { address: address.to_owned(), error })?;
    let request = HealthCheckRequest { service: service.to_owned() };
    let mut client = HealthClient::new(channel);
    let late = || HealthError::CallTimedOut { within: format_duration(limit) };
    let answer = timeout_at(deadline, client.check(request)).await.map_err(|_| late())?;
    let answer = answer.map_err(|status| {
        if status.code() == Code::Unimplemented {
            HealthError::Unimplemented { message: status.message().to_owned() }
        } else if status.code() == Code::DeadlineExceeded {
            late()
        } else {
            HealthError::Call(status)
        }
    })?;
    match answer.into_inner().status() {
        ServingStatus::Serving => Ok(()),
        other @ (ServingStatus::Unknown
        | ServingStatus::NotServing
        | ServingStatus::ServiceUnknown) => Err(HealthError::Unhealthy(other.as_str_name())),
    }
}

/// A status as Go prints it. The Debug form of a code is the name that Go prints.
fn error_of(status: &Status) -> String {
    format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}

/// The words at the bottom of a chain of connection errors.
fn innermost(error: &tonic::transport::Error) -> String {
    let mut error: &dyn std::error::Error = error;
    while let Some(deeper) = error.source() {
        error = deeper;
    }
    error.to_string()
}
