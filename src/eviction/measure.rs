//! Measures what pods use, when a decision needs it.

use super::EvictionParts;
use crate::{
    cri::WritePlaces,
    model::{ContainerId, PodView, PodViews, Space, k8s},
    pressure::core::{MeasurePurpose, MeasuredPod},
    signals::{Measurer, Parts, PodPlaces},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

/// How long the directories of a pod together, or one container's writable layer, may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The number of containers whose writable layers are asked for at a time.
const LAYERS: usize = 8;
/// How long all writable layers together may take.
const LAYERS_PATIENCE: Duration = Duration::from_secs(10);
/// How long the runtime may take to say where new containers write.
const PLACES_PATIENCE: Duration = Duration::from_secs(2);

/// The directories and files of containers, as the runtime has reported them.
pub(super) type WritePlacesById = BTreeMap<ContainerId, WritePlaces>;

/// The result of a measurement.
pub(super) struct PodMeasurement {
    pub purpose: MeasurePurpose,
    pub pods: Vec<MeasuredPod>,
    /// The paths of containers whose paths were not known before.
    pub write_places: WritePlacesById,
}

/// A pod and where it is measured.
struct PodPlace {
    view: Arc<PodView>,
    pod: Arc<k8s::Pod>,
    places: PodPlaces,
}

/// Measures what pods use.
#[derive(Default)]
pub(super) struct PodMeasurer {
    measurer: Measurer,
    write_places: WritePlacesById,
}

impl PodMeasurer {
    /// Keeps the paths that containers write to, so that they are known while the runtime hangs.
    pub(super) fn remember(&mut self, mut found: WritePlacesById) {
        self.write_places.append(&mut found);
    }

    /// The future of a measurement of `pods`. For disks, the runtime is asked where the containers
    /// of `everyone` write, not only of the measured pods.
    pub(super) fn measure(
        &mut self,
        parts: &EvictionParts,
        purpose: MeasurePurpose,
        pods: &[Arc<PodView>],
        everyone: &PodViews,
        runtime_dirs: Arc<[PathBuf]>,
    ) -> impl Future<Output = PodMeasurement> + Send + use<> {
        let mut places: Vec<PodPlace> = pods.iter().filter_map(|v| place_of(parts, v)).collect();
        let measurer = self.measurer.clone();
        let unknown = match purpose {
            MeasurePurpose::Cgroups => Vec::new(),
            MeasurePurpose::Disk | MeasurePurpose::Limits => self.unknown_containers(everyone),
        };
        let known = self.write_places.clone();
        let runtime = parts.runtime.clone();
        async move {
            if purpose == MeasurePurpose::Cgroups {
                let nothing = async { BTreeMap::new() };
                let pods = measure(&measurer, places, Parts::Cgroups, nothing).await;
                return PodMeasurement { purpose, pods, write_places: WritePlacesById::new() };
            }
            let asked = runtime.all_write_places(&unknown, LAYERS, PLACES_PATIENCE);
            let write_places = asked.await;
            let mut without = Vec::new();
            for PodPlace { places, .. } in &mut places {
                let written = |id: &ContainerId| known.get(id).or_else(|| write_places.get(id));
                set_places(places, written, &runtime_dirs);
                let others = places.containers.iter().filter(|one| one.layer.is_none());
                without.extend(others.filter_map(|container| container.id.clone()));
            }
            let layers = async {
                let asked = runtime.writable_layers(&without, LAYERS, PATIENCE);
                // No writable layer is known while the runtime hangs.
                let layers = tokio::time::timeout(LAYERS_PATIENCE, asked).await.unwrap_or_default();
                let known = layers.into_iter();
                known.filter_map(|(id, layer)| Some((id, layer.ok()?.space))).collect()
            };
            let pods = measure(&measurer, places, Parts::Everything, layers).await;
            PodMeasurement { purpose, pods, write_places }
        }
    }

    /// The containers of pods that have not ended for which it is unknown where they write.
    /// Forgets all containers that are gone.
    fn unknown_containers(&mut self, everyone: &PodViews) -> Vec<ContainerId> {
        let live = everyone.values().filter(|view| !view.ended);
        let ids =
            live.flat_map(|view| view.containers.iter().map(|container| container.id.clone()));
        let ids: BTreeSet<ContainerId> = ids.collect();
        self.write_places.retain(|id, _| ids.contains(id));
        ids.into_iter().filter(|id| !self.write_places.contains_key(id)).collect()
    }
}

fn place_of(parts: &EvictionParts, view: &Arc<PodView>) -> Option<PodPlace> {
    let pod = Arc::clone(view.pod.as_ref()?);
    let places = (parts.places)(view)?;
    Some(PodPlace { view: Arc::clone(view), pod, places })
}

/// Sets where the containers of a pod write, as far as that lies in the directories that the runtime
/// has reported as its own.
fn set_places<'a>(
    pod: &mut PodPlaces,
    written: impl Fn(&ContainerId) -> Option<&'a WritePlaces>,
    runtime_dirs: &[PathBuf],
) {
    // Containers share the files of their sandbox.
    let (mut files, mut dirs) = (BTreeSet::new(), BTreeSet::new());
    for container in &mut pod.containers {
        let Some(places) = container.id.as_ref().and_then(&written) else { continue };
        container.layer = places.layer(runtime_dirs).map(PathBuf::from);
        files.extend(places.files(runtime_dirs).map(PathBuf::from));
        dirs.extend(places.volumes(runtime_dirs).map(PathBuf::from));
    }
    pod.runtime_files = files.into_iter().collect();
    pod.runtime_dirs = dirs.into_iter().collect();
}

async fn measure(
    measurer: &Measurer,
    pods: Vec<PodPlace>,
    parts: Parts,
    layers: impl Future<Output = BTreeMap<ContainerId, Space>>,
) -> Vec<MeasuredPod> {
    let places: Vec<PodPlaces> = pods.iter().map(|pod| pod.places.clone()).collect();
    let measured = measurer.measure(&places, parts, PATIENCE, layers).await;
    let together = pods.into_iter().zip(measured);
    together
        .map(|(PodPlace { view, pod, .. }, measured)| {
            for missing in &measured.missing {
                tracing::debug!(pod = %view.key, "not measured: {missing}");
            }
            MeasuredPod { view, pod, usage: measured.usage, missing: measured.missing }
        })
        .collect()
}
