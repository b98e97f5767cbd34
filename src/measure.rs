//! Measures what pods use, on a machine and with its runtime: what `signals` measures, where the
//! runtime says that containers write.

use crate::{
    cri::{RuntimeClient, WritePlaces},
    model::{CollectOrdered as _, ContainerId, PodUid, PodViews, Space},
    signals::{Measured, Measurer, Parts, PodPlaces},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

/// How long a pod's directories of the agent together may take, those of the runtime together, and
/// one container's writable layer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The number of containers whose writable layers are asked for at a time.
const LAYERS: usize = 8;
/// How long all writable layers together may take.
const LAYERS_PATIENCE: Duration = Duration::from_secs(10);
/// How long the runtime may take to say where new containers write.
const PLACES_PATIENCE: Duration = Duration::from_secs(2);

/// The directories and files of containers, as the runtime has reported them.
pub type WritePlacesById = BTreeMap<ContainerId, WritePlaces>;

/// The result of a measurement.
#[derive(Debug)]
pub struct Measurement {
    /// The pods, in the order in which they were given.
    pub pods: Vec<Measured>,
    /// The paths of containers whose paths were not known before.
    pub write_places: WritePlacesById,
}

/// Measures pods, and remembers where their containers write.
#[derive(Debug)]
pub struct PodMeasurer {
    runtime: RuntimeClient,
    measurer: Measurer,
    write_places: WritePlacesById,
}

impl PodMeasurer {
    /// A measurer that asks this runtime.
    #[must_use]
    pub fn new(runtime: RuntimeClient) -> Self {
        Self { runtime, measurer: Measurer::default(), write_places: WritePlacesById::new() }
    }

    /// Keeps the paths that containers write to, so that they are known while the runtime hangs.
    pub fn remember(&mut self, mut found: WritePlacesById) {
        self.write_places.append(&mut found);
    }

    /// The future of a measurement of memory and tasks alone.
    pub fn measure_cgroups(
        &self,
        places: Vec<PodPlaces>,
    ) -> impl Future<Output = Measurement> + Send + use<> {
        let measurer = self.measurer.clone();
        async move {
            let nothing = async { BTreeMap::new() };
            let pods = measurer.measure(&places, Parts::Cgroups, PATIENCE, nothing).await;
            Measurement { pods, write_places: WritePlacesById::new() }
        }
    }

    /// The future of a measurement of everything. The runtime is asked where the containers of
    /// `everyone` write, not only of the measured pods. `runtime_dirs` are the directories that the
    /// runtime has reported as its own.
    pub fn measure(
        &mut self,
        mut places: Vec<PodPlaces>,
        everyone: &PodViews,
        runtime_dirs: Arc<[PathBuf]>,
    ) -> impl Future<Output = Measurement> + Send + use<> {
        let unknown = self.unknown_containers(everyone);
        let (measurer, runtime) = (self.measurer.clone(), self.runtime.clone());
        let known = self.write_places.clone();
        async move {
            let asked = runtime.all_write_places(&unknown, LAYERS, PLACES_PATIENCE);
            let write_places = asked.await;
            let mut without = Vec::new();
            for pod in &mut places {
                let written = |id: &ContainerId| known.get(id).or_else(|| write_places.get(id));
                set_places(pod, written, &runtime_dirs);
                let others = pod.containers.iter().filter(|one| one.layer.is_none());
                without.extend(others.filter_map(|container| container.id.clone()));
            }
            let layers = async {
                let asked = runtime.writable_layers(&without, LAYERS, PATIENCE, LAYERS_PATIENCE);
                let known = asked.await.into_iter();
                let known = known.filter_map(|(id, layer)| Some((id, layer.ok()?.space)));
                known.collect_ordered::<BTreeMap<ContainerId, Space>>()
            };
            let pods = measurer.measure(&places, Parts::Everything, PATIENCE, layers).await;
            Measurement { pods, write_places }
        }
    }

    /// The containers of pods that have not stopped for which it is unknown where they write.
    /// Forgets all containers and pods that are gone.
    fn unknown_containers(&mut self, everyone: &PodViews) -> Vec<ContainerId> {
        let live = everyone.values().filter(|view| !view.has_stopped());
        let ids = live.flat_map(|view| view.containers.iter().map(|one| one.id.clone()));
        let ids: BTreeSet<ContainerId> = ids.collect_ordered();
        let uids: BTreeSet<&PodUid> = everyone.values().map(|view| &view.uid).collect_ordered();
        self.measurer.keep(|uid| uids.contains(uid));
        self.write_places.retain(|id, _| ids.contains(id));
        ids.into_iter().filter(|id| !self.write_places.contains_key(id)).collect()
    }
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
