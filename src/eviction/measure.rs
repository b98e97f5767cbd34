//! Measures what pods use, when a decision needs it.

use super::EvictionParts;
use crate::{
    measure::{PodMeasurer, WritePlacesById},
    model::{PodView, PodViews, k8s},
    pressure::core::{MeasurePurpose, MeasuredPod},
    signals::PodPlaces,
};
use futures_util::future::Either;
use std::{path::PathBuf, sync::Arc};

/// The result of a measurement.
pub(super) struct PodMeasurement {
    pub purpose: MeasurePurpose,
    pub pods: Vec<MeasuredPod>,
    /// The paths of containers whose paths were not known before.
    pub write_places: WritePlacesById,
}

/// The future of a measurement of `pods`. For disks, the runtime is asked where the containers of
/// `everyone` write, not only of the measured pods.
pub(super) fn measure(
    measurer: &mut PodMeasurer,
    parts: &EvictionParts,
    purpose: MeasurePurpose,
    pods: &[Arc<PodView>],
    everyone: &PodViews,
    runtime_dirs: Arc<[PathBuf]>,
) -> impl Future<Output = PodMeasurement> + Send + use<> {
    let found = pods.iter().filter_map(|view| place_of(parts, view));
    let (pods, places): (Vec<_>, Vec<PodPlaces>) = found.unzip();
    let measuring = match purpose {
        MeasurePurpose::Cgroups => Either::Left(measurer.measure_cgroups(places)),
        MeasurePurpose::Disk | MeasurePurpose::Limits => {
            Either::Right(measurer.measure(places, everyone, runtime_dirs))
        }
    };
    async move {
        let measured = measuring.await;
        let together = pods.into_iter().zip(measured.pods);
        let pods = together.map(|((view, pod), measured)| {
            for missing in &measured.missing {
                tracing::debug!(pod = %view.key, "not measured: {missing}");
            }
            MeasuredPod { view, pod, usage: measured.usage, missing: measured.missing }
        });
        PodMeasurement { purpose, pods: pods.collect(), write_places: measured.write_places }
    }
}

/// A pod, and where it is measured.
type PodPlace = ((Arc<PodView>, Arc<k8s::Pod>), PodPlaces);

fn place_of(parts: &EvictionParts, view: &Arc<PodView>) -> Option<PodPlace> {
    let pod = Arc::clone(view.pod.as_ref()?);
    let places = (parts.places)(view)?;
    Some(((Arc::clone(view), pod), places))
}
