//! The calls of the relist loop: listing, inspecting one object, waiting until the runtime's view
//! shows what an event told of.

use super::{
    core::{Found, Listing, Object, Scope, Subject},
    termination,
};
use crate::{
    blocking::LOOKS,
    cri::{CriError, ListFilter, RuntimeClient, from_cri, v1},
    model::{ContainerState, ObservedContainer, ObservedSandbox, PodKey},
};
use std::{collections::BTreeSet, time::Duration};

/// How long the runtime's view may lag behind its events before a look is taken anyway.
const LAG: Duration = Duration::from_secs(1);

/// Lists everything, or what there is of some pods.
pub(super) async fn list(
    client: &RuntimeClient,
    began: Duration,
    scope: &Scope,
    asked: &BTreeSet<PodKey>,
) -> Result<Listing, CriError> {
    let mut listing = Listing { began, ..Listing::default() };
    match scope {
        Scope::All => list_filtered(client, ListFilter::All, &mut listing).await?,
        Scope::Asked => {
            for key in asked {
                list_filtered(client, ListFilter::Pod(key), &mut listing).await?;
            }
        }
    }
    Ok(listing)
}

async fn list_filtered(
    client: &RuntimeClient,
    filter: ListFilter<'_>,
    listing: &mut Listing,
) -> Result<(), CriError> {
    let (sandboxes, containers) =
        tokio::try_join!(client.list_sandboxes(filter), client.list_containers(filter))?;
    listing.sandboxes.extend(sandboxes.into_iter().filter_map(from_cri::listed_sandbox));
    listing.containers.extend(containers.iter().filter_map(from_cri::listed_container));
    Ok(())
}

/// Completes a sandbox or container with what its status tells.
pub(super) async fn inspect(client: &RuntimeClient, subject: Subject) -> Found {
    let result = match subject {
        Subject::Sandbox(sandbox) => inspect_sandbox(client, sandbox).await,
        Subject::Container(container) => inspect_container(client, container).await,
    };
    match result {
        Ok(found) => Found::Complete(found),
        Err((_, CriError::NotFound { .. })) => Found::Gone,
        Err((what, error)) => Found::Failed(format!("{what}: {error}")),
    }
}

async fn inspect_sandbox(
    client: &RuntimeClient,
    mut sandbox: ObservedSandbox,
) -> Result<Subject, (String, CriError)> {
    let status = client.sandbox_status(&sandbox.id).await;
    let status = status.map_err(|e| (format!("PodSandboxStatus of {}", sandbox.id), e))?;
    from_cri::inspected_sandbox(&mut sandbox, &status);
    Ok(Subject::Sandbox(sandbox))
}

async fn inspect_container(
    client: &RuntimeClient,
    mut container: Box<ObservedContainer>,
) -> Result<Subject, (String, CriError)> {
    let status = client.container_status(&container.id).await;
    let status = status.map_err(|e| (format!("ContainerStatus of {}", container.id), e))?;
    from_cri::inspected_container(&mut container, status);
    if let Some(ask) = termination::Ask::of(&container) {
        let told = LOOKS.run(move || ask.read()).await.unwrap_or_default();
        if let ContainerState::Exited { message, .. } = &mut container.state {
            *message = termination::joined(message, &told).into();
        }
    }
    Ok(Subject::Container(container))
}

/// Waits until the runtime's own view shows that an object ended, which it does shortly after the
/// event: containerd first has the dead container's shim clean up, some 50 ms. Returns without an
/// answer too: a look follows in any case. `pause` lies between two questions.
pub(super) async fn until_ended(client: &RuntimeClient, object: &Object, pause: Duration) {
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < LAG {
        let ended = match object {
            Object::Sandbox(id) => {
                let status = client.sandbox_status(id).await;
                status.map_or(true, |s| s.state() != v1::PodSandboxState::SandboxReady)
            }
            Object::Container(id) => {
                let status = client.container_status(id).await;
                let has_ended = |state| {
                    use v1::ContainerState::{ContainerCreated, ContainerRunning};
                    !matches!(state, ContainerCreated | ContainerRunning)
                };
                status.map_or(true, |s| has_ended(s.state()))
            }
        };
        if ended {
            return;
        }
        tokio::time::sleep(pause.max(begun.elapsed() / 10)).await;
    }
}
