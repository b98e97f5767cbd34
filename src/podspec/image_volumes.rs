//! Image volumes: which of them a container mounts, and what a runtime can do with them.

use super::image_name;
use crate::model::k8s;
use thiserror::Error;

/// Whether a pull policy, given or defaulted by the tag, asks the registry at every start.
#[must_use]
pub fn always_pulls(policy: Option<&str>, image: &str) -> bool {
    match policy {
        Some("Always") => true,
        Some("IfNotPresent" | "Never") => false,
        Some(_) | None => {
            matches!(image_name::tag_and_digest(image), (Some("latest"), _) | (None, None))
        }
    }
}

/// An image volume that a container mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageVolume<'a> {
    /// The volume's name.
    pub name: &'a str,
    /// `reference`
    pub image: &'a str,
    /// `pullPolicy`
    pub policy: Option<&'a str>,
    /// Whether the container mounts a part of it.
    pub has_sub_path: bool,
}

/// The image volumes that a container mounts, in the order of the pod's volumes.
pub fn image_volumes<'a>(
    pod: &'a k8s::Pod,
    container: &'a k8s::Container,
) -> impl Iterator<Item = ImageVolume<'a>> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| {
        let source = volume.image.as_ref()?;
        let mounts = container.volume_mounts.iter().flatten();
        let mut mounts = mounts.filter(|mount| mount.name == volume.name).peekable();
        mounts.peek()?;
        let is_part = |mount: &k8s::VolumeMount| {
            let paths = [&mount.sub_path, &mount.sub_path_expr];
            paths.into_iter().flatten().any(|path| !path.is_empty())
        };
        Some(ImageVolume {
            name: &volume.name,
            image: source.reference.as_deref().unwrap_or_default(),
            policy: source.pull_policy.as_deref(),
            has_sub_path: mounts.any(is_part),
        })
    })
}

/// An image that a container needs before it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeededImage<'a> {
    /// As written.
    pub image: &'a str,
    /// The pull policy, as written.
    pub policy: Option<&'a str>,
    /// Whether it is the image of a volume.
    pub of_volume: bool,
}

impl NeededImage<'_> {
    /// Whether each start asks the registry for it.
    #[must_use]
    pub fn always_pulled(&self) -> bool {
        always_pulls(self.policy, self.image)
    }
}

impl<'a> ImageVolume<'a> {
    /// Its image.
    #[must_use]
    pub fn needed(&self) -> NeededImage<'a> {
        NeededImage { image: self.image, policy: self.policy, of_volume: true }
    }
}

/// The container's own image.
#[must_use]
pub fn own_image(container: &k8s::Container) -> NeededImage<'_> {
    NeededImage {
        image: container.image.as_deref().unwrap_or_default(),
        policy: container.image_pull_policy.as_deref(),
        of_volume: false,
    }
}

/// The images of the volumes that a container mounts, and then its own: the order in which they are
/// pulled, as the kubelet does.
pub fn needed_images<'a>(
    pod: &'a k8s::Pod,
    container: &'a k8s::Container,
) -> impl Iterator<Item = NeededImage<'a>> {
    image_volumes(pod, container).map(|volume| volume.needed()).chain([own_image(container)])
}

/// Every image that a pod names: those of its containers and those of its volumes.
pub fn all_images(pod: &k8s::Pod) -> impl Iterator<Item = &str> {
    let of_containers = pod.spec.iter().flat_map(|spec| {
        let declared = spec.init_containers.iter().flatten().chain(&spec.containers);
        let ephemeral = spec.ephemeral_containers.iter().flatten();
        let images = declared.map(|container| &container.image);
        images.chain(ephemeral.map(|container| &container.image)).flatten().map(String::as_str)
    });
    let of_volumes = pod.spec.iter().flat_map(|spec| {
        let volumes = spec.volumes.iter().flatten();
        volumes.filter_map(|volume| volume.image.as_ref()?.reference.as_deref())
    });
    of_containers.chain(of_volumes)
}

/// Why the runtime can't mount an image volume. A runtime that does not know these fields of a mount
/// leaves them out without an error, so the agent must not ask it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoImageVolume {
    /// It mounts no images.
    #[error(
        "cannot mount image volume {volume:?}: {runtime} does not support image volumes; they need containerd 2.1 or CRI-O 1.31, or later"
    )]
    Unsupported {
        /// The volume's name.
        volume: String,
        /// Name and version.
        runtime: String,
    },
    /// It mounts only whole images.
    #[error(
        "cannot mount a subPath of image volume {volume:?}: {runtime} mounts only whole images; a subPath needs containerd 2.2 or CRI-O 1.33, or later"
    )]
    NoSubPath {
        /// The volume's name.
        volume: String,
        /// Name and version.
        runtime: String,
    },
}

