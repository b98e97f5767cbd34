//! Which pod has which ids of the host. The runtime is the database: an agent that starts finds the
//! ids of a pod in its sandbox.
//!
//! A pod that has ended gives its ids back, and keeps a dead sandbox that names them. No file has
//! them: on a disk the ids of a pod's files are those that the pod sees.

use super::{Host, HostError, Request};
use crate::{
    cri::{CriError, ListFilter, RuntimeClient, from_cri, v1},
    model::{Order as _, PodUid, SandboxId, k8s},
    podspec::{IdRange, IdSpace, IdSpaceError, NoUserNamespace, has_user_namespace},
};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use thiserror::Error;
use tokio::sync::OnceCell;

/// The ids of all pods that have a user namespace.
pub struct UserNamespaces {
    space: Result<IdSpace, IdSpaceError>,
    /// Set when `taken` has what the runtime had when it was asked.
    known: OnceCell<()>,
    taken: Mutex<BTreeMap<PodUid, IdRange>>,
}

/// Why a pod gets no user namespace.
#[derive(Debug, Error)]
pub(crate) enum UserNamespaceError {
    #[error(transparent)]
    NotSupported(#[from] NoUserNamespace),
    #[error("no ids are left for another user namespace")]
    NoneLeft,
    #[error(transparent)]
    Space(#[from] IdSpaceError),
    #[error("cannot see which ids other pods have")]
    Runtime(#[source] CriError),
}

impl UserNamespaces {
    #[must_use]
    pub fn new(space: Result<IdSpace, IdSpaceError>) -> Self {
        Self { space, known: OnceCell::new(), taken: Mutex::default() }
    }

    /// The pod's range: the one that it has, or a free one.
    async fn range(
        &self,
        runtime: &RuntimeClient,
        uid: &PodUid,
    ) -> Result<IdRange, UserNamespaceError> {
        let look = || async {
            let found = in_use(runtime).await.map_err(UserNamespaceError::Runtime)?;
            self.taken().extend(found);
            Ok::<(), UserNamespaceError>(())
        };
        self.known.get_or_try_init(look).await?;
        let mut taken = self.taken();
        if let Some(range) = taken.get(uid) {
            return Ok(*range);
        }
        let range = self.space.clone()?.free(&taken).ok_or(UserNamespaceError::NoneLeft)?;
        taken.insert(uid.clone(), range);
        Ok(range)
    }

    /// Nothing of the pod runs, and its volumes are gone.
    pub(super) fn release(&self, uid: &PodUid) {
        self.taken().remove(uid);
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<PodUid, IdRange>> {
        // A map without invariants of its own stays usable after a panic.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ranges of all sandboxes in which something may run, those of other agents included.
async fn in_use(runtime: &RuntimeClient) -> Result<BTreeMap<PodUid, IdRange>, CriError> {
    let sandboxes = runtime.list_sandboxes(ListFilter::All).await?;
    let containers = runtime.list_containers(ListFilter::All).await?;
    let mut sandboxes = occupied(sandboxes, &containers);
    // The newest one of a pod is the one that counts.
    sandboxes.order_by_key(|sandbox| sandbox.created_at);
    let mut found = BTreeMap::new();
    for sandbox in sandboxes {
        let uid = PodUid::from(sandbox.metadata.map(|metadata| metadata.uid).unwrap_or_default());
        match runtime.sandbox_status(&SandboxId::from(sandbox.id)).await {
            Ok(status) => found.extend(from_cri::user_namespace(&status).map(|range| (uid, range))),
            Err(CriError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// The sandboxes that are ready, or have a container that has not ended: a container may outlive
/// its sandbox.
fn occupied(
    mut sandboxes: Vec<v1::PodSandbox>,
    containers: &[v1::Container],
) -> Vec<v1::PodSandbox> {
    sandboxes.retain(|sandbox| {
        let mut inside = containers.iter().filter(|c| c.pod_sandbox_id == sandbox.id);
        sandbox.state() == v1::PodSandboxState::SandboxReady
            || inside.any(|c| c.state() != v1::ContainerState::ContainerExited)
    });
    sandboxes
}

/// The pod's ids; `None` for a pod that has those of the host.
pub(super) async fn ids(
    host: &Host,
    request: &Request,
    pod: &k8s::Pod,
) -> Result<Option<IdRange>, HostError> {
    if !pod.spec.as_ref().is_some_and(has_user_namespace) {
        return Ok(None);
    }
    Ok(Some(host.user_namespaces.range(&host.runtime, &request.uid).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_count_while_something_may_run_with_them() {
        let sandbox = |id: &str, state: v1::PodSandboxState| v1::PodSandbox {
            id: id.to_owned(),
            state: state.into(),
            ..Default::default()
        };
        let container = |sandbox: &str, state: v1::ContainerState| v1::Container {
            pod_sandbox_id: sandbox.to_owned(),
            state: state.into(),
            ..Default::default()
        };
        let dead = v1::PodSandboxState::SandboxNotready;
        let sandboxes = vec![
            sandbox("ready", v1::PodSandboxState::SandboxReady),
            sandbox("ended", dead),
            sandbox("outlived", dead),
            sandbox("empty", dead),
        ];
        let containers = [
            container("ready", v1::ContainerState::ContainerExited),
            container("ended", v1::ContainerState::ContainerExited),
            container("outlived", v1::ContainerState::ContainerExited),
            container("outlived", v1::ContainerState::ContainerUnknown),
        ];
        let counted = occupied(sandboxes, &containers);
        let ids: Vec<&str> = counted.iter().map(|sandbox| sandbox.id.as_str()).collect();
        assert_eq!(ids, ["ready", "outlived"]);
    }
}
