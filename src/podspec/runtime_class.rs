//! The handler of the container runtime that runs a pod, and whether it can do what the pod asks of
//! it.

use super::{has_user_namespace, object_scope, objects::counts_for};
use crate::model::{NodeObjects, ObjectScope, RuntimeClasses, RuntimeView, k8s};
use thiserror::Error;

/// Why a pod has no handler.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoRuntimeClass {
    /// The configuration does not have the runtime class of a static pod.
    #[error(
        "failed to get sandbox runtime: RuntimeClass {0:?} not found in runtimeClasses of the configuration"
    )]
    NotConfigured(String),
    /// The cluster does not have the runtime class of a pod of the API server.
    #[error("failed to get sandbox runtime: RuntimeClass {0:?} not found")]
    NotFound(String),
    /// The runtime classes of the cluster have not been read yet.
    #[error("failed to get sandbox runtime: RuntimeClass {0:?} has not been read yet")]
    NotKnown(String),
}

/// Why a pod gets no user namespace.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoUserNamespace {
    /// The runtime's default handler has none.
    #[error("can't set `spec.hostUsers: false`, runtime does not support user namespaces")]
    Runtime,
    /// The handler of the pod's runtime class has none.
    #[error(
        "can't set `spec.hostUsers: false`, RuntimeClass handler {0:?} does not support user namespaces"
    )]
    Handler(String),
}

/// The runtime class that the pod names.
#[must_use]
pub fn runtime_class(pod: &k8s::Pod) -> Option<&str> {
    let class = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref());
    class.filter(|class| !class.is_empty())
}

/// True when the agent knows whether the pod's runtime class exists.
#[must_use]
pub fn is_runtime_class_known(pod: &k8s::Pod, objects: &NodeObjects) -> bool {
    match object_scope(pod) {
        ObjectScope::Files => true,
        ObjectScope::Api => {
            let counts = counts_for(objects.api.runtime_classes_for.as_deref(), pod);
            runtime_class(pod).is_none() || objects.api.runtime_classes.is_some() && counts
        }
    }
}

/// The handler of the pod's runtime class; empty for the runtime's default. The classes of static
/// pods are `configured`, and those of pods of the API server are objects of the cluster.
///
/// # Errors
/// When there is no such class.
pub fn runtime_handler<'a>(
    pod: &k8s::Pod,
    configured: &'a RuntimeClasses,
    objects: &'a NodeObjects,
) -> Result<&'a str, NoRuntimeClass> {
    let Some(class) = runtime_class(pod) else { return Ok("") };
    let name = || class.to_owned();
    let handler = match object_scope(pod) {
        ObjectScope::Files => {
            configured.get(class).ok_or_else(|| NoRuntimeClass::NotConfigured(name()))
        }
        ObjectScope::Api => match &objects.api.runtime_classes {
            Some(classes) => classes.get(class).ok_or_else(|| NoRuntimeClass::NotFound(name())),
            None => Err(NoRuntimeClass::NotKnown(name())),
        },
    };
    handler.map(String::as_str)
}

/// Checks that this handler can give the pod a user namespace, if it asks for one.
///
/// # Errors
/// When it can't.
pub fn check_user_namespace(
    pod: &k8s::Pod,
    runtime: &RuntimeView,
    handler: &str,
) -> Result<(), NoUserNamespace> {
    if !pod.spec.as_ref().is_some_and(has_user_namespace) || runtime.has_user_namespaces(handler) {
        return Ok(());
    }
    Err(match handler {
        "" => NoUserNamespace::Runtime,
        name => NoUserNamespace::Handler(name.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::model::ApiObjects;
    use serde_json::json;
    use std::sync::Arc;

    /// A pod that names class `sandboxed`, from a file or from the API server.
    fn pod(source: &str) -> k8s::Pod {
        let annotations = json!({"kubernetes.io/config.source": source});
        let spec = json!({"containers": [], "runtimeClassName": "sandboxed"});
        serde_json::from_value(json!({"metadata": {"annotations": annotations}, "spec": spec}))
            .unwrap()
    }

    fn classes(handler: &str) -> RuntimeClasses {
        [("sandboxed".to_owned(), handler.to_owned())].into()
    }

    fn cluster(classes: Option<RuntimeClasses>) -> NodeObjects {
        let runtime_classes = classes.map(Arc::new);
        let api = ApiObjects { runtime_classes, ..ApiObjects::default() };
        NodeObjects { api: Arc::new(api), ..NodeObjects::default() }
    }

    #[test]
    fn static_pods_use_the_configuration_and_others_the_cluster() {
        let (file, api) = (pod("file"), pod("api"));
        let configured = classes("runsc");
        let handler = |pod: &k8s::Pod, objects: &NodeObjects| {
            let found = runtime_handler(pod, &configured, objects);
            (is_runtime_class_known(pod, objects), found.map(ToOwned::to_owned))
        };
        let of_cluster = cluster(Some(classes("kata")));
        assert_eq!(handler(&file, &of_cluster), (true, Ok("runsc".to_owned())));
        assert_eq!(handler(&api, &of_cluster), (true, Ok("kata".to_owned())));
        // Those of an earlier run of the agent do not count for a pod that is new.
        let mut remembered = of_cluster.clone();
        Arc::make_mut(&mut remembered.api).runtime_classes_for = Some(Arc::default());
        assert!(!is_runtime_class_known(&api, &remembered));
        let name = || "sandboxed".to_owned();
        let missing = Err(NoRuntimeClass::NotFound(name()));
        assert_eq!(handler(&api, &cluster(Some(RuntimeClasses::new()))), (true, missing));
        let unknown = Err(NoRuntimeClass::NotKnown(name()));
        assert_eq!(handler(&api, &cluster(None)), (false, unknown));
        let nothing = RuntimeClasses::new();
        let none = runtime_handler(&file, &nothing, &of_cluster);
        assert_eq!(none, Err(NoRuntimeClass::NotConfigured(name())));
        let default = k8s::Pod::default();
        assert_eq!(handler(&default, &cluster(None)), (true, Ok(String::new())));
    }
}
