//! Chooses the pods that a critical pod preempts: as few as possible, and Guaranteed pods only if
//! the other pods are not enough.

use super::{
    board::Occupant,
    resources::{Needs, Resource},
};
use crate::{
    model::{PodKey, priority_of},
    podspec::{QosClass, qos_class},
};

struct Candidate<'a> {
    key: &'a PodKey,
    needs: &'a Needs,
    class: QosClass,
    priority: i32,
}

/// Chooses among `pods`, all of which may be stopped.
///
/// # Errors
/// The amounts that would still be missing if all pods were stopped.
pub(super) fn victims<'a>(
    missing: &Needs,
    pods: impl Iterator<Item = &'a Occupant<'a>>,
) -> Result<Vec<PodKey>, Needs> {
    let pods: Vec<Candidate<'_>> = pods
        .map(|occupant| Candidate {
            key: occupant.key,
            needs: &occupant.needs,
            class: occupant.pod.spec.as_ref().map_or(QosClass::BestEffort, qos_class),
            priority: priority_of(occupant.pod),
        })
        .collect();
    let never_enough = after(missing, pods.iter());
    if !never_enough.is_empty() {
        return Err(never_enough);
    }
    let mut chosen: Vec<&Candidate<'_>> = Vec::new();
    for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
        // Pods of a class are chosen only for the amount that all pods of lower classes can't free.
        let lesser = pods.iter().filter(|pod| pod.class > class);
        let rest = after(missing, chosen.iter().copied().chain(lesser));
        let own = pods.iter().filter(|pod| pod.class == class).collect();
        chosen.extend(nearest(rest, own));
    }
    // If several resources are missing, a later choice can make an earlier one unnecessary.
    let mut at = 0;
    while at < chosen.len() {
        let others = chosen.iter().enumerate().filter(|(other, _)| *other != at);
        if after(missing, others.map(|(_, pod)| *pod)).is_empty() {
            chosen.remove(at);
        } else {
            at += 1;
        }
    }
    Ok(chosen.into_iter().map(|pod| pod.key.clone()).collect())
}

/// What is still missing when `pods` have gone.
fn after<'a>(missing: &Needs, pods: impl Iterator<Item = &'a Candidate<'a>>) -> Needs {
    pods.fold(missing.clone(), |rest, pod| rest.without(pod.needs))
}

/// Repeatedly chooses the pod whose requests are nearest to the missing amounts; of equal pods, the
/// smaller one.
fn nearest<'a>(mut missing: Needs, mut pods: Vec<&'a Candidate<'a>>) -> Vec<&'a Candidate<'a>> {
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let size = |pod: &Candidate<'_>| {
            (pod.needs.get(&Resource::Memory), pod.needs.get(&Resource::Cpu), pod.priority)
        };
        let best = pods.iter().enumerate().min_by(|(_, a), (_, b)| {
            distance(&missing, a.needs)
                .total_cmp(&distance(&missing, b.needs))
                .then_with(|| size(a).cmp(&size(b)))
                .then_with(|| a.key.cmp(b.key))
        });
        let Some((at, _)) = best else { break };
        let pod = pods.swap_remove(at);
        missing = missing.without(pod.needs);
        chosen.push(pod);
    }
    chosen
}

/// How much of what is missing a pod leaves missing: 0 for none of it, 1 for the whole of each
/// resource.
#[allow(clippy::cast_precision_loss, reason = "a comparison of sizes")]
fn distance(missing: &Needs, has: &Needs) -> f64 {
    let part = |(resource, missing): (&Resource, i64)| {
        let left = (missing - has.get(resource)).max(0) as f64 / missing as f64;
        left * left
    };
    missing.iter().map(part).sum()
}
