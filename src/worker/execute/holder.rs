//! Finds the owner of the object that has a name which the runtime has refused.
//!
//! Usually an interrupted call of this agent has left the object, and the agent removes it. But two
//! agents on one runtime with the same node name and the same manifest use the same names: an
//! object with the label of another owner is not removed.

use super::{Host, Request};
use crate::{
    cri::{CriError, ListFilter},
    model::{OWNER_LABEL, SandboxId},
    plan::Taken,
};

/// The owner of an object that has a name.
pub(super) struct Holder {
    pub(super) taken: Taken,
    /// Text that is appended to the message of the runtime.
    pub(super) note: String,
}

impl Holder {
    fn ours(id: String) -> Self {
        Self { taken: Taken::ByUs(id), note: String::new() }
    }

    fn others(note: String) -> Self {
        Self { taken: Taken::ByOthers, note }
    }

    /// The holder of the sandbox name that the runtime refused; `None` when the call failed for
    /// another reason.
    pub(super) async fn of_sandbox(host: &Host, error: &CriError) -> Option<Self> {
        let id = reserved_for(error)?;
        Some(Self::by_label(host, &id.as_str().into(), id).await)
    }

    /// The same for a container's name.
    pub(super) async fn of_container(
        host: &Host,
        request: &Request,
        error: &CriError,
    ) -> Option<Self> {
        let id = reserved_for(error)?;
        let listed = match host.runtime.list_containers(ListFilter::Pod(&request.key)).await {
            Ok(listed) => listed,
            Err(error) => return Some(Self::unknown(&error)),
        };
        Some(match listed.into_iter().find(|container| container.id == id) {
            Some(container) => Self::by_label(host, &container.pod_sandbox_id.into(), id).await,
            None => Self::ours(id),
        })
    }

    /// Decides by the owner label of a sandbox. `id` is the object to remove if it belongs to this
    /// agent.
    async fn by_label(host: &Host, sandbox: &SandboxId, id: String) -> Self {
        let owner = match host.runtime.sandbox_status(sandbox).await {
            Ok(status) => status.labels.get(OWNER_LABEL).cloned(),
            // The object is incomplete, or its sandbox is already gone. No pod runs in a sandbox
            // that the runtime does not know.
            Err(CriError::NotFound { .. }) => return Self::ours(id),
            Err(error) => return Self::unknown(&error),
        };
        match owner {
            Some(owner) if *owner == *host.settings.owner => Self::ours(id),
            Some(owner) => Self::others(format!(
                "; that belongs to the nodelet with owner id {owner} and is left alone"
            )),
            None => Self::others("; that belongs to another agent and is left alone".to_owned()),
        }
    }

    fn unknown(error: &CriError) -> Self {
        Self::others(format!("; whose that is, the runtime does not tell: {error}"))
    }
}

fn reserved_for(error: &CriError) -> Option<String> {
    match error {
        CriError::NameReserved { id, .. } => Some(id.clone()),
        CriError::NotFound { .. }
        | CriError::Unavailable { .. }
        | CriError::DeadlineExceeded { .. }
        | CriError::ExecTimedOut { .. }
        | CriError::Unimplemented { .. }
        | CriError::Other { .. }
        | CriError::Endpoint { .. } => None,
    }
}
