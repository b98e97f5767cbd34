//! Whose the object is that holds a name which the runtime has refused.
//!
//! Mostly it is what an interrupted call of this agent left, and goes. Two agents on one runtime
//! with the same node name and the same manifest want the same names, though: what has another
//! owner's label stays.

use super::{Host, Request};
use crate::{
    cri::{CriError, ListFilter},
    model::{OWNER_LABEL, SandboxId},
    plan::Taken,
};

/// Who holds a name.
pub(super) struct Holder {
    pub(super) taken: Taken,
    /// What to add to the runtime's own words.
    pub(super) note: String,
}

impl Holder {
    fn ours(id: String) -> Self {
        Self { taken: Taken::ByUs(id), note: String::new() }
    }

    fn others(note: String) -> Self {
        Self { taken: Taken::ByOthers, note }
    }

    /// Who holds the sandbox name that a call was refused; `None` when it failed for another
    /// reason.
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

    /// By the owner label of a sandbox; `id` is what is to be removed when it is ours.
    async fn by_label(host: &Host, sandbox: &SandboxId, id: String) -> Self {
        let owner = match host.runtime.sandbox_status(sandbox).await {
            Ok(status) => status.labels.get(OWNER_LABEL).cloned(),
            // Half-made, or its sandbox is gone already: what the runtime does not know, nobody
            // runs in.
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
        | CriError::Unimplemented { .. }
        | CriError::Other { .. }
        | CriError::Endpoint { .. } => None,
    }
}
