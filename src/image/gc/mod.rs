//! Removing unused images: to keep their file system below a threshold, because they were not used
//! for very long, or because the disk is short.
//!
//! `core` (pure) decides which and in what order, and knows what is remembered ([`ImageHistory`],
//! which the caller keeps on disk). Here the runtime is asked and told. When to do it is the
//! caller's business:
//!
//! ```text
//! every 5 min       look ─► history.observe ─► to_free, too_old ─► remove
//! disk pressure     look ─► history.observe ─► everything in plan ─► remove until enough is free
//! ```

mod core;

pub use core::{
    EndedPull, GcPlan, GcSettings, ImageHistory, InUse, KeptBecause, Present, Removable, failed,
    not_enough, plan, to_free,
};

use crate::{
    clock,
    cri::{CriError, RuntimeClient, annotation, v1},
};
use std::time::Duration;
use tokio::sync::oneshot;

/// What the runtime has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageListing {
    /// Boot time at which it was asked.
    pub began: Duration,
    /// Every image.
    pub present: Vec<Present>,
    /// What containers have, running or dead. What manifests name is for the caller to add.
    pub in_use: InUse,
}

/// Asks the runtime for all images and containers, including those of other programs, and for the
/// image of sandboxes. The images of volumes are those of this agent's containers. Containers are
/// asked for last, so that no image is in use that was not
/// listed.
///
/// # Errors
/// As every read: see [`CriError`].
///
/// # Cancel safety
/// Nothing is lost.
pub async fn look(client: &RuntimeClient) -> Result<ImageListing, CriError> {
    let began = clock::now().boot;
    let present = client.list_images().await?.into_iter().map(present).collect();
    let containers = client.list_containers(crate::cri::ListFilter::All).await?;
    let mut in_use = InUse::default();
    for container in containers {
        note_images(&mut in_use, container);
    }
    if let Some(image) = client.sandbox_image().await {
        in_use.by_container(&image);
    }
    Ok(ImageListing { began, present, in_use })
}

/// The image of a container, and those of the image volumes that it mounts.
fn note_images(in_use: &mut InUse, container: v1::Container) {
    let asked = container.image.unwrap_or_default();
    let names = [
        asked.image,
        asked.image_ref,
        asked.user_specified_image,
        container.image_ref,
        container.image_id,
    ];
    let of_volumes = container.annotations.get(annotation::IMAGE_VOLUMES);
    let of_volumes = of_volumes.into_iter().flat_map(|ids| ids.split(','));
    let names = names.iter().map(String::as_str).chain(of_volumes);
    names.filter(|name| !name.is_empty()).for_each(|name| in_use.by_container(name));
}

fn present(image: v1::Image) -> Present {
    Present {
        id: image.id,
        tags: image.repo_tags,
        digests: image.repo_digests,
        size: image.size,
        pinned: image.pinned,
    }
}

/// What removing images has brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Those that are gone.
    pub removed: Vec<Removable>,
    /// Those that the runtime did not remove: name and why.
    pub refused: Vec<(String, String)>,
    /// The sizes of those that are gone. Layers that other images share are counted and stay.
    pub expected: u64,
    /// What has become free meanwhile; `None` where that could not be measured. Others may have
    /// written.
    pub measured: Option<u64>,
}

impl Freed {
    /// The best that is known of it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.measured.unwrap_or(self.expected)
    }
}

/// A request to remove unused images.
#[derive(Debug)]
pub struct FreeRequest {
    /// How much to free, in bytes; `None`: remove all unused images.
    pub wanted: Option<u64>,
    /// Takes the result. When it is closed, the images don't have to be removed any more.
    pub answer: oneshot::Sender<Freed>,
}

/// Removes images one by one in their order until `wanted` bytes have become free, all of them
/// where that is `None`. `is_named` says whether a manifest names an image by now; such an image
/// stays. `available` tells the free bytes of the images' file system; it is asked before the first
/// and after each.
///
/// # Cancel safety
/// None: dropping it cuts off the removal that is under way. Have it in a task of its own, and
/// awaited.
pub async fn remove<A: Future<Output = Option<u64>>>(
    client: &RuntimeClient,
    order: &[Removable],
    wanted: Option<u64>,
    is_named: impl Fn(&Present) -> bool,
    available: impl Fn() -> A,
) -> Freed {
    let remove = |id: String| {
        let client = client.clone();
        async move { client.remove_image(&id).await }
    };
    remove_by(remove, order, wanted, is_named, available).await
}

async fn remove_by<R, A>(
    remove: impl Fn(String) -> R,
    order: &[Removable],
    wanted: Option<u64>,
    is_named: impl Fn(&Present) -> bool,
    available: impl Fn() -> A,
) -> Freed
where
    R: Future<Output = Result<(), CriError>>,
    A: Future<Output = Option<u64>>,
{
    let mut freed = Freed::default();
    if order.is_empty() {
        return freed;
    }
    let before = available().await;
    for removable in order {
        let image = &removable.image;
        if wanted.is_some_and(|wanted| freed.bytes() >= wanted) {
            break;
        }
        if is_named(image) {
            tracing::debug!(image = image.name(), id = %image.id, "a manifest needs the image now");
            continue;
        }
        match remove(image.id.clone()).await {
            Ok(()) => {
                tracing::info!(image = image.name(), id = %image.id, size = image.size, "removed an image");
                freed.expected = freed.expected.saturating_add(image.size);
                freed.removed.push(removable.clone());
            }
            Err(err) => {
                tracing::warn!(image = image.name(), id = %image.id, %err, "cannot remove an image");
                freed.refused.push((image.name().to_owned(), err.to_string()));
            }
        }
        let now = available().await;
        freed.measured = before.zip(now).map(|(before, now)| now.saturating_sub(before));
    }
    freed
}

#[cfg(test)]
mod tests;
