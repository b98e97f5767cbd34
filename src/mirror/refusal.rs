//! What API servers refuse of a mirror pod, read from their answers, and what to do about it.

use std::collections::BTreeSet;

/// A part of a pod that an API server may refuse, and that the mirror can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// `spec.overhead`, which must be that of a runtime class.
    Overhead,
    /// `spec.preemptionPolicy`, where it is not the one of the class.
    PreemptionPolicy,
    /// `spec.priority`, where it is not the number of the class.
    Priority,
    /// `spec.priorityClassName`, where there is no such class.
    PriorityClass,
    /// `spec.runtimeClassName`, where there is no such class, or it is for other nodes.
    RuntimeClass,
    /// Every reference to another object: `ConfigMaps`, `Secrets`, service accounts, claims.
    References,
}

/// What an API server refused of one revision of a pod so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Left out of the next try.
    pub parts: BTreeSet<Part>,
    /// A mirror whose status can't be made what it should be: uid.
    pub stuck: Option<String>,
}

/// An answer of the API server that is no success.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denial {
    /// HTTP status.
    pub code: u16,
    /// CamelCase word: `Forbidden`, `AlreadyExists`.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// What follows from an answer to the creation of a mirror pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorRefusal {
    /// The next try goes without it.
    Part(Part),
    /// Nothing to be done here: the words of the API server.
    Text(String),
}

/// Texts of the admission plug-ins of kube-apiserver, which give no other sign of what they mind.
const MINDED: &[(&str, Part)] = &[
    ("no PriorityClass with name", Part::PriorityClass),
    ("the integer value of priority", Part::Priority),
    ("the string value of PreemptionPolicy", Part::PreemptionPolicy),
    ("pod rejected: RuntimeClass ", Part::RuntimeClass),
    ("conflict: runtimeClass.scheduling.nodeSelector", Part::RuntimeClass),
    ("can not create pods that reference", Part::References),
    ("a mirror pod may not reference", Part::References),
    ("a mirror pod may not use ServiceAccountToken", Part::References),
    ("Overhead set without corresponding RuntimeClass", Part::Overhead),
    ("Overhead doesn't match RuntimeClass", Part::Overhead),
];

/// What `denial` of a mirror pod, which went without `left_out`, means for the next try.
#[must_use]
pub fn refused(denial: &Denial, left_out: &Refusals) -> MirrorRefusal {
    let minded = |(text, _): &&(&str, Part)| denial.code == 403 && denial.message.contains(text);
    match MINDED.iter().find(minded) {
        Some((_, part)) if !left_out.parts.contains(part) => MirrorRefusal::Part(*part),
        Some(_) | None => MirrorRefusal::Text(denial.message.clone()),
    }
}

/// Whether the API server minds that a container that ended runs again in the same pod. What runs
/// here is right, so a mirror is made anew. Of a pod of the API server such a status is written when
/// the container has ended again.
pub(super) fn minds_a_restart(denial: &Denial) -> bool {
    denial.code == 422 && denial.message.contains("may not be transitioned to non-terminated state")
}
