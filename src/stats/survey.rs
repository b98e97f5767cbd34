//! Measures what lies on file systems for containers: logs, volumes, writable layers. A survey looks
//! at every file, so there is one in a period at most, and only when somebody asks.

use crate::{
    clock,
    cri::RuntimeClient,
    model::{ContainerId, PodUid, PodUse},
    signals::{Measurer, Parts, PodPlaces},
};
use jiff::Timestamp;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{task::JoinSet, time::timeout};

/// How long a client waits for the first survey. Later ones get the last one that is finished.
const FIRST_PATIENCE: Duration = Duration::from_secs(3);
/// How long the directories of a pod together, or one container's writable layer, may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long all writable layers together may take.
const LAYERS_PATIENCE: Duration = Duration::from_secs(10);
/// The number of containers whose writable layers are asked for at a time.
const LAYERS: usize = 4;

/// What one survey has found.
#[derive(Debug)]
pub(super) struct Survey {
    /// When it began.
    pub(super) at: Timestamp,
    begun: Duration,
    pub(super) pods: BTreeMap<PodUid, PodUse>,
    /// What all images take.
    pub(super) images_bytes: Option<u64>,
}

/// The last survey and the one that is under way.
#[derive(Default)]
pub(super) struct Surveys {
    measurer: Measurer,
    latest: Option<Arc<Survey>>,
    running: JoinSet<Survey>,
}

impl Surveys {
    /// The last survey. Begins another one when it is older than `period`, and waits for the very
    /// first.
    pub(super) async fn latest(
        &mut self,
        pods: Vec<PodPlaces>,
        runtime: &RuntimeClient,
        period: Duration,
    ) -> Option<Arc<Survey>> {
        let ended = self.running.try_join_next();
        self.fold(ended);
        let now = clock::now().boot;
        let old = |survey: &Arc<Survey>| now.saturating_sub(survey.begun) >= period;
        if self.running.is_empty() && self.latest.as_ref().is_none_or(old) {
            self.running.spawn(survey(self.measurer.clone(), pods, runtime.clone()));
        }
        if self.latest.is_none() {
            let first = timeout(FIRST_PATIENCE, self.running.join_next()).await;
            self.fold(first.ok().flatten());
        }
        self.latest.clone()
    }

    fn fold(&mut self, ended: Option<Result<Survey, tokio::task::JoinError>>) {
        match ended {
            Some(Ok(survey)) => self.latest = Some(Arc::new(survey)),
            Some(Err(err)) => tracing::warn!(%err, "measuring what pods have on disks has crashed"),
            None => {}
        }
    }
}

async fn survey(measurer: Measurer, pods: Vec<PodPlaces>, runtime: RuntimeClient) -> Survey {
    let now = clock::now();
    let ids: Vec<ContainerId> = pods
        .iter()
        .flat_map(|pod| pod.containers.iter().filter_map(|one| one.id.clone()))
        .collect();
    let layers = async {
        let asked = runtime.writable_layers(&ids, LAYERS, PATIENCE);
        let layers = timeout(LAYERS_PATIENCE, asked).await.unwrap_or_default();
        layers.into_iter().filter_map(|(id, layer)| Some((id, layer.ok()?.space))).collect()
    };
    let measured = measurer.measure(&pods, Parts::Everything, PATIENCE, layers);
    let (measured, images) = tokio::join!(measured, runtime.image_filesystems());
    Survey {
        at: now.wall,
        begun: now.boot,
        pods: measured.into_iter().map(|one| (one.usage.uid.clone(), one.usage)).collect(),
        images_bytes: images.ok().and_then(|images| images.images_bytes),
    }
}
