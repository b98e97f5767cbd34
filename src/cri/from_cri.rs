//! From the runtime's lists and statuses to what the rest of the agent works with.
//!
//! Pods are found again by metadata and labels: a sandbox without pod name, namespace and uid, and
//! a container without the kubelet's labels, were made by somebody by hand and are no pod.

use super::{CONTAINER_NAME_LABEL, POD_NAME_LABEL, POD_NAMESPACE_LABEL, POD_UID_LABEL, Readiness};
use super::{CriError, annotation, v1};
use crate::model::{
    CgroupDriver, ContainerId, ContainerState, NetworkMode, OWNER_LABEL, ObservedContainer,
    ObservedSandbox, Order as _, PodKey, PodUid, SandboxId, SandboxState, ToldDriver, k8s,
};
use crate::podspec::IdRange;
use jiff::Timestamp;
use std::{collections::BTreeMap, net::IpAddr};

/// A sandbox out of a list: no addresses, and the network counts as the pod's own until it is
/// inspected. `None` for one that is no pod's.
#[must_use]
pub fn listed_sandbox(item: v1::PodSandbox) -> Option<(PodKey, ObservedSandbox)> {
    let state = sandbox_state(item.state());
    let meta = item.metadata?;
    let key = pod_key(&meta.namespace, &meta.name)?;
    let uid = Some(meta.uid).filter(|uid| !uid.is_empty())?;
    let sandbox = ObservedSandbox {
        id: SandboxId::from(item.id),
        uid: PodUid::from(uid),
        attempt: meta.attempt,
        state,
        created_at: time(item.created_at),
        ips: Vec::new(),
        network: NetworkMode::Pod,
        owner: item.labels.get(OWNER_LABEL).map(|owner| owner.as_str().into()),
    };
    Some((key, sandbox))
}

/// Puts what only the status tells into a listed sandbox. Addresses of a sandbox that is down are
/// kept: the runtime forgets them, statuses still show them.
pub fn inspected_sandbox(sandbox: &mut ObservedSandbox, status: &v1::PodSandboxStatus) {
    sandbox.state = sandbox_state(status.state());
    let options = status.linux.as_ref().and_then(|linux| linux.namespaces.as_ref());
    let options = options.and_then(|namespaces| namespaces.options.as_ref());
    sandbox.network = match options.map(v1::NamespaceOption::network) {
        Some(v1::NamespaceMode::Node) => NetworkMode::Node,
        _ => NetworkMode::Pod,
    };
    let more = status.network.iter().flat_map(|network| &network.additional_ips);
    let all = status.network.iter().map(|network| &network.ip).chain(more.map(|more| &more.ip));
    let ips: Vec<IpAddr> = all.filter_map(|ip| ip.parse().ok()).collect();
    if !ips.is_empty() || sandbox.state == SandboxState::Ready {
        sandbox.ips = ips;
    }
}

/// The ids of the sandbox's user namespace; `None` for one that has those of the host.
#[must_use]
pub fn user_namespace(status: &v1::PodSandboxStatus) -> Option<IdRange> {
    let options = status.linux.as_ref()?.namespaces.as_ref()?.options.as_ref()?;
    let ids = options.userns_options.as_ref()?.uids.first()?;
    Some(IdRange { first: ids.host_id, length: ids.length })
}

