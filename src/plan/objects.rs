//! What the pod waits for of ConfigMaps, Secrets and volume claims, and when its volumes are
//! written again.
//!
//! What is missing is not tried: the worker plans again as soon as an object comes or changes.

use super::{Action, ContainerKind, PodPlan, init::kill, memory::Stage, name::Cx};
use crate::model::{EventKind, ObjectScope, ObservedContainer, k8s};
use crate::podspec::{
    ClaimError, are_claims_known, are_objects_known, are_services_known, bound_volume,
    check_env_objects, check_volume_objects, is_made_from_objects, is_mounted, object_scope,
    reads_metadata,
};

const NOT_KNOWN: &str = "waiting until ConfigMaps and Secrets have been read";
const API_NOT_KNOWN: &str =
    "waiting until ConfigMaps, Secrets and tokens have been read from the API server";
const CLAIMS_NOT_KNOWN: &str =
    "waiting until PersistentVolumeClaims have been read from the API server";
const SERVICES_NOT_KNOWN: &str = "waiting until Services have been read from the API server";

/// True when the objects and claims of all volumes are there. It is asked before a sandbox is made.
/// A pod that has a sandbox goes on with the files that its volumes have.
///
/// A pod of the API server also waits here for the Secrets of its pulls. Later starts do not wait
/// for them: the images are usually present, and the API server may be away.
pub(crate) fn volumes_ready(cx: &Cx<'_>, plan: &mut PodPlan) -> bool {
    let objects = cx.input.objects;
    let known = are_objects_known(cx.pod, objects);
    if !known && object_scope(cx.pod) == ObjectScope::Api {
        let claims_known = are_claims_known(cx.pod, objects);
        plan.block(if claims_known { API_NOT_KNOWN } else { CLAIMS_NOT_KNOWN });
        return false;
    }
    let missing: Vec<String> = mounted(cx).filter_map(|volume| why_not_ready(cx, volume)).collect();
    if missing.is_empty() {
        return true;
    }
    if !known {
        plan.block(NOT_KNOWN);
        return false;
    }
    let message = missing.join("; ");
    plan.block(&message);
    let event = cx.event(None, EventKind::Warning, "FailedMount", message.clone());
    plan.notice(message, event);
    false
}

/// True when the objects of the container's environment are there, and the Services and the volume
/// claims of its pod are known.
pub(crate) fn environment_ready(
    cx: &Cx<'_>,
    container: &k8s::Container,
    kind: ContainerKind,
    plan: &mut PodPlan,
) -> bool {
    let objects = cx.input.objects;
    if !are_services_known(cx.pod, objects) {
        plan.block(SERVICES_NOT_KNOWN);
        return false;
    }
    if !are_claims_known(cx.pod, objects) {
        plan.block(CLAIMS_NOT_KNOWN);
        return false;
    }
    let Err(error) = check_env_objects(cx.pod, container, objects) else { return true };
    if !are_objects_known(cx.pod, objects) {
        plan.block(match object_scope(cx.pod) {
            ObjectScope::Files => NOT_KNOWN,
            ObjectScope::Api => API_NOT_KNOWN,
        });
        return false;
    }
    let message = error.to_string();
    let path = Some(kind.field_path(&container.name));
    let event = cx.event(path, EventKind::Warning, "Failed", format!("Error: {message}"));
    plan.notice(message.clone(), event);
    plan.wait(&container.name, "CreateContainerConfigError", message);
    false
}

/// Has the volumes written again when objects, labels or annotations have changed since, or when an
/// earlier run of the agent wrote them.
pub(crate) fn plan_volumes(cx: &Cx<'_>, plan: &mut PodPlan) {
    let known = || are_objects_known(cx.pod, cx.input.objects);
    if cx.input.volumes_current || volumes(cx).next().is_none() || !known() {
        return;
    }
    if !cx.held_back(Stage::Prepare, plan) {
        plan.actions.push(Action::PreparePod { uid: cx.uid.clone() });
    }
}

/// Kills a container that is to begin anew with the objects as they are now. Returns true when it
/// does.
pub(crate) fn kill_outdated(
    cx: &Cx<'_>,
    container: &k8s::Container,
    instance: &ObservedContainer,
    plan: &mut PodPlan,
) -> bool {
    // One that could not start again goes on running.
    let objects = cx.input.objects;
    let ready = || {
        are_services_known(cx.pod, objects) && check_env_objects(cx.pod, container, objects).is_ok()
    };
    if !cx.input.outdated.contains(&instance.id) || !ready() {
        return false;
    }
    let message = format!(
        "Container {} reads a ConfigMap or Secret that has changed, will be restarted",
        instance.name
    );
    kill(cx, instance, Some(message), plan);
    true
}

/// Why a volume can't be set up with the objects and claims that are there, as the event says it.
fn why_not_ready(cx: &Cx<'_>, volume: &k8s::Volume) -> Option<String> {
    let objects = cx.input.objects;
    let why = if let Err(error) = check_volume_objects(cx.pod, volume, objects) {
        error.to_string()
    } else {
        match bound_volume(cx.pod, volume, objects) {
            Ok(_) => return None,
            Err(error @ (ClaimError::Elsewhere(_) | ClaimError::MountOptions(_))) => {
                return Some(error.to_string());
            }
            Err(error) => error.to_string(),
        }
    };
    Some(format!("MountVolume.SetUp failed for volume {:?} : {why}", volume.name))
}

/// The volumes whose files can change while the pod runs.
fn volumes<'a>(cx: &Cx<'a>) -> impl Iterator<Item = &'a k8s::Volume> {
    mounted(cx).filter(|volume| is_made_from_objects(volume) || reads_metadata(volume))
}

/// The volumes that a container mounts.
fn mounted<'a>(cx: &Cx<'a>) -> impl Iterator<Item = &'a k8s::Volume> {
    let spec = cx.pod.spec.as_ref();
    let all = spec.and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    all.iter().filter(move |volume| spec.is_some_and(|spec| is_mounted(spec, &volume.name)))
}
