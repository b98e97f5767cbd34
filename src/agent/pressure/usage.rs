//! What pods use, asked when a decision needs it.

use super::{PressureTask, relief::has_local_limit};
use crate::{
    cri::WritePlaces,
    model::{
        ContainerId, DiskLayout, Evicted, HoldStop, PodKey, PodUse, PodView, Space, k8s,
        priority_of,
    },
    podspec::pod_cgroup_name,
    pressure::core::{Acting, Candidate},
    signals::{ContainerPlaces, Measurer, Parts, PodPlaces},
    worker::PodViews,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

/// How long the directories of a pod together, or one container's writable layer, may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Containers whose writable layers are asked for at a time.
const LAYERS: usize = 8;
/// How long all of them together may take.
const LAYERS_PATIENCE: Duration = Duration::from_secs(10);
/// How long the runtime may take to tell where containers write that were not seen before.
const PLACES_PATIENCE: Duration = Duration::from_secs(2);

/// A pod that may be evicted, with what it uses.
pub(super) struct Measured {
    pub view: Arc<PodView>,
    pub pod: Arc<k8s::Pod>,
    pub usage: PodUse,
    /// What could not be measured, or in part, a sentence each.
    pub missing: Vec<String>,
}

impl Measured {
    pub(super) fn candidate(&self) -> Candidate<'_> {
        Candidate {
            pod: &self.pod,
            key: &self.view.key,
            uid: &self.view.uid,
            priority: priority_of(&self.pod),
            api_pod: false,
            usage: &self.usage,
        }
    }
}

/// What pods are measured for.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// Something is short.
    Relief { acting: Acting, layout: DiskLayout },
    /// Limits of their own.
    Limits { layout: DiskLayout },
}

/// A measurement that takes its time.
pub(super) struct Survey {
    pub purpose: Purpose,
    pub pods: Vec<Measured>,
    /// Where containers write, of those for which that was not known.
    pub found: WritePlacesOf,
}

/// Where containers write, as the runtime has told.
pub(super) type WritePlacesOf = BTreeMap<ContainerId, WritePlaces>;

/// A pod and where it is measured.
pub(super) type Place = (Arc<PodView>, Arc<k8s::Pod>, PodPlaces);

impl PressureTask {
    /// Every pod that has not ended, is not going, and passes.
    pub(super) fn candidates(&self, wanted: impl Fn(&k8s::Pod) -> bool) -> Vec<Place> {
        let away = self.inputs.evictions.away();
        let gone = |view: &PodView| away.values().any(|evicted| evicted.uid == view.uid);
        self.live(|view, pod| !gone(view) && wanted(pod))
    }

    /// Those of whom that is still true: measuring took its time.
    pub(super) fn still_there(&self, mut measured: Vec<Measured>) -> Vec<Measured> {
        let (views, away) = (self.inputs.pods.borrow(), self.inputs.evictions.away());
        measured.retain(|one| is_still_there(&one.view, &views, &away));
        measured
    }

    /// Those that were evicted, were given time for it, and have not ended.
    pub(super) fn going(&self) -> Vec<Place> {
        let away = self.inputs.evictions.away();
        self.live(|view, _| {
            let evicted = away.get(&view.key).filter(|evicted| evicted.uid == view.uid);
            evicted.is_some_and(|evicted| evicted.hold.stop != HoldStop::AtOnce)
        })
    }

    fn live(&self, wanted: impl Fn(&PodView, &k8s::Pod) -> bool) -> Vec<Place> {
        let views = Arc::clone(&self.inputs.pods.borrow());
        let live = views.values().filter(|view| !has_ended(view));
        live.filter_map(|view| {
            let pod = view.pod.as_ref().filter(|pod| wanted(view, pod))?;
            Some((Arc::clone(view), Arc::clone(pod), self.places(view, pod)))
        })
        .collect()
    }