/// A container out of a list: a running one without the time of its start, an ended one without
/// its end. `None` for one that is no pod's.
#[must_use]
pub fn listed_container(item: &v1::Container) -> Option<(PodKey, ObservedContainer)> {
    let label = |name| item.labels.get(name).filter(|value| !value.is_empty());
    let key = pod_key(label(POD_NAMESPACE_LABEL)?, label(POD_NAME_LABEL)?)?;
    let created_at = time(item.created_at);
    let attempt = item.metadata.as_ref().map_or(0, |meta| meta.attempt);
    let image = item.image.as_ref().map(shown_image);
    let note = |name: &str| text(&item.annotations, name);
    let container = ObservedContainer {
        uid: PodUid::from(label(POD_UID_LABEL)?.as_str()),
        name: label(CONTAINER_NAME_LABEL)?.as_str().into(),
        restart_count: note(annotation::RESTART_COUNT).parse().unwrap_or(attempt),
        hash: note(annotation::HASH).into(),
        made_with: serde_json::from_str(note(annotation::RESOURCES)).ok(),
        state: match item.state() {
            v1::ContainerState::ContainerCreated => ContainerState::Created,
            v1::ContainerState::ContainerRunning => {
                ContainerState::Running { started_at: created_at }
            }
            v1::ContainerState::ContainerExited => ContainerState::Exited {
                started_at: None,
                finished_at: created_at,
                exit_code: 0,
                reason: "".into(),
                message: "".into(),
            },
            v1::ContainerState::ContainerUnknown => ContainerState::Unknown,
        },
        ended_with: None,
        created_at,
        image: image.unwrap_or_default().into(),
        termination_message_path: note(annotation::TERMINATION_PATH).into(),
        termination_message_policy: note(annotation::TERMINATION_POLICY).into(),
        termination_log: None,
        log_path: "".into(),
        user: None,
        id: ContainerId::from(item.id.as_str()),
        sandbox_id: SandboxId::from(item.pod_sandbox_id.as_str()),
        image_ref: item.image_ref.as_str().into(),
    };
    Some((key, container))
}

/// Puts what only the status tells into a listed container.
pub fn inspected_container(container: &mut ObservedContainer, status: v1::ContainerStatus) {
    container.state = match status.state() {
        v1::ContainerState::ContainerCreated => ContainerState::Created,
        v1::ContainerState::ContainerRunning => {
            ContainerState::Running { started_at: time(status.started_at) }
        }
        v1::ContainerState::ContainerExited => ContainerState::Exited {
            started_at: (status.started_at > 0).then(|| time(status.started_at)),
            finished_at: match status.finished_at {
                // Never started: it counts from its creation.
                0 => time(status.created_at),
                nanos => time(nanos),
            },
            exit_code: status.exit_code,
            reason: status.reason.into(),
            message: status.message.into(),
        },
        v1::ContainerState::ContainerUnknown => ContainerState::Unknown,
    };
    container.ended_with = container.ended_with.filter(|_| container.state.is_running());
    if let Some(image) = status.image.as_ref().map(shown_image).filter(|image| !image.is_empty()) {
        container.image = image.into();
    }
    if !status.image_ref.is_empty() {
        container.image_ref = status.image_ref.into();
    }
    container.log_path = status.log_path.into();
    let path = &*container.termination_message_path;
    // The agent's own file comes last. A volume that is mounted at the same path lies below it.
    let mount = status.mounts.iter().rfind(|m| !path.is_empty() && m.container_path == path);
    container.termination_log = mount.map(|mount| mount.host_path.as_str().into());
    let user = status.user.and_then(|user| user.linux);
    container.user = user.map(|user| (user.uid, user.gid, user.supplemental_groups));
}

/// The cgroup driver out of the answer to RuntimeConfig; one that says nothing of Linux tells none.
pub(super) fn told_driver(answer: &v1::RuntimeConfigResponse) -> Result<ToldDriver, CriError> {
    let Some(linux) = &answer.linux else { return Ok(ToldDriver::NotOffered) };
    match v1::CgroupDriver::try_from(linux.cgroup_driver) {
        Ok(v1::CgroupDriver::Systemd) => Ok(ToldDriver::Uses(CgroupDriver::Systemd)),
        Ok(v1::CgroupDriver::Cgroupfs) => Ok(ToldDriver::Uses(CgroupDriver::Cgroupfs)),
        Err(_) => {
            let number = linux.cgroup_driver;
            let message = format!("RuntimeConfig: {number} is no known cgroup driver");
            Err(CriError::Other { code: "Unknown".to_owned(), message })
        }
    }
}

