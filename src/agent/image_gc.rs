//! Removes images that nobody uses: every five minutes by the thresholds and ages, and when the
//! disk is short.
//!
//! Which ones is decided in `image::gc`; what the agent has pulled, and when each image was last
//! used, is kept on disk.

use crate::{
    clock,
    desired::SourceSnapshot,
    image::gc::{self, FreeRequest, Freed, GcPlan, GcSettings, ImageHistory, Removable},
    model::{Event, Signal, k8s},
    signals::DiskReadings,
    worker::Host,
};
use std::{fs, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// Between two looks, as the kubelet's.
const PERIOD: Duration = Duration::from_secs(300);
/// Between two tries of the first look, while the runtime does not answer.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// Failures in a row from which on people are told, as the kubelet's.
const TOLD_FROM: u32 = 2;

pub(super) struct ImageGcTask {
    pub host: Arc<Host>,
    pub settings: GcSettings,
    pub sources: Vec<watch::Receiver<Arc<SourceSnapshot>>>,
    pub disks: DiskReadings,
    pub requests: mpsc::Receiver<FreeRequest>,
    pub history: ImageHistory,
    pub saved: ImageHistory,
    pub failures: u32,
    /// Changes when what was saved may be lost.
    pub losses: watch::Receiver<u64>,
}

/// What an earlier life of the agent knew.
pub(super) fn resumed(saved: Option<serde_json::Value>) -> ImageHistory {
    let history: ImageHistory = saved
        .map(serde_json::from_value)
        .transpose()
        .inspect_err(|err| tracing::warn!(%err, "what is known of images can't be used"))
        .ok()
        .flatten()
        .unwrap_or_default();
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    history.resumed(boot_id.trim())
}

impl ImageGcTask {
    pub(super) async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let mut pulled = self.host.images.pulled();
        // Ages count from when an image was seen first. What manifests name is not known yet:
        // nothing goes.
        let mut looked = false;
        let mut next = Instant::now();
        loop {
            // Every arm only receives; removals are awaited to their end below.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                Some(request) = self.requests.recv() => {
                    let freed = self.free(request.wanted).await;
                    // Whoever asked may have given up.
                    drop(request.answer.send(freed));
                }
                changed = pulled.changed() => {
                    if changed.is_err() {
                        shutdown.cancelled().await;
                        return Ok(());
                    }
                    for (id, at) in pulled.borrow_and_update().iter() {
                        self.history.pulled(id, *at);
                    }
                    self.save().await;
                }
                Ok(()) = self.losses.changed() => {
                    if let Err(err) = self.host.store.put_images(&self.history).await {
                        tracing::debug!(%err, "what is known of images is not on disk yet");
                    }
                }
                () = tokio::time::sleep_until(next) => {
                    if looked {
                        self.collect().await;
                    } else {
                        looked = self.look().await;
                    }
                    next = Instant::now() + if looked { PERIOD } else { FIRST_LOOK };
                }
            }
        }
    }

    /// Notes what there is. Whether the runtime has told it.
    async fn look(&mut self) -> bool {
        let seen = self.plan().await.is_some();
        // A runtime that has yet to come up is no failure of this.
        self.failures = 0;
        self.save().await;
        seen
    }

    /// The regular round.
    async fn collect(&mut self) {
        let Some(plan) = self.plan().await else { return };
        self.save().await;
        if self.settings.is_off() {
            return;
        }
        let mut order = plan.too_old(&self.settings);
        if !order.is_empty() {
            self.remove(&order, None).await;
        }
        let reading =
            self.disks.latest.borrow().sample.readings.get(&Signal::ImagefsAvailable).copied();
        let Some(reading) = reading else { return };
        match gc::to_free(&self.settings, reading.available, reading.capacity) {
            Ok(None) => {}
            Ok(Some(wanted)) => {
                order = plan.removable.into_iter().filter(|image| !order.contains(image)).collect();
                let freed = self.remove(&order, Some(wanted)).await.bytes();
                if freed < wanted {
                    self.tell(gc::not_enough(reading.available, reading.capacity, freed));
                }
            }
            Err(event) => self.tell(*event),
        }
    }

    /// Everything that may go, until enough is free.
    async fn free(&mut self, wanted: Option<u64>) -> Freed {
        let Some(plan) = self.plan().await else { return Freed::default() };
        self.save().await;
        self.remove(&plan.removable, wanted).await
    }

    /// What may go now. `None`: the runtime does not tell what there is.
    async fn plan(&mut self) -> Option<GcPlan> {
        let mut look = match gc::look(&self.host.runtime).await {
            Ok(look) => look,
            Err(err) => {
                self.failures += 1;
                if self.failures >= TOLD_FROM {
                    self.tell(gc::failed(err.to_string()));
                }
                return None;
            }
        };
        self.failures = 0;
        for source in &self.sources {
            for pod in &source.borrow().pods {
                for image in images_of(&pod.pod) {
                    look.in_use.by_manifest(image);
                }
            }
        }
        let now = clock::now();
        self.history.observe(&look.present, &look.in_use, look.began, now);
        Some(gc::plan(&look.present, &look.in_use, &self.history, &self.settings, now))
    }

    async fn remove(&self, order: &[Removable], wanted: Option<u64>) -> Freed {
        let available = || self.disks.newer(Signal::ImagefsAvailable);
        gc::remove(&self.host.runtime, order, wanted, available).await
    }

    fn tell(&self, event: Event) {
        self.host.events.record(event);
    }

    async fn save(&mut self) {
        if !self.history.is_worth_saving(&self.saved) {
            return;
        }
        if let Err(err) = self.host.store.put_images(&self.history).await {
            tracing::debug!(%err, "what is known of images is not on disk yet");
        }
        self.saved.clone_from(&self.history);
    }
}

/// Every image that a pod's manifest names.
fn images_of(pod: &k8s::Pod) -> impl Iterator<Item = &str> {
    let spec = pod.spec.iter();
    let containers =
        spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    containers.filter_map(|container| container.image.as_deref())
}
