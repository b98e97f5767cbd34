//! When a new revision of a pod takes over from the one that runs.
//!
//! ```text
//!  wished revision = running revision ─► go
//!  wished revision ≠ running revision ─► refused by admission?   ─yes─► wait
//!                                        other pods come first?  ─yes─► wait
//!                                        objects missing?        ─yes─► wait
//!                                        runtime lacks a feature? yes─► wait
//!                                        image not fetched yet?  ─yes─► wait, fetch the next one
//!                                        none of these           ─────► go
//! ```
//!
//! While the new revision waits, the worker acts on orders that wish the running one: its
//! containers restart, its probes run, and a shutdown stops it. Nothing about the wait is saved,
//! except which images were fetched: it follows from the wish, the records and the runtime. So the
//! wait survives a restart of the agent, and ends when the manifest is removed or edited.
//!
//! (The kubelet stops the old pod first. If the new image cannot be pulled, nothing runs.)

use super::{
    ContainerKind, Occupancy, PlanSettings, PodMemory, PodOrders, Wish,
    backoff::{ImageBackOff, ImageTurn},
    kill::kind_of,
};
use crate::{
    model::{
        CollectOrdered as _, ContainerState, DesiredPod, NodeObjects, Now, ObservedPod, PodUid,
        RuntimeView, k8s,
    },
    podspec::{
        NoImageVolume, NoRuntimeClass, NoUserNamespace, all_containers, are_objects_known,
        check_env_objects, check_image_volume, check_user_namespace, check_volume_objects,
        has_same_class, image_volumes, is_made_from_objects, is_mounted, is_static, needed_images,
        runtime_handler,
    },
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Everything that the decision depends on, except the time.
#[derive(Clone, Copy, Debug)]
pub struct UpdateInput<'a> {
    pub orders: &'a Arc<PodOrders>,
    /// The revision that a record names, that has not ended, and that the wished one is to replace;
    /// see [`replaces`].
    pub standing: Option<&'a Arc<DesiredPod>>,
    pub observed: &'a ObservedPod,
    pub settings: &'a PlanSettings,
    pub memory: &'a PodMemory,
    /// ConfigMaps and Secrets.
    pub objects: &'a NodeObjects,
    /// What it can do: user namespaces, image volumes.
    pub runtime: &'a RuntimeView,
}

/// What the worker is to act on.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdatePlan {
    /// The orders as they are, or orders that keep the running revision.
    pub orders: Arc<PodOrders>,
    /// Why the new revision waits.
    pub waits: Option<UpdateWait>,
    /// The image to fetch now, beside everything else.
    pub fetch: Option<Fetch>,
    /// The boot time at which to decide again without any change of the input.
    pub wake_at: Option<Duration>,
}

/// Why a new revision does not take over yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateWait {
    /// The rest of a sentence about the new revision.
    pub why: String,
    /// Something has failed or is missing; false while the agent is at work.
    pub failed: bool,
}

/// An image of the new revision that is to be made present.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetch {
    pub pod: Arc<DesiredPod>,
    /// The first container that needs the image, for itself or for a volume.
    pub container: Box<str>,
    pub kind: ContainerKind,
    /// As in the specification.
    pub image: Box<str>,
    /// False during a back-off: only check whether the image is present.
    pub pull_allowed: bool,
}

/// How a fetch has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched {
    Present,
    Failed {
        /// The waiting reason: `ErrImagePull`, ...
        reason: String,
        message: String,
    },
}

/// What is remembered of the images of a new revision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Preparation {
    uid: PodUid,
    revision: Box<str>,
    /// The images that were made present for the first start of a container. Key: container.
    fetched: BTreeMap<Box<str>, BTreeSet<Box<str>>>,
    /// Key: image as in the specification.
    failed: BTreeMap<Box<str>, ImageBackOff>,
}

impl Preparation {
    fn is_for(&self, pod: &DesiredPod) -> bool {
        self.uid == pod.uid && self.revision == pod.revision
    }

    fn has_fetched(&self, container: &k8s::Container, image: &str) -> bool {
        self.fetched.get(container.name.as_str()).is_some_and(|images| images.contains(image))
    }
}

impl PodMemory {
    /// Forgets what was prepared for another revision than the wished one.
    pub fn prepare_for(&mut self, wished: Option<&DesiredPod>) {
        self.preparation =
            self.preparation.take().filter(|known| wished.is_some_and(|pod| known.is_for(pod)));
    }

