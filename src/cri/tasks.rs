//! Tasks of containerd, of which CRI shows the state of containers.

use super::{
    CriError, RuntimeClient,
    client::within,
    containerd::tasks::{DeleteTaskRequest, tasks_client::TasksClient},
    layers::in_namespace,
};
use crate::model::ContainerId;
use std::time::Duration;

impl RuntimeClient {
    /// Deletes the task of a container whose processes have ended. CRI does that when it sees the end
    /// of a container, and does not see it where the start was cut short.
    ///
    /// # Errors
    /// When something of it still runs; `NotFound` when there is none; `Unimplemented` when the
    /// runtime is no containerd.
    ///
    /// # Cancel safety
    /// The runtime may or may not delete it.
    pub async fn delete_task(&self, id: &ContainerId, deadline: Duration) -> Result<(), CriError> {
        let mut tasks = TasksClient::new(self.channel.clone());
        let call = tasks.delete(in_namespace(DeleteTaskRequest { container_id: id.to_string() }));
        within(deadline, "Tasks.Delete", &self.endpoint, call).await.map(drop)
    }
}
