//! Ephemeral containers (`kubectl debug`): they are added to a pod that runs already, through the
//! API server.
//!
//! An ephemeral container has the fields of a container and the name of a target. The API allows
//! neither ports, probes, lifecycle hooks nor resources for it, so the conversion leaves them out.

use super::container_of;
use crate::model::k8s;
use std::borrow::Cow;

/// The ephemeral containers of a pod.
#[must_use]
pub fn ephemeral_containers(pod: &k8s::Pod) -> &[k8s::EphemeralContainer] {
    pod.spec.as_ref().and_then(|spec| spec.ephemeral_containers.as_deref()).unwrap_or_default()
}

/// An ephemeral container as the container that the runtime is asked for.
#[must_use]
pub fn as_container(ephemeral: &k8s::EphemeralContainer) -> k8s::Container {
    let from = ephemeral.clone();
    k8s::Container {
        args: from.args,
        command: from.command,
        env: from.env,
        env_from: from.env_from,
        image: from.image,
        image_pull_policy: from.image_pull_policy,
        name: from.name,
        security_context: from.security_context,
        stdin: from.stdin,
        stdin_once: from.stdin_once,
        termination_message_path: from.termination_message_path,
        termination_message_policy: from.termination_message_policy,
        tty: from.tty,
        volume_devices: from.volume_devices,
        volume_mounts: from.volume_mounts,
        working_dir: from.working_dir,
        ..k8s::Container::default()
    }
}

/// All containers of a pod: init containers, regular containers, ephemeral containers.
pub fn all_containers(spec: &k8s::PodSpec) -> impl Iterator<Item = Cow<'_, k8s::Container>> {
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let declared = spec.init_containers.iter().flatten().chain(&spec.containers);
    declared.map(Cow::Borrowed).chain(ephemeral.map(as_container).map(Cow::Owned))
}

/// A container of any kind by its name.
#[must_use]
pub fn any_container_of<'a>(pod: &'a k8s::Pod, name: &str) -> Option<Cow<'a, k8s::Container>> {
    let ephemeral = || ephemeral_containers(pod).iter().find(|one| one.name == name);
    container_of(pod, name)
        .map(Cow::Borrowed)
        .or_else(|| ephemeral().map(as_container).map(Cow::Owned))
}

/// The image of a container of any kind, as in the specification.
#[must_use]
pub fn image_of<'a>(spec: &'a k8s::PodSpec, name: &str) -> Option<&'a str> {
    let declared = spec.init_containers.iter().flatten().chain(&spec.containers);
    let declared = declared.map(|one| (&one.name, &one.image));
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|one| (&one.name, &one.image));
    declared.chain(ephemeral).find(|(of, _)| *of == name)?.1.as_deref()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use serde_json::json;

    fn pod() -> k8s::Pod {
        serde_json::from_value(json!({"spec": {
            "initContainers": [{"name": "setup", "image": "setup:1"}],
            "containers": [{"name": "web", "image": "web:1"}],
            "ephemeralContainers": [{"name": "debug", "image": "busybox:1", "tty": true}],
        }}))
        .unwrap()
    }

    #[test]
    fn an_ephemeral_container_keeps_what_the_api_allows() {
        let kept = json!({
            "name": "debug", "image": "busybox:1", "imagePullPolicy": "Always",
            "command": ["sh"], "args": ["-c", "id"], "workingDir": "/tmp",
            "env": [{"name": "A", "value": "b"}], "envFrom": [{"prefix": "P"}],
            "stdin": true, "stdinOnce": true, "tty": true,
            "securityContext": {"privileged": true},
            "terminationMessagePath": "/t", "terminationMessagePolicy": "File",
            "volumeDevices": [{"name": "v", "devicePath": "/dev/v"}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        });
        let mut written = kept.clone();
        written["targetContainerName"] = "web".into();
        written["resources"] = json!({});
        let ephemeral: k8s::EphemeralContainer = serde_json::from_value(written).unwrap();
        assert_eq!(serde_json::to_value(as_container(&ephemeral)).unwrap(), kept);
    }

    #[test]
    fn a_container_of_any_kind_is_found_by_name() {
        let pod = pod();
        for (name, image) in [("setup", "setup:1"), ("web", "web:1"), ("debug", "busybox:1")] {
            assert_eq!(any_container_of(&pod, name).unwrap().image.as_deref(), Some(image));
            assert_eq!(image_of(pod.spec.as_ref().unwrap(), name), Some(image));
        }
        assert!(any_container_of(&pod, "other").is_none());
        assert!(container_of(&pod, "debug").is_none());
        let names: Vec<String> =
            all_containers(pod.spec.as_ref().unwrap()).map(|one| one.name.clone()).collect();
        assert_eq!(names, ["setup", "web", "debug"]);
    }
}