/// The two conditions that matter, worded as the kubelet shows them.
#[must_use]
pub fn readiness(answer: &v1::StatusResponse) -> Readiness {
    let conditions = answer.status.as_ref().map(|status| status.conditions.as_slice());
    let check = |what: &str, name: &str| {
        let condition = conditions.into_iter().flatten().find(|c| c.r#type == name);
        match condition {
            Some(c) if c.status => None,
            Some(c) => Some(format!(
                "{what} not ready: {name}=false reason:{} message:{}",
                c.reason, c.message
            )),
            None => Some(format!("{what} not ready: condition {name} is missing")),
        }
    };
    Readiness {
        runtime_not_ready: check("container runtime", "RuntimeReady"),
        network_not_ready: check("container runtime network", "NetworkReady"),
        handlers: handlers(&answer.runtime_handlers),
        features: answer.features.as_ref().map(|features| k8s::NodeFeatures {
            supplemental_groups_policy: Some(features.supplemental_groups_policy),
        }),
    }
}

/// Handlers as a Node lists them.
fn handlers(told: &[v1::RuntimeHandler]) -> Vec<k8s::NodeRuntimeHandler> {
    let mut handlers: Vec<k8s::NodeRuntimeHandler> = told
        .iter()
        .map(|handler| k8s::NodeRuntimeHandler {
            name: Some(handler.name.clone()),
            features: handler.features.as_ref().map(|features| k8s::NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(features.recursive_read_only_mounts),
                user_namespaces: Some(features.user_namespaces),
            }),
        })
        .collect();
    handlers.order_by(|a, b| a.name.cmp(&b.name));
    handlers
}

fn pod_key(namespace: &str, name: &str) -> Option<PodKey> {
    (!namespace.is_empty() && !name.is_empty()).then(|| PodKey::new(namespace, name))
}

fn sandbox_state(state: v1::PodSandboxState) -> SandboxState {
    match state {
        v1::PodSandboxState::SandboxReady => SandboxState::Ready,
        v1::PodSandboxState::SandboxNotready => SandboxState::NotReady,
    }
}

/// The name under which the image was asked for, else the one that the runtime gave.
fn shown_image(image: &v1::ImageSpec) -> String {
    let asked = &image.user_specified_image;
    if asked.is_empty() { image.image.clone() } else { asked.clone() }
}

fn text<'a>(map: &'a BTreeMap<String, String>, key: &str) -> &'a str {
    map.get(key).map_or("", String::as_str)
}

