//! The calls of the relist loop: listing, inspecting one object, waiting until the runtime's view
//! shows what an event told of.

use super::{
    core::{Found, Listing, Scope, Subject},
    termination,
};
use crate::{
    blocking::LOOKS,
    cri::{CriError, ListFilter, RuntimeClient, from_cri, v1},
    model::{ContainerState, ObservedContainer, ObservedSandbox, PodKey},
};
use std::{collections::BTreeSet, time::Duration};

/// How long the runtime's view may lag behind its events before a look is taken anyway.
pub(super) const LAG: Duration = Duration::from_secs(1);

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
    container: Box<ObservedContainer>,
) -> Result<Subject, (String, CriError)> {
    let status = client.container_status(&container.id).await;
    let status = status.map_err(|e| (format!("ContainerStatus of {}", container.id), e))?;
    Ok(Subject::Container(complete_container(container, status).await))
}

/// Puts what the status tells into a container, and the message that the container left.
async fn complete_container(
    mut container: Box<ObservedContainer>,
    status: v1::ContainerStatus,
) -> Box<ObservedContainer> {
    from_cri::inspected_container(&mut container, status);
    if let Some(ask) = termination::Ask::of(&container) {
        let told = LOOKS.run(move || ask.read()).await.unwrap_or_default();
        if let ContainerState::Exited { message, .. } = &mut container.state {
            *message = termination::joined(message, &told).into();
        }
    }
    container
}

/// Waits until the runtime's own view shows that an object ended, which it does shortly after the
/// event: containerd first has the dead container's shim clean up, some 50 ms. `pause` lies between
/// two questions. Returns a container that has ended as the last answer shows it. Otherwise it
/// returns `None`, also without an answer: a look follows in any case.
pub(super) async fn until_ended(
    client: &RuntimeClient,
    subject: &Subject,
    pause: Duration,
) -> Option<Box<ObservedContainer>> {
    use v1::{ContainerState as State, PodSandboxState};
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < LAG {
        match subject {
            Subject::Sandbox(sandbox) => {
                let status = client.sandbox_status(&sandbox.id).await.ok()?;
                if status.state() != PodSandboxState::SandboxReady {
                    return None;
                }
            }
            Subject::Container(container) => {
                let status = client.container_status(&container.id).await.ok()?;
                match status.state() {
                    State::ContainerCreated | State::ContainerRunning => {}
                    State::ContainerExited | State::ContainerUnknown => {
                        // Where that takes long, a look waits for it and marks the pod.
                        let complete = complete_container(container.clone(), status);
                        return tokio::time::timeout(LAG, complete).await.ok();
                    }
                }
            }
        }
        tokio::time::sleep(pause.max(begun.elapsed() / 10)).await;
    }
    None
}
