//! The lease by which the node controller sees that the node is alive.

use crate::model::Now;
use jiff::SignedDuration;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};

/// A new lease of the Node of that name and uid.
#[must_use]
pub fn lease(node: &str, uid: &str, seconds: i32, now: Now) -> Lease {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    };
    Lease {
        metadata: ObjectMeta {
            name: Some(node.to_owned()),
            namespace: Some("kube-node-lease".to_owned()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.to_owned()),
            lease_duration_seconds: Some(seconds),
            renew_time: Some(MicroTime(now.wall)),
            ..LeaseSpec::default()
        }),
    }
}

/// The lease as it was answered last, renewed. One that belongs to another Node of the name (it was
/// registered anew) gets this one as its owner, or the garbage collector would take it away. Its
/// time never goes back, also when the wall clock does: the node lifecycle controller counts only a
/// renewal that is later than the last.
#[must_use]
pub fn renewed(last: &Lease, node: &str, uid: &str, seconds: i32, now: Now) -> Lease {
    let new = lease(node, uid, seconds, now);
    let mut renewed = last.clone();
    let owners = renewed.metadata.owner_references.as_deref().unwrap_or_default();
    if owners.iter().all(|owner| owner.uid != uid) {
        renewed.metadata.owner_references = new.metadata.owner_references;
    }
    let spec = renewed.spec.get_or_insert_default();
    spec.holder_identity = Some(node.to_owned());
    spec.lease_duration_seconds = Some(seconds);
    let after_last = spec
        .renew_time
        .as_ref()
        .and_then(|last| last.0.checked_add(SignedDuration::from_micros(1)).ok());
    spec.renew_time = Some(MicroTime(after_last.unwrap_or(now.wall).max(now.wall)));
    renewed
}