/// A time of the protocol, nanoseconds since 1970.
pub(super) fn time(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn container() -> v1::Container {
        v1::Container {
            id: "c1".to_owned(),
            pod_sandbox_id: "s1".to_owned(),
            metadata: Some(v1::ContainerMetadata { name: "web".to_owned(), attempt: 7 }),
            state: v1::ContainerState::ContainerExited.into(),
            created_at: 1_000_000_000,
            labels: labels(&[
                (POD_NAME_LABEL, "p"),
                (POD_NAMESPACE_LABEL, "ns"),
                (POD_UID_LABEL, "u"),
                (CONTAINER_NAME_LABEL, "web"),
            ]),
            ..Default::default()
        }
    }

    #[test]
    fn a_container_without_labels_is_no_pods() {
        for missing in [POD_NAME_LABEL, POD_NAMESPACE_LABEL, POD_UID_LABEL, CONTAINER_NAME_LABEL] {
            let mut item = container();
            item.labels.remove(missing);
            assert_eq!(listed_container(&item), None, "{missing}");
        }
    }

    #[test]
    fn the_restart_count_is_the_annotation_or_the_attempt() {
        let mut item = container();
        assert_eq!(listed_container(&item).unwrap().1.restart_count, 7);
        item.annotations = labels(&[(annotation::RESTART_COUNT, "3")]);
        assert_eq!(listed_container(&item).unwrap().1.restart_count, 3);
    }

    #[test]
    fn a_status_fills_in_what_the_list_lacks() {
        let mut item = container();
        item.annotations = labels(&[(annotation::TERMINATION_PATH, "/dev/termination-log")]);
        let (key, mut observed) = listed_container(&item).unwrap();
        assert_eq!(key, PodKey::new("ns", "p"));
        let mounted = |host_path: &str| v1::Mount {
            container_path: "/dev/termination-log".to_owned(),
            host_path: host_path.to_owned(),
            ..Default::default()
        };
        let status = v1::ContainerStatus {
            state: v1::ContainerState::ContainerExited.into(),
            started_at: 2_000_000_000,
            finished_at: 3_000_000_000,
            exit_code: 137,
            reason: "OOMKilled".to_owned(),
            image: Some(v1::ImageSpec { image: "sha".to_owned(), ..Default::default() }),
            image_ref: "busybox@sha256:1".to_owned(),
            log_path: "/var/log/pods/x/0.log".to_owned(),
            // A volume of the pod may be mounted there, too.
            mounts: ["/srv/volume", "/var/lib/x"].map(mounted).to_vec(),
            ..Default::default()
        };
        inspected_container(&mut observed, status);
        assert_eq!(
            observed.state,
            ContainerState::Exited {
                started_at: Some(Timestamp::from_second(2).unwrap()),
                finished_at: Timestamp::from_second(3).unwrap(),
                exit_code: 137,
                reason: "OOMKilled".into(),
                message: "".into(),
            }
        );
        assert_eq!(observed.termination_log.as_deref(), Some("/var/lib/x"));
        assert_eq!((&*observed.image, &*observed.image_ref), ("sha", "busybox@sha256:1"));
    }

    #[test]
    fn a_dead_sandbox_keeps_its_addresses() {
        let item = v1::PodSandbox {
            metadata: Some(v1::PodSandboxMetadata {
                name: "p".to_owned(),
                uid: "u".to_owned(),
                namespace: "ns".to_owned(),
                attempt: 2,
            }),
            labels: labels(&[(OWNER_LABEL, "me")]),
            ..Default::default()
        };
        let (_, mut sandbox) = listed_sandbox(item).unwrap();
        assert_eq!((sandbox.attempt, sandbox.owner.as_deref()), (2, Some("me")));
        let mut status = v1::PodSandboxStatus {
            network: Some(v1::PodSandboxNetworkStatus {
                ip: "10.1.0.2".to_owned(),
                additional_ips: vec![v1::PodIp { ip: "fd00::2".to_owned() }],
            }),
            ..Default::default()
        };
        inspected_sandbox(&mut sandbox, &status);
        assert_eq!(sandbox.ips.len(), 2);
        status.state = v1::PodSandboxState::SandboxNotready.into();
        status.network = Some(v1::PodSandboxNetworkStatus::default());
        inspected_sandbox(&mut sandbox, &status);
        assert_eq!((sandbox.ips.len(), sandbox.state), (2, SandboxState::NotReady));
    }

    #[test]
    fn conditions_are_worded_as_the_kubelet_words_them() {
        let condition = |name: &str, status, reason: &str| v1::RuntimeCondition {
            r#type: name.to_owned(),
            status,
            reason: reason.to_owned(),
            message: "cni plugin not initialized".to_owned(),
        };
        let answer = v1::StatusResponse {
            status: Some(v1::RuntimeStatus {
                conditions: vec![
                    condition("RuntimeReady", true, ""),
                    condition("NetworkReady", false, "NetworkPluginNotReady"),
                ],
            }),
            ..Default::default()
        };
        let readiness = readiness(&answer);
        assert_eq!(readiness.runtime_not_ready, None);
        assert_eq!(
            readiness.network_not_ready.as_deref(),
            Some(
                "container runtime network not ready: NetworkReady=false \
                 reason:NetworkPluginNotReady message:cni plugin not initialized"
            )
        );
    }

    #[test]
    fn an_unknown_cgroup_driver_is_no_driver() {
        let answer = |cgroup_driver| v1::RuntimeConfigResponse {
            linux: Some(v1::LinuxRuntimeConfiguration { cgroup_driver }),
        };
        let told = |driver| Ok(ToldDriver::Uses(driver));
        assert_eq!(told_driver(&answer(0)), told(CgroupDriver::Systemd));
        assert_eq!(told_driver(&answer(1)), told(CgroupDriver::Cgroupfs));
        assert!(told_driver(&answer(2)).is_err());
        assert_eq!(told_driver(&v1::RuntimeConfigResponse::default()), Ok(ToldDriver::NotOffered));
    }
}
