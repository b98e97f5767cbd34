//! The request of a step, and what its answer means.

use crate::{
    api::{ApiClient, ApiError, Status, Verb, write},
    mirror::{Answer, Denial, MirrorStep, SeenPod},
    model::PodKey,
};
use serde_json::Value;
use std::sync::Arc;

/// Sends the request of a step that has one.
///
/// # Cancel safety
/// Dropping it leaves open whether it was carried out.
pub(super) async fn carry_out(client: &ApiClient, key: &PodKey, step: &MirrorStep) -> Answer {
    let collection = format!("/api/v1/namespaces/{}/pods", key.namespace);
    let (verb, path) = match step {
        MirrorStep::Nothing
        | MirrorStep::Wait(_)
        | MirrorStep::Delay(_)
        | MirrorStep::Decline { .. } => {
            return Answer::Unclear("nothing to be sent".to_owned());
        }
        MirrorStep::Create(_) => (Verb::Create, collection),
        MirrorStep::Delete { .. } => (Verb::Delete, format!("{collection}/{}", key.name)),
        MirrorStep::PatchStatus { .. } => {
            (Verb::Patch, format!("{collection}/{}/status", key.name))
        }
    };
    let body = step.body();
    let answer = if verb == Verb::Delete {
        // The pod as it was last, or a Status: only what is still there is of interest.
        let deleted = Box::pin(write::<Value>(client, verb, &path, body.as_ref())).await;
        deleted.map(|object| match serde_json::from_value::<SeenPod>(object) {
            Ok(pod) if pod.is_held() => Answer::Pod(Arc::new(pod)),
            Ok(_) | Err(_) => Answer::Gone,
        })
    } else {
        let pod = Box::pin(write::<SeenPod>(client, verb, &path, body.as_ref())).await;
        pod.map(|pod| Answer::Pod(Arc::new(pod)))
    };
    answer.unwrap_or_else(|error| meaning(verb, &error))
}

/// What a failed request says about its pod.
fn meaning(verb: Verb, error: &ApiError) -> Answer {
    if error.is_too_much() {
        // It says nothing about the other pods.
        return Answer::Refused(Denial { message: error.to_string(), ..Denial::default() });
    }
    let ApiError::Refused(status) = error else { return Answer::Unclear(error.to_string()) };
    match status.code {
        500.. if error.is_of_webhook() => Answer::Refused(denial(status)),
        404 if matches!(verb, Verb::Delete | Verb::Patch) => Answer::Gone,
        // The credentials, the load or the server itself are at fault, whatever was asked for.
        401 | 408 | 429 | 500.. => Answer::Unclear(format!("{} ({})", status.message, status.code)),
        _ => Answer::Refused(denial(status)),
    }
}

fn denial(status: &Status) -> Denial {
    Denial { code: status.code, reason: status.reason.clone(), message: status.message.clone() }
}
