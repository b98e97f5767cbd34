//! Measures what lies on file systems for containers: logs, volumes, writable layers. A survey looks
//! at every file, so there is one in a period at most, and only when somebody asks.

use crate::{
    clock,
    cri::RuntimeClient,
    measure::{Measurement, PodMeasurer},
    model::{CollectOrdered as _, ImagesUse, PodUid, PodUse, PodViews},
    signals::PodPlaces,
};
use jiff::Timestamp;
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};
use tokio::{task::JoinSet, time::timeout};

/// How long a client waits for a survey when there is none yet or the last one is far too old.
/// Otherwise, it gets the last one that is finished.
const PATIENCE: Duration = Duration::from_secs(3);

/// What one survey has found.
#[derive(Debug)]
pub(super) struct Survey {
    /// When it began.
    pub(super) at: Timestamp,
    begun: Duration,
    pub(super) pods: BTreeMap<PodUid, PodUse>,
    /// What all images take.
    pub(super) images: Option<ImagesUse>,
}

/// The last survey and the one that is under way.
pub(super) struct Surveys {
    runtime: RuntimeClient,
    measurer: PodMeasurer,
    latest: Option<Arc<Survey>>,
    running: JoinSet<Surveyed>,
}

/// When it began, by both clocks, and what came of it.
type Surveyed = (crate::model::Now, Measurement, Option<ImagesUse>);

impl Surveys {
    pub(super) fn new(runtime: RuntimeClient) -> Self {
        let measurer = PodMeasurer::new(runtime.clone());
        Self { runtime, measurer, latest: None, running: JoinSet::new() }
    }

    /// The last survey. Begins another one of `pods` when it is older than `period`, and then waits
    /// for that when it is older than twice the period. The first one is always waited for.
    /// `everyone` are all pods, and `runtime_dirs` the runtime's own directories.
    pub(super) async fn latest(
        &mut self,
        pods: Vec<PodPlaces>,
        everyone: &PodViews,
        runtime_dirs: Arc<[PathBuf]>,
        period: Duration,
    ) -> Option<Arc<Survey>> {
        let ended = self.running.try_join_next();
        self.fold(ended);
        let now = clock::now();
        let is_old = |latest: &Option<Arc<Survey>>, age: Duration| {
            latest.as_ref().is_none_or(|survey| now.boot.saturating_sub(survey.begun) >= age)
        };
        let begins = self.running.is_empty() && is_old(&self.latest, period);
        if begins {
            let measuring = self.measurer.measure(pods, everyone, runtime_dirs);
            let runtime = self.runtime.clone();
            self.running.spawn(async move {
                let (measured, images) = tokio::join!(measuring, runtime.image_filesystems());
                (now, measured, images.ok().map(|told| told.images_use))
            });
        }
        let is_far_too_old = begins && is_old(&self.latest, period.saturating_mul(2));
        if is_far_too_old || self.latest.is_none() {
            let ended = timeout(PATIENCE, self.running.join_next()).await;
            self.fold(ended.ok().flatten());
        }
        self.latest.clone()
    }

    fn fold(&mut self, ended: Option<Result<Surveyed, tokio::task::JoinError>>) {
        match ended {
            Some(Ok((began, Measurement { pods, write_places }, images))) => {
                self.measurer.remember(write_places);
                let pods = pods.into_iter().map(|one| (one.usage.uid.clone(), one.usage));
                let (at, begun, pods) = (began.wall, began.boot, pods.collect_ordered());
                self.latest = Some(Arc::new(Survey { at, begun, pods, images }));
            }
            Some(Err(err)) => tracing::warn!(%err, "measuring what pods have on disks has crashed"),
            None => {}
        }
    }
}
