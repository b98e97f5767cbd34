//! The handler of the container runtime that runs a pod, and whether it can do what the pod asks of
//! it.

use super::has_user_namespace;
use crate::model::{RuntimeView, k8s};
use std::collections::BTreeMap;
use thiserror::Error;

/// The pod's runtime class is not in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "failed to get sandbox runtime: RuntimeClass {0:?} not found in runtimeClasses of the configuration"
)]
pub struct NoRuntimeClass(String);

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

/// The handler of the pod's runtime class; empty for the runtime's default.
///
/// # Errors
/// When `classes` (from class to handler) has no such class.
pub fn runtime_handler<'a>(
    pod: &k8s::Pod,
    classes: &'a BTreeMap<String, String>,
) -> Result<&'a str, NoRuntimeClass> {
    let class = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref());
    let Some(class) = class.filter(|class| !class.is_empty()) else { return Ok("") };
    classes.get(class).map(String::as_str).ok_or_else(|| NoRuntimeClass(class.to_owned()))
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
