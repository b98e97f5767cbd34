//! The rules that concern one pod alone, each with the kubelet's reason and message.

use super::{
    NodeFacts, affinity,
    refusal::{NODE_AFFINITY, Refusal},
    taints::is_tolerated,
};
use crate::{
    model::{Pressure, RuntimeView, k8s},
    podspec::{
        APP_ARMOR_ANNOTATION, QosClass, SysctlNamespace, is_allowed_sysctl, is_safe_sysctl,
        is_static, names_app_armor_profile, qos_class, sysctl_name, sysctl_namespace,
    },
};
use std::collections::{BTreeMap, BTreeSet};

const OS_LABEL: &str = "kubernetes.io/os";
const MEMORY_TAINT: &str = "node.kubernetes.io/memory-pressure";

/// Memory pressure holds back pods that request nothing; a lack of disk or processes all of them.
pub(super) fn pressure(pod: &k8s::Pod, conditions: &BTreeSet<Pressure>) -> Result<(), Refusal> {
    if conditions.is_empty() {
        return Ok(());
    }
    if conditions.iter().all(|condition| *condition == Pressure::Memory) {
        let class = pod.spec.as_ref().map_or(QosClass::BestEffort, qos_class);
        if class != QosClass::BestEffort || tolerates_memory_pressure(pod) {
            return Ok(());
        }
    }
    let names: Vec<&str> = conditions.iter().map(|condition| condition.as_str()).collect();
    Err(Refusal::new("Evicted", format!("The node had condition: [{}]. ", names.join(" "))))
}

/// Whether the pod tolerates the taint of a node that is short of memory.
fn tolerates_memory_pressure(pod: &k8s::Pod) -> bool {
    let taint = k8s::Taint {
        key: MEMORY_TAINT.to_owned(),
        value: None,
        effect: "NoSchedule".to_owned(),
        time_added: None,
    };
    is_tolerated(pod, &taint)
}

/// A sysctl is one that can't hurt the neighbours or that the node's configuration allows, and one
/// that the pod has its own of.
pub(super) fn sysctls(pod: &k8s::Pod, node: &NodeFacts) -> Result<(), Refusal> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let context = spec.security_context.as_ref();
    for sysctl in context.iter().flat_map(|context| context.sysctls.iter().flatten()) {
        let name = sysctl_name(&sysctl.name);
        let forbidden = |why: &str| {
            Refusal::new("SysctlForbidden", format!("forbidden sysctl: {name:?} {why}"))
        };
        let allowed = node.allowed_unsafe_sysctls.iter().any(|p| is_allowed_sysctl(p, &name));
        let namespace = sysctl_namespace(&name);
        if namespace.is_none() || !allowed && !is_safe_sysctl(&name, node.kernel) {
            return Err(forbidden("not allowlisted"));
        }
        if namespace == Some(SysctlNamespace::Net) && spec.host_network == Some(true) {
            return Err(forbidden("not allowed with host net enabled"));
        }
        if namespace == Some(SysctlNamespace::Ipc) && spec.host_ipc == Some(true) {
            return Err(forbidden("not allowed with host ipc enabled"));
        }
    }
    Ok(())
}

/// The pod is for Linux, as far as it says.
pub(super) fn operating_system(pod: &k8s::Pod) -> Result<(), Refusal> {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(OS_LABEL));
    if label.is_some_and(|os| os != "linux") {
        let message =
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return Err(Refusal::new("PodOSSelectorNodeLabelDoesNotMatch", message));
    }
    let os = pod.spec.as_ref().and_then(|spec| spec.os.as_ref());
    if os.is_some_and(|os| os.name != "linux") {
        let message = "Failed to admit pod as the OS field doesn't match node OS";
        return Err(Refusal::new("PodOSNotSupported", message));
    }
    Ok(())
}

/// `Strict` is for a runtime that says that it supports it. Any other one ignores the field, and
/// the processes would have the groups of their image as well.
pub(super) fn supplemental_groups(pod: &k8s::Pod, runtime: &RuntimeView) -> Result<(), Refusal> {
    let features = runtime.features.as_ref();
    let supported = features.and_then(|features| features.supplemental_groups_policy);
    if supported == Some(true) || !asks_for_strict_groups(pod) {
        return Ok(());
    }
    let message = "SupplementalGroupsPolicy=Strict is not supported in this node";
    Err(Refusal::new("SupplementalGroupsPolicyNotSupported", message))
}

pub(super) fn asks_for_strict_groups(pod: &k8s::Pod) -> bool {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let policy = context.and_then(|context| context.supplemental_groups_policy.as_deref());
    policy == Some("Strict")
}

/// This node is one that the pod asks for.
pub(super) fn placement(
    pod: &k8s::Pod,
    node_name: &str,
    labels: &BTreeMap<String, String>,
) -> Result<(), Refusal> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let failed = |rule: &str, why: &str| {
        Err(Refusal::new(rule, format!("Predicate {rule} failed: node(s) didn't match {why}")))
    };
    if !affinity::matches(spec, labels, node_name) {
        return failed(NODE_AFFINITY, "Pod's node affinity/selector");
    }
    let named = spec.node_name.as_deref().filter(|name| !name.is_empty());
    if named.is_some_and(|name| name != node_name) {
        return failed("NodeName", "the requested node name");
    }
    Ok(())
}

/// The pod tolerates the taints of the node. Static pods are not asked. As in the kubelet, only
/// `NoExecute` counts: `NoSchedule` is for the scheduler, and a pod that was bound before the taint
/// was added keeps its place.
pub(super) fn taints(pod: &k8s::Pod, taints: &[k8s::Taint]) -> Result<(), Refusal> {
    let mut binding = taints.iter().filter(|taint| taint.effect == "NoExecute");
    if is_static(pod) || binding.all(|taint| is_tolerated(pod, taint)) {
        return Ok(());
    }
    let message =
        "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
    Err(Refusal::new("TaintToleration", message))
}

/// Profiles are only asked for where the kernel enforces them.
pub(super) fn app_armor(pod: &k8s::Pod, node: &NodeFacts) -> Result<(), Refusal> {
    if node.app_armor || !asks_for_app_armor(pod) {
        return Ok(());
    }
    let message = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
    Err(Refusal::new("AppArmor", message))
}

fn asks_for_app_armor(pod: &k8s::Pod) -> bool {
    let confines = |profile: Option<&k8s::AppArmorProfile>| {
        profile.is_some_and(|profile| profile.type_ != "Unconfined")
    };
    let confining = |value: &str| value != "unconfined" && names_app_armor_profile(value);
    let mut annotations = pod.metadata.annotations.iter().flatten();
    let annotated =
        annotations.any(|(key, value)| key.starts_with(APP_ARMOR_ANNOTATION) && confining(value));
    let Some(spec) = &pod.spec else { return annotated };
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut contexts = containers.filter_map(|container| container.security_context.as_ref());
    let whole = spec.security_context.as_ref();
    annotated
        || confines(whole.and_then(|context| context.app_armor_profile.as_ref()))
        || contexts.any(|context| confines(context.app_armor_profile.as_ref()))
}