    /// Takes the outcome of a fetch in.
    pub fn fetched(&mut self, fetch: &Fetch, outcome: &Fetched, now: Now) {
        self.prepare_for(Some(&fetch.pod));
        let mut preparation = self.preparation.take().unwrap_or_else(|| {
            Box::new(Preparation {
                uid: fetch.pod.uid.clone(),
                revision: fetch.pod.revision.clone(),
                fetched: BTreeMap::new(),
                failed: BTreeMap::new(),
            })
        });
        let image = &fetch.image;
        match outcome {
            Fetched::Present => {
                preparation.failed.remove(image);
                let needs = || {
                    let all = containers(&fetch.pod.pod);
                    all.flat_map(|c| needed_images(&fetch.pod.pod, c).map(move |n| (&*c.name, n)))
                        .filter(|(_, needed)| *needed.image == **image)
                };
                // A look at an image that is present does not satisfy another container's `Always`.
                let asked = needs().any(|(name, n)| *name == *fetch.container && n.always_pulled());
                for (name, _) in needs().filter(|(_, n)| asked || !n.always_pulled()) {
                    preparation.fetched.entry(name.into()).or_default().insert(image.clone());
                }
            }
            Fetched::Failed { reason, message } => {
                let back_off = preparation.failed.entry(image.clone()).or_default();
                if fetch.pull_allowed {
                    back_off.failed(reason, message, now);
                } else {
                    back_off.looked(now);
                }
            }
        }
        self.preparation = Some(preparation);
    }

    /// True when all images were fetched for the coming first start of this container, which
    /// satisfies the pull policy `Always`.
    pub(crate) fn has_fetched(
        &self,
        uid: &PodUid,
        pod: &k8s::Pod,
        container: &k8s::Container,
    ) -> bool {
        let preparation = self.preparation.as_ref().filter(|known| known.uid == *uid);
        preparation.is_some_and(|known| {
            needed_images(pod, container).all(|needed| known.has_fetched(container, needed.image))
        })
    }

    /// A container has started. Its next start follows the pull policy again.
    pub(super) fn used_fetched(&mut self, uid: &PodUid, container: &str) {
        let Some(preparation) = self.preparation.as_mut().filter(|known| known.uid == *uid) else {
            return;
        };
        preparation.fetched.remove(container);
        if preparation.fetched.is_empty() {
            self.preparation = None;
        }
    }
}

/// True when `wished` replaces the recorded revision: it has another uid, or (with a uid from the
/// manifest) another QoS class or containers with other images. Other changes under the same uid are
/// made in place.
#[must_use]
pub fn replaces(wished: &DesiredPod, uid: &PodUid, revision: &str, recorded: &k8s::Pod) -> bool {
    if wished.uid != *uid || !has_same_class(&wished.pod, recorded) {
        return true;
    }
    let old: BTreeMap<&str, Option<&str>> =
        containers(recorded).map(|c| (c.name.as_str(), c.image.as_deref())).collect_ordered();
    *wished.revision != *revision
        && containers(&wished.pod).any(|container| {
            old.get(container.name.as_str()).is_some_and(|old| *old != container.image.as_deref())
        })
}

/// Decides whether the wished revision takes over now.
#[must_use]
pub fn plan_update(input: &UpdateInput<'_>, now: Now) -> UpdatePlan {
    let go =
        || UpdatePlan { orders: Arc::clone(input.orders), waits: None, fetch: None, wake_at: None };
    let (Wish::Run(wished), Some(standing)) = (&input.orders.wish, input.standing) else {
        return go();
    };
    // A pod of the API server changes in place, and makes way for another at once.
    let from_api = !is_static(&wished.pod) || !is_static(&standing.pod);
    let prepares = input.settings.prepare_updates && !from_api;
    let begins_anew = input.orders.wish.begins_anew(&standing.uid, &standing.pod);
    // Under one uid, a refusal of the new revision stops the old one only when it is for room.
    let hold = input.orders.hold_on(&standing.uid);
    let is_held = hold.is_some_and(|hold| !begins_anew || !hold.is_refusal());
    if !prepares || is_held || !has_run(input, standing) {
        return go();
    }
    let waits = |why, failed| UpdatePlan {
        orders: Arc::new(keeping(input.orders, standing)),
        waits: Some(UpdateWait { why, failed }),
        ..go()
    };
    if let Some(hold) = input.orders.hold_on(&wished.uid) {
        // Room may be short because of the old revision, also for the pods that were given it.
        if hold.is_for_room() {
            return go();
        }
        return waits(hold.message.clone(), true);
    }
    let anew = wished.uid != standing.uid || begins_anew;
    if let Some(why) = input.orders.after.as_deref().filter(|_| anew) {
        return waits(why.to_owned(), false);
    }
    match missing_objects(&wished.pod, input.objects) {
        Some(_) if !are_objects_known(&wished.pod, input.objects) => {
            return waits("ConfigMaps and Secrets have not been read yet".to_owned(), false);
        }
        Some(missing) => return waits(missing, true),
        None => {}
    }
    if let Err(lacks) = check_runtime(&wished.pod, input) {
        return waits(lacks.to_string(), true);
    }
    match next_image(wished, input.memory, now) {
        Images::Present => go(),
        Images::Fetch { fetch, failure } => {
            let failed = failure.is_some();
            let why = failure.unwrap_or_else(|| format!("fetching image {:?}", fetch.image));
            UpdatePlan { fetch: Some(fetch), ..waits(why, failed) }
        }
        Images::Wait { until, failure } => {
            UpdatePlan { wake_at: Some(until), ..waits(failure, true) }
        }
    }
}