    /// Memory and process ids: microseconds for a pod. Where nothing runs, what a cgroup shows is
    /// the runtime, at work to start something.
    pub(super) async fn measure_cgroups(&self, mut pods: Vec<Place>) -> Vec<Measured> {
        pods.retain(|(view, _, places)| {
            runs(view) || places.volumes.iter().any(|volume| volume.in_memory)
        });
        let nothing = async { BTreeMap::new() };
        measure(&self.measurer, pods, Parts::Cgroups, nothing).await
    }

    /// Begins to measure everything of pods, beside the loop. Where the containers of all pods
    /// write is asked whoever is measured: it is to be known when the runtime hangs.
    pub(super) fn survey(&mut self, purpose: Purpose) {
        let everyone = self.candidates(|_| true);
        let ids: BTreeSet<ContainerId> = everyone.iter().flat_map(|(_, _, pod)| ids(pod)).collect();
        self.write_places.retain(|id, _| ids.contains(id));
        let known = self.write_places.clone();
        let unknown: Vec<ContainerId> =
            ids.into_iter().filter(|id| !known.contains_key(id)).collect();
        let mut pods = match purpose {
            Purpose::Relief { .. } => everyone,
            Purpose::Limits { .. } => self.candidates(has_local_limit),
        };
        let told = Arc::clone(&self.inputs.disks.latest.borrow().told);
        let (measurer, host) = (self.measurer.clone(), Arc::clone(&self.inputs.host));
        self.surveys.spawn(async move {
            let asked = host.runtime.all_write_places(&unknown, LAYERS, PLACES_PATIENCE);
            let found = asked.await;
            let mut without = Vec::new();
            for (_, _, pod) in &mut pods {
                let written = |id: &ContainerId| known.get(id).or_else(|| found.get(id));
                set_places(pod, written, &told);
                let others = pod.containers.iter().filter(|container| container.layer.is_none());
                without.extend(others.filter_map(|container| container.id.clone()));
            }
            let layers = async {
                let asked = host.runtime.writable_layers(&without, LAYERS, PATIENCE);
                // With a runtime that hangs: nobody's layer is known.
                let layers = tokio::time::timeout(LAYERS_PATIENCE, asked).await.unwrap_or_default();
                let known = layers.into_iter();
                known.filter_map(|(id, layer)| Some((id, layer.ok()?.space))).collect()
            };
            let pods = measure(&measurer, pods, Parts::Everything, layers).await;
            Survey { purpose, pods, found }
        });
    }

    fn places(&self, view: &PodView, pod: &k8s::Pod) -> PodPlaces {
        let host = &self.inputs.host;
        let statuses = view.status.container_statuses.iter().flatten();
        let init = view.status.init_container_statuses.iter().flatten();
        let containers = statuses.chain(init).map(|status| {
            let id = status.container_id.as_deref().and_then(|id| id.split_once("://"));
            let name = status.name.as_str().into();
            let id = id.map(|(_, id)| ContainerId::from(id));
            ContainerPlaces { name, id, layer: None }
        });
        PodPlaces {
            key: view.key.clone(),
            uid: view.uid.clone(),
            cgroup: host.cgroups.pod_dirs(&pod_cgroup_name(pod)),
            containers: containers.collect(),
            volumes: host.volumes.empty_dirs(pod, &view.uid).unwrap_or_default(),
            logs: host.files.pod_log_dir(&view.key, &view.uid).ok(),
            files: host.volumes.pod_dir(&view.uid).ok(),
            runtime_files: Vec::new(),
            runtime_dirs: Vec::new(),
        }
    }
}

fn ids(pod: &PodPlaces) -> impl Iterator<Item = ContainerId> {
    pod.containers.iter().filter_map(|container| container.id.clone())
}

