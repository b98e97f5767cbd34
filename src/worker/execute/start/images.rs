//! Makes the images of a container and of its image volumes present.

use super::Start;
use crate::{
    cri::ImageFound,
    image::{ImageEvent, PullConfig, PullConfigError, PullPolicy, PullRequest},
    model::DataObject,
    plan::{Failure, Pull, Step},
    podspec::{ImageVolume, NeededImage, check_image_volume, image_volumes, is_static, own_image},
    worker::execute::{fetch::pull_secrets, sandbox},
};
use std::{collections::BTreeMap, sync::Arc};

/// The images that a container is made from.
pub(super) struct Images {
    /// Its own.
    pub(super) own: ImageFound,
    pub(super) of_volumes: VolumeImages,
}

/// By the name of each image volume that the container mounts.
pub(super) type VolumeImages = BTreeMap<String, ImageOfVolume>;

/// An image that is mounted.
#[derive(Clone)]
pub(super) struct ImageOfVolume {
    /// The runtime's id.
    pub(super) id: String,
    /// As written.
    pub(super) reference: String,
}

impl Start<'_> {
    /// Makes all images present according to their pull policies, those of volumes first. A pull may
    /// take for ever, so it is cancelled when the pod or the image is no longer wanted, when a person
    /// wants other containers of the pod restarted, and when a new revision begins a pull and none
    /// has failed.
    pub(super) async fn images(&self) -> Result<Images, Box<Failure>> {
        let volumes: Vec<ImageVolume<'_>> = image_volumes(self.pod, self.container).collect();
        self.check_runtime(&volumes)?;
        let secrets = pull_secrets(self.host, self.request, self.pod);
        let mut of_volumes = VolumeImages::new();
        for volume in volumes {
            let id = self.image(volume.needed(), &secrets).await?.id;
            let found = ImageOfVolume { id, reference: volume.image.to_owned() };
            of_volumes.insert(volume.name.to_owned(), found);
        }
        Ok(Images { own: self.image(own_image(self.container), &secrets).await?, of_volumes })
    }

    /// Fails when the runtime can't mount the image volumes. A runtime that does not know them
    /// would start the container without them.
    fn check_runtime(&self, volumes: &[ImageVolume<'_>]) -> Result<(), Box<Failure>> {
        let health = self.host.pleg.health();
        let health = health.borrow();
        let (name, version) = (&health.runtime.name, &health.runtime.version);
        volumes
            .iter()
            .try_for_each(|volume| check_image_volume(volume, name, version))
            .map_err(|unsupported| self.config_failed(unsupported.to_string()))
    }

    async fn image(
        &self,
        needed: NeededImage<'_>,
        secrets: &[Arc<DataObject>],
    ) -> Result<ImageFound, Box<Failure>> {
        let NeededImage { image, policy, of_volume } = needed;
        let request = PullRequest {
            image,
            policy: match self.action.pull {
                Pull::ByPolicy | Pull::NotNow(_) => PullPolicy::of(policy, image),
                Pull::Fetched => PullPolicy::IfNotPresent,
            },
            pull_allowed: match &self.action.pull {
                Pull::NotNow(delayed) => !delayed.iter().any(|delayed| **delayed == *image),
                Pull::ByPolicy | Pull::Fetched => true,
            },
            accept_present: is_static(self.pod),
            pull_secrets: secrets,
        };
        let step = |pull_tried| Step::Image {
            container: self.action.name.clone(),
            image: image.into(),
            pull_tried,
        };
        let mut record = |ImageEvent { kind, reason, message }: ImageEvent| {
            // The events of volumes name only the pod, as the kubelet's.
            if of_volume {
                self.host.record(self.request, kind, reason, message);
            } else {
                self.event(kind, reason, message);
            }
        };
        let attempt = self.sandbox()?.attempt;
        let config = || -> PullConfig<'_> {
            Box::pin(async move {
                let made = sandbox::config(self.host, self.request, self.pod, attempt).await;
                made.map(|(config, _)| config)
                    .map_err(|error| PullConfigError { message: error.message() })
            })
        };
        // Both are cancel-safe: a dropped pull is cancelled in the runtime as well.
        tokio::select! {
            found = self.host.images.ensure(&request, &config, &mut record) => {
                found.map_err(|failed| {
                    let (step, reason) = (step(failed.pull_tried), failed.reason.as_str());
                    Box::new(self.request.failure(step, reason, failed.message))
                })
            }
            () = self.request.cancel_pull.cancelled() => {
                let (step, why) = match self.request.cancel.is_cancelled() {
                    true => (Step::Cancelled, "it is not wanted any more, or the agent stops"),
                    // A failure, so that the next pull waits and what goes first does.
                    false => (step(false), "a restart or a new revision of the pod goes first"),
                };
                let message = format!("the pull was cancelled: {why}");
                Err(Box::new(self.request.failure(step, "ErrImagePull", message)))
            }
        }
    }
}