/// Checks that the runtime with this name and version can mount the volume. CRI has no field that
/// tells, so the version decides, and a runtime of another name can't.
///
/// # Errors
/// When it can't.
pub fn check_image_volume(
    volume: &ImageVolume<'_>,
    name: &str,
    version: &str,
) -> Result<(), NoImageVolume> {
    let (whole, part) = match name {
        "containerd" => ((2, 1), (2, 2)),
        "cri-o" => ((1, 31), (1, 33)),
        _ => ((u32::MAX, 0), (u32::MAX, 0)),
    };
    let has = major_and_minor(version).unwrap_or_default();
    let (volume_name, runtime) =
        (volume.name.to_owned(), format!("{name} {version}").trim().to_owned());
    if has < whole {
        Err(NoImageVolume::Unsupported { volume: volume_name, runtime })
    } else if volume.has_sub_path && has < part {
        Err(NoImageVolume::NoSubPath { volume: volume_name, runtime })
    } else {
        Ok(())
    }
}

/// `2.1.9~ds1` and `v2.1.0-rc.1` are `(2, 1)`.
fn major_and_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> k8s::Pod {
        serde_json::from_value(json!({
            "spec": {
                "volumes": [
                    { "name": "disk", "emptyDir": {} },
                    { "name": "models", "image": { "reference": "r/models:1" } },
                    { "name": "unused", "image": { "reference": "r/unused:1" } },
                    { "name": "site", "image": { "reference": "r/site", "pullPolicy": "IfNotPresent" } },
                ],
                "containers": [{
                    "name": "web",
                    "image": "r/web:latest",
                    "volumeMounts": [
                        { "name": "site", "mountPath": "/site" },
                        { "name": "site", "mountPath": "/part", "subPath": "part" },
                        { "name": "models", "mountPath": "/models", "subPath": "" },
                        { "name": "disk", "mountPath": "/disk", "subPath": "x" },
                    ],
                }],
                "ephemeralContainers": [{ "name": "debug", "image": "r/debug:1" }],
            },
        }))
        .unwrap()
    }

    #[test]
    fn images_of_mounted_volumes_are_needed_before_the_containers_own() {
        let pod = pod();
        let web = &pod.spec.as_ref().unwrap().containers[0];
        let volumes: Vec<_> = image_volumes(&pod, web).collect();
        let seen: Vec<_> = volumes.iter().map(|v| (v.name, v.image, v.has_sub_path)).collect();
        assert_eq!(seen, [("models", "r/models:1", false), ("site", "r/site", true)]);
        let needed: Vec<_> =
            needed_images(&pod, web).map(|n| (n.image, n.always_pulled())).collect();
        assert_eq!(needed, [("r/models:1", false), ("r/site", false), ("r/web:latest", true)]);
        let all: Vec<_> = all_images(&pod).collect();
        assert_eq!(all, ["r/web:latest", "r/debug:1", "r/models:1", "r/unused:1", "r/site"]);
    }

    #[test]
    fn only_versions_that_mount_images_are_asked_to() {
        let volume =
            |has_sub_path| ImageVolume { name: "v", image: "a:1", policy: None, has_sub_path };
        let whole = |name, version| check_image_volume(&volume(false), name, version).is_ok();
        let part = |name, version| check_image_volume(&volume(true), name, version).is_ok();
        for version in ["1.6.20~ds1", "1.7.24", "v1.31.0", "v2.0.5", "", "unknown", "2"] {
            assert!(!whole("containerd", version), "{version}");
        }
        for version in ["2.1.9~ds1-5", "v2.1.0-beta.0", "v2.10.0", "3.0"] {
            assert!(whole("containerd", version), "{version}");
        }
        assert!(!part("containerd", "2.1.9") && part("containerd", "v2.2.0"));
        assert!(!whole("cri-o", "1.30.4") && whole("cri-o", "1.31.0"));
        assert!(!part("cri-o", "1.32.1") && part("cri-o", "1.33.0"));
        assert!(!whole("docker", "28.0.0") && !whole("", ""));
    }

    #[test]
    fn the_refusal_names_runtime_and_volume() {
        let volume = ImageVolume { name: "v", image: "a:1", policy: None, has_sub_path: true };
        let refused = |version| check_image_volume(&volume, "containerd", version).unwrap_err();
        assert_eq!(
            refused("1.7.24").to_string(),
            "cannot mount image volume \"v\": containerd 1.7.24 does not support image volumes; they need containerd 2.1 or CRI-O 1.31, or later"
        );
        assert_eq!(
            refused("2.1.9").to_string(),
            "cannot mount a subPath of image volume \"v\": containerd 2.1.9 mounts only whole images; a subPath needs containerd 2.2 or CRI-O 1.33, or later"
        );
    }
}