/// Takes in where the containers of a pod write, as far as that lies in directories that the
/// runtime has `told`.
fn set_places<'a>(
    pod: &mut PodPlaces,
    written: impl Fn(&ContainerId) -> Option<&'a WritePlaces>,
    told: &[PathBuf],
) {
    // Containers share the files of their sandbox.
    let (mut files, mut dirs) = (BTreeSet::new(), BTreeSet::new());
    for container in &mut pod.containers {
        let Some(places) = container.id.as_ref().and_then(&written) else { continue };
        container.layer = places.layer(told).map(PathBuf::from);
        files.extend(places.files(told).map(PathBuf::from));
        dirs.extend(places.volumes(told).map(PathBuf::from));
    }
    pod.runtime_files = files.into_iter().collect();
    pod.runtime_dirs = dirs.into_iter().collect();
}

async fn measure(
    measurer: &Measurer,
    pods: Vec<Place>,
    parts: Parts,
    layers: impl Future<Output = BTreeMap<ContainerId, Space>>,
) -> Vec<Measured> {
    let places: Vec<PodPlaces> = pods.iter().map(|(_, _, place)| place.clone()).collect();
    let measured = measurer.measure(&places, parts, PATIENCE, layers).await;
    let together = pods.into_iter().zip(measured);
    together
        .map(|((view, pod, _), measured)| {
            for missing in &measured.missing {
                tracing::debug!(pod = %view.key, "not measured: {missing}");
            }
            Measured { view, pod, usage: measured.usage, missing: measured.missing }
        })
        .collect()
}

/// Whether the pod of an earlier view has neither ended nor been evicted meanwhile.
fn is_still_there(before: &PodView, views: &PodViews, away: &BTreeMap<PodKey, Evicted>) -> bool {
    let same = |view: &&Arc<PodView>| view.uid == before.uid && !has_ended(view);
    let evicted = away.get(&before.key).is_some_and(|evicted| evicted.uid == before.uid);
    views.get(&before.key).filter(same).is_some() && !evicted
}

/// Whether a container of it runs.
fn runs(view: &PodView) -> bool {
    let statuses = view.status.container_statuses.iter().flatten();
    let mut all = statuses.chain(view.status.init_container_statuses.iter().flatten());
    all.any(|container| container.state.as_ref().is_some_and(|state| state.running.is_some()))
}

/// Whether its containers have ended for good, or nothing of it is left.
pub(super) fn has_ended(view: &PodView) -> bool {
    matches!(view.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Hold;

    fn view(uid: &str, phase: &str) -> PodView {
        let status = k8s::PodStatus { phase: Some(phase.to_owned()), ..k8s::PodStatus::default() };
        PodView {
            key: PodKey::new("default", "web"),
            uid: uid.into(),
            pod: None,
            status: Arc::new(status),
            origin: None,
            terminating: false,
            hung: None,
            waiting: None,
        }
    }

    #[test]
    fn who_has_gone_while_it_was_measured_does_not_count() {
        let measured = view("a", "Running");
        let now = |uid: &str, phase: &str| -> PodViews {
            BTreeMap::from([(measured.key.clone(), Arc::new(view(uid, phase)))])
        };
        let evicted = |uid: &str| {
            let hold = Hold {
                reason: String::new(),
                message: String::new(),
                stop: HoldStop::Within(1),
                disruption: None,
            };
            BTreeMap::from([(
                measured.key.clone(),
                Evicted { uid: uid.into(), hold: Arc::new(hold) },
            )])
        };
        let nobody = BTreeMap::new();
        for (what, views, away, there) in [
            ("it runs", now("a", "Running"), nobody.clone(), true),
            ("it has ended", now("a", "Failed"), nobody.clone(), false),
            ("another runs", now("b", "Running"), nobody.clone(), false),
            ("nothing is left", PodViews::new(), nobody, false),
            ("it was evicted", now("a", "Running"), evicted("a"), false),
            ("an older one was", now("a", "Running"), evicted("b"), true),
        ] {
            assert_eq!(is_still_there(&measured, &views, &away), there, "{what}");
        }
    }
}
