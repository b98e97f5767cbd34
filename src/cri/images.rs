//! Calls of the image service.

use super::{
    CriError, RuntimeClient,
    client::{gone_is_done, within},
    v1,
};
use crate::{metrics::metrics, model::ImagesUse};
use std::{collections::BTreeMap, future::Future, path::PathBuf};
use tokio::time::Instant;
use tonic::{Response, Status};

/// An image that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFound {
    /// The runtime's id, which containers are made from.
    pub id: String,
    /// Its tags and digests, in full.
    pub names: Vec<String>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Numeric user of the image.
    pub uid: Option<i64>,
    /// User name of the image, when it is no number.
    pub username: String,
}

/// Where images and writable layers lie: a directory on each of their file systems, as the runtime
/// tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageFilesystems {
    /// Of images.
    pub images: Vec<PathBuf>,
    /// Of writable layers; runtimes that don't tell have them with the images.
    pub containers: Vec<PathBuf>,
    /// What all images take.
    pub images_use: ImagesUse,
}

impl RuntimeClient {
    /// Every image that is present.
    ///
    /// # Errors
    /// As every read: see [`CriError`].
    pub async fn list_images(&self) -> Result<Vec<v1::Image>, CriError> {
        let mut images = self.images.clone();
        let call = images.list_images(v1::ListImagesRequest::default());
        Ok(self.read_image("ListImages", call).await?.images)
    }

    /// Removes an image with every name that it has. Removing an unknown one succeeds.
    ///
    /// # Errors
    /// See [`CriError`].
    ///
    /// # Cancel safety
    /// None: dropping it cancels the call half-way inside the runtime.
    pub async fn remove_image(&self, id: &str) -> Result<(), CriError> {
        let request = v1::RemoveImageRequest { image: Some(image_spec(id, None)) };
        let mut images = self.images.clone();
        let error = |s: Status| CriError::from_status(&s, "RemoveImage", &self.image_endpoint);
        let begun = Instant::now();
        let removed = images.remove_image(request).await;
        metrics().runtime_called("RemoveImage", begun.elapsed(), removed.is_err());
        gone_is_done(removed.map_err(error))
    }

    /// Where images and writable layers lie.
    ///
    /// # Errors
    /// As every read: see [`CriError`].
    pub async fn image_filesystems(&self) -> Result<ImageFilesystems, CriError> {
        let mut images = self.images.clone();
        let call = images.image_fs_info(v1::ImageFsInfoRequest {});
        let answer = self.read_image("ImageFsInfo", call).await?;
        let paths = |all: Vec<v1::FilesystemUsage>| -> Vec<PathBuf> {
            let named = all.into_iter().filter_map(|one| Some(one.fs_id?.mountpoint));
            named.filter(|path| path.starts_with('/')).map(PathBuf::from).collect()
        };
        let sum = |part: fn(&v1::FilesystemUsage) -> Option<&v1::UInt64Value>| {
            let told = answer.image_filesystems.iter().filter_map(part).map(|part| part.value);
            // containerd tells of nothing before it has measured that.
            told.reduce(u64::saturating_add).filter(|sum| *sum > 0)
        };
        let bytes = sum(|one| one.used_bytes.as_ref());
        let images_use = ImagesUse { bytes, inodes: sum(|one| one.inodes_used.as_ref()) };
        let images = paths(answer.image_filesystems);
        let containers = paths(answer.container_filesystems);
        Ok(ImageFilesystems {
            containers: if containers.is_empty() { images.clone() } else { containers },
            images,
            images_use,
        })
    }

    /// Looks for an image; `None` when it is not present.
    ///
    /// # Errors
    /// As every read: see [`CriError`].
    pub async fn image_status(&self, image: &str) -> Result<Option<ImageFound>, CriError> {
        let request =
            v1::ImageStatusRequest { image: Some(image_spec(image, None)), verbose: false };
        let mut images = self.images.clone();
        let answer = self.read_image("ImageStatus", images.image_status(request)).await?;
        Ok(answer.image.map(|found| ImageFound {
            id: found.id,
            names: found.repo_tags.into_iter().chain(found.repo_digests).collect(),
            size_bytes: found.size,
            uid: found.uid.map(|uid| uid.value),
            username: found.username,
        }))
    }

    /// Pulls an image and returns its reference. Dropping the future cancels the pull, which is
    /// how a pull ends whose pod went away.
    ///
    /// # Errors
    /// See [`CriError`].
    pub async fn pull_image(
        &self,
        image: &str,
        auth: Option<v1::AuthConfig>,
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String, CriError> {
        let annotations = sandbox_config.as_ref().map(|config| &config.annotations);
        let image = Some(image_spec(image, annotations));
        let request = v1::PullImageRequest { image, auth, sandbox_config };
        let mut images = self.images.clone();
        let begun = Instant::now();
        let answer = images.pull_image(request).await;
        metrics().runtime_called("PullImage", begun.elapsed(), answer.is_err());
        let error = |s: Status| CriError::from_status(&s, "PullImage", &self.image_endpoint);
        Ok(answer.map_err(error)?.into_inner().image_ref)
    }

    async fn read_image<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CriError> {
        within(self.read_deadline, call, &self.image_endpoint, answer).await
    }
}

fn image_spec(image: &str, annotations: Option<&BTreeMap<String, String>>) -> v1::ImageSpec {
    v1::ImageSpec {
        image: image.to_owned(),
        annotations: annotations.cloned().unwrap_or_default(),
        ..Default::default()
    }
}
