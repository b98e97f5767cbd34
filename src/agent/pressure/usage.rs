//! What pods use, asked when a decision needs it.

use super::{PressureTask, relief::has_local_limit};
use crate::{
    model::{
        ContainerId, DiskLayout, Evicted, HoldStop, PodKey, PodUse, PodView, Space, k8s,
        priority_of,
    },
    podspec::pod_cgroup_name,
    pressure::core::{Acting, Candidate},
    signals::{ContainerPlaces, Measurer, Parts, PodPlaces, find_layers},
    worker::PodViews,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// How long one directory, or one container's writable layer, may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Containers whose writable layers are asked for at a time.
const LAYERS: usize = 8;
/// How long all of them together may take.
const LAYERS_PATIENCE: Duration = Duration::from_secs(10);

/// A pod that may be evicted, with what it uses.
pub(super) struct Measured {
    pub view: Arc<PodView>,
    pub pod: Arc<k8s::Pod>,
    pub usage: PodUse,
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
}

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

    /// Memory and process ids: microseconds for a pod. Where nothing runs, what a cgroup shows is the runtime, at work to
    /// start something.
    pub(super) async fn measure_cgroups(&self, mut pods: Vec<Place>) -> Vec<Measured> {
        pods.retain(|(view, _, places)| {
            runs(view) || places.volumes.iter().any(|volume| volume.in_memory)
        });
        let nothing = async { BTreeMap::new() };
        measure(&self.measurer, pods, Parts::Cgroups, nothing).await
    }

    /// Begins to measure everything of pods, beside the loop.
    pub(super) fn survey(&mut self, purpose: Purpose) {
        let mut pods = match purpose {
            Purpose::Relief { .. } => self.candidates(|_| true),
            Purpose::Limits { .. } => self.candidates(has_local_limit),
        };
        let (measurer, host) = (self.measurer.clone(), Arc::clone(&self.inputs.host));
        for (_, _, places) in &mut pods {
            find_layers(places);
        }
        let containers = pods.iter().flat_map(|(_, _, place)| &place.containers);
        let others = containers.filter(|container| container.layer.is_none());
        let ids: Vec<ContainerId> = others.filter_map(|c| c.id.clone()).collect();
        self.surveys.spawn(async move {
            let layers = async {
                let asked = host.runtime.writable_layers(&ids, LAYERS, PATIENCE);
                // With a runtime that hangs: nobody's layer is known.
                let layers = tokio::time::timeout(LAYERS_PATIENCE, asked).await.unwrap_or_default();
                let known = layers.into_iter();
                known.filter_map(|(id, layer)| Some((id, layer.ok()?.space))).collect()
            };
            let pods = measure(&measurer, pods, Parts::Everything, layers).await;
            Survey { purpose, pods }
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
        }
    }
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
            Measured { view, pod, usage: measured.usage }
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
