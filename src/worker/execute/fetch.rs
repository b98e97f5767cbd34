//! Makes an image of a new revision present while the old one still runs.

use super::{Host, Request, sandbox};
use crate::{
    image::{ImageEvent, PullConfig, PullPolicy, PullRequest},
    model::{DataObject, Event, EventKind, ObjectKey, ObjectKind, ObjectSight, k8s},
    plan::{Fetch, Fetched},
    podspec::{container_of, is_static, needed_images, object_scope, pull_secret_names},
};
use std::{future::ready, sync::Arc};

/// # Cancel safety
/// Dropping it cancels the pull.
pub(in crate::worker) async fn fetch(host: &Host, request: &Request, fetch: &Fetch) -> Fetched {
    let pod = &fetch.pod.pod;
    let Some(container) = container_of(pod, &fetch.container) else {
        let message = format!("the pod has no container {:?}", fetch.container);
        return Fetched::Failed { reason: "ErrImagePull".to_owned(), message };
    };
    let wanted = needed_images(pod, container).find(|needed| *needed.image == *fetch.image);
    let policy = wanted.and_then(|wanted| wanted.policy);
    // The events of volumes name only the pod, as the kubelet's.
    let of_container = wanted.is_none_or(|wanted| !wanted.of_volume);
    let path = of_container.then(|| fetch.kind.field_path(&fetch.container));
    let mut record = |event: ImageEvent| {
        let ImageEvent { kind, reason, message } = event;
        // An image that is present is no news: its container is started with a `Pulled` event.
        if reason != "Pulled" || message.starts_with("Successfully") {
            let target = request.target(path.clone());
            host.events.record(Event { target, kind, reason, message });
        }
    };
    let wanted = PullRequest {
        image: &fetch.image,
        policy: PullPolicy::of(policy, &fetch.image),
        pull_allowed: fetch.pull_allowed,
        accept_present: is_static(pod),
        pull_secrets: &pull_secrets(host, request, pod),
    };
    let config = || -> PullConfig<'_> { Box::pin(ready(Ok(sandbox::config_for_pulls(host, pod)))) };
    match host.images.ensure(&wanted, &config, &mut record).await {
        Ok(_) => Fetched::Present,
        Err(failure) => {
            Fetched::Failed { reason: failure.reason.as_str().to_owned(), message: failure.message }
        }
    }
}

/// The Secrets for pulls. The image may be public or present, so one that is missing is an event and
/// no failure.
pub(super) fn pull_secrets(host: &Host, request: &Request, pod: &k8s::Pod) -> Vec<Arc<DataObject>> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (_, name) in pod.spec.iter().flat_map(pull_secret_names) {
        let key = ObjectKey::new(ObjectKind::Secret, &request.key.namespace, name);
        match request.objects.sight(object_scope(pod), &key) {
            ObjectSight::Found(object) => found.push(Arc::clone(object)),
            ObjectSight::Missing | ObjectSight::Refused(_) | ObjectSight::Unknown => {
                missing.push(name);
            }
        }
    }
    if !missing.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        host.record(request, EventKind::Warning, "FailedToRetrieveImagePullSecret", message);
    }
    found
}
