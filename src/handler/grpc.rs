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

/// Asks a service for its health. The error is what a failed probe tells. The connection is closed
/// at the end, or when this is dropped.
pub(super) async fn check(address: &str, service: &str, limit: Duration) -> Result<(), String> {
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
) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    let within = format_duration(limit);
    let failed = |error: &dyn std::fmt::Display| {
        format!("error: failed to connect service at \"{address}\": {error}")
    };
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .and_then(|endpoint| endpoint.user_agent(PROBE_USER_AGENT))
        .map_err(|error| failed(&error))?
        .executor(tasks);
    let channel: Channel = timeout_at(deadline, endpoint.connect())
        .await
        .map_err(|_| {
            format!(
                "timeout: failed to connect service \"{address}\" within {within}: context deadline exceeded"
            )
        })?
        .map_err(|error| failed(&innermost(&error)))?;
    let request = HealthCheckRequest { service: service.to_owned() };
    let mut client = HealthClient::new(channel);
    let late = || format!("timeout: health rpc did not complete within {within}");
    let answer = timeout_at(deadline, client.check(request)).await.map_err(|_| late())?;
    let answer = answer.map_err(|status| {
        if status.code() == Code::Unimplemented {
            format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
                status.message()
            )
        } else if status.code() == Code::DeadlineExceeded {
            late()
        } else {
            format!("error: health rpc probe failed: {}", error_of(&status))
        }
    })?;
    match answer.into_inner().status() {
        ServingStatus::Serving => Ok(()),
        other @ (ServingStatus::Unknown
        | ServingStatus::NotServing
        | ServingStatus::ServiceUnknown) => {
            Err(format!("service unhealthy (responded with \"{}\")", other.as_str_name()))
        }
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