/// True when there is something to lose: a container of the running revision has started. It may be
/// an init container that has worked for an hour. A pod that waits for its first image, for example,
/// is replaced at once.
fn has_run(input: &UpdateInput<'_>, standing: &DesiredPod) -> bool {
    let own = Occupancy::new(input.observed, &input.settings.owner).own(&standing.uid, true);
    let mut containers = standing.pod.spec.iter().flat_map(all_containers);
    // Whether it runs now does not matter: it may crash, or the machine may have gone down.
    input.memory.is_proven(&standing.uid)
        || containers.any(|container| {
            let newest = own.newest(&container.name);
            newest.is_some_and(|instance| instance.state != ContainerState::Created)
        })
}

/// Orders that keep the running revision.
fn keeping(orders: &PodOrders, standing: &Arc<DesiredPod>) -> PodOrders {
    PodOrders {
        wish: Wish::Run(Arc::clone(standing)),
        // These are about the wished revision.
        hold: None,
        waits: None,
        resize_wait: None,
        ..orders.clone()
    }
}

/// The references of the pod that nothing provides, in one sentence.
fn missing_objects(pod: &k8s::Pod, objects: &NodeObjects) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let volumes = spec.volumes.iter().flatten();
    let volumes =
        volumes.filter(|volume| is_made_from_objects(volume) && is_mounted(spec, &volume.name));
    let of_volumes = volumes.filter_map(|volume| {
        let error = check_volume_objects(pod, volume, objects).err()?;
        Some(format!("volume {:?}: {error}", volume.name))
    });
    let of_env = containers(pod).filter_map(|container| {
        let error = check_env_objects(pod, container, objects).err()?;
        Some(format!("container {:?}: {error}", container.name))
    });
    let missing: Vec<String> = of_volumes.chain(of_env).collect();
    (!missing.is_empty()).then(|| missing.join("; "))
}

/// What a pod asks of the runtime in vain.
#[derive(Debug, thiserror::Error)]
enum RuntimeLacks {
    #[error(transparent)]
    RuntimeClass(#[from] NoRuntimeClass),
    #[error(transparent)]
    UserNamespace(#[from] NoUserNamespace),
    #[error(transparent)]
    ImageVolume(#[from] NoImageVolume),
}

/// Checks that the runtime can do what the pod asks of it.
fn check_runtime(pod: &k8s::Pod, input: &UpdateInput<'_>) -> Result<(), RuntimeLacks> {
    let runtime = input.runtime;
    let handler = runtime_handler(pod, &input.settings.runtime_classes, input.objects)?;
    check_user_namespace(pod, runtime, handler)?;
    for volume in containers(pod).flat_map(|container| image_volumes(pod, container)) {
        check_image_volume(&volume, &runtime.name, &runtime.version)?;
    }
    Ok(())
}

enum Images {
    Present,
    Fetch { fetch: Fetch, failure: Option<String> },
    Wait { until: Duration, failure: String },
}

/// The next image to fetch. The first failure is told until that image is present.
fn next_image(wished: &Arc<DesiredPod>, memory: &PodMemory, now: Now) -> Images {
    let known = memory.preparation.as_ref().filter(|known| known.is_for(wished));
    let mut failure = None;
    let mut until: Option<Duration> = None;
    let needed = containers(&wished.pod)
        .flat_map(|container| needed_images(&wished.pod, container).map(move |n| (container, n)));
    for (container, needed) in needed {
        let image = needed.image;
        if known.is_some_and(|known| known.has_fetched(container, image)) {
            continue;
        }
        let mut pull_allowed = true;
        if let Some(back_off) = known.and_then(|known| known.failed.get(image)) {
            failure.get_or_insert_with(|| format!("{}: {}", back_off.reason, back_off.message));
            match back_off.turn(!needed.always_pulled(), now) {
                ImageTurn::Pull => {}
                ImageTurn::Look => pull_allowed = false,
                ImageTurn::Wait(at) => {
                    until = Some(until.map_or(at, |known| known.min(at)));
                    continue;
                }
            }
        }
        let fetch = Fetch {
            pod: Arc::clone(wished),
            container: container.name.as_str().into(),
            kind: kind_of(Some(&wished.pod), &container.name),
            image: image.into(),
            pull_allowed,
        };
        return Images::Fetch { fetch, failure };
    }
    match (until, failure) {
        (Some(until), Some(failure)) => Images::Wait { until, failure },
        (_, _) => Images::Present,
    }
}

/// The containers of a revision. Ephemeral containers are left out: they are no part of the
/// manifest, and one that is added to a pod starts beside the others.
fn containers(pod: &k8s::Pod) -> impl Iterator<Item = &k8s::Container> {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_ref()).into_iter().flatten();
    init.chain(spec.map(|spec| spec.containers.as_slice()).unwrap_or_default())
}
