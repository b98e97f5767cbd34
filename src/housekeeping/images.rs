//! Removes unused images: every five minutes by thresholds and ages, and when a disk is short.
//!
//! `image::gc` decides which images go. The times at which the agent pulled each image and at which
//! each was last used are kept on disk. Each listing also shows which records of pulls are of use
//! still.

use crate::{
    clock,
    cri::RuntimeClient,
    desired::SourceSnapshot,
    event::Recorder,
    image::{
        EndedPulls, PullRecords,
        gc::{
            self, FreeRequest, Freed, GcPlan, GcSettings, ImageHistory, InUse, Present, Removable,
        },
    },
    machine,
    metrics::metrics,
    model::{Event, Origin, PodKey, PodView, PodViews, Signal, SourceKind},
    podspec::all_images,
    signals::DiskReadings,
    store::{Store, parse_saved},
};
use std::{path::Path, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// The time between two collections, as in the kubelet.
const PERIOD: Duration = Duration::from_secs(300);
/// The time between two tries to list the images first, while the runtime does not answer.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// The number of failures in a row from which on events are emitted, as in the kubelet.
const REPORTED_FROM: u32 = 2;

/// What [`ImageGcTask`] works with.
pub struct ImageGcParts {
    /// The runtime.
    pub runtime: RuntimeClient,
    /// Keeps the history of images.
    pub store: Store,
    /// Takes events.
    pub events: Recorder,
    /// When each image was pulled.
    pub pulled: EndedPulls,
    /// Which credentials have pulled them. The records of removed images are removed.
    pub records: PullRecords,
    /// Thresholds and ages.
    pub settings: GcSettings,
    /// The manifests, whose images are in use.
    pub sources: Vec<watch::Receiver<Arc<SourceSnapshot>>>,
    /// The pods. While an update waits or is on trial, the images of the earlier revision are in
    /// use, too.
    pub pods: watch::Receiver<Arc<PodViews>>,
    /// Readings of the file system of images.
    pub disks: DiskReadings,
    /// Requests to remove images at once.
    pub requests: mpsc::Receiver<FreeRequest>,
}

/// The task that removes unused images.
pub struct ImageGcTask {
    parts: ImageGcParts,
    history: ImageHistory,
    saved: ImageHistory,
    failures: u32,
    /// The first look is some minutes ago.
    settled: bool,
    /// Changes when saved files may be lost.
    losses: watch::Receiver<u64>,
}

impl ImageGcTask {
    /// A loop that continues with what an earlier run of the agent has saved.
    #[must_use]
    pub fn new(parts: ImageGcParts, saved: Option<serde_json::Value>) -> Self {
        let saved: ImageHistory = parse_saved(saved, "the saved history of images");
        let saved = saved.resumed(&machine::boot_id(Path::new("/")));
        let (history, losses) = (saved.clone(), parts.store.losses());
        Self { parts, history, saved, failures: 0, settled: false, losses }
    }

    /// Runs until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut pulled = self.parts.pulled.changes();
        // The first look removes nothing: the manifests are not read yet, and the age of an image
        // counts from the time at which it was first seen.
        let mut looked = false;
        let mut next = Instant::now();
        loop {
            // Every arm only receives or waits. Removals are awaited in the arms' bodies.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                Some(request) = next_request(&mut self.parts.requests) => {
                    let freed = self.free(request.wanted).await;
                    // The receiver may be gone by now.
                    drop(request.answer.send(freed));
                }
                Ok(()) = pulled.changed() => {
                    self.take_pulls();
                    self.save().await;
                }
                Ok(()) = self.losses.changed() => {
                    if let Err(err) = self.parts.store.put_images(&self.history).await {
                        tracing::debug!(%err, "the history of images is not on disk yet");
                    }
                    self.parts.records.save_again().await;
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

    fn take_pulls(&mut self) {
        for pull in self.parts.pulled.take() {
            self.history.pulled(pull);
        }
    }

    /// Records the images that exist. Returns false when the runtime did not list them.
    async fn look(&mut self) -> bool {
        let seen = self.plan().await.is_some();
        // A runtime that is still starting is not counted as a failure.
        self.failures = 0;
        self.save().await;
        seen
    }

    async fn collect(&mut self) {
        self.settled = true;
        let Some(plan) = self.plan().await else { return };
        self.save().await;
        if self.parts.settings.is_off() {
            return;
        }
        let mut order = plan.too_old(&self.parts.settings);
        if !order.is_empty() {
            self.remove(&order, None, "age").await;
        }
        let reading = self
            .parts
            .disks
            .latest
            .borrow()
            .sample
            .readings
            .get(&Signal::ImagefsAvailable)
            .copied();
        let Some(reading) = reading else { return };
        let (available, capacity) = (reading.available, reading.capacity);
        if let Some(wanted) = gc::to_free(&self.parts.settings, available, capacity) {
            order = plan.removable.into_iter().filter(|image| !order.contains(image)).collect();
            let freed = self.remove(&order, Some(wanted), "space").await.bytes();
            if freed < wanted {
                self.record(gc::not_enough(available, capacity, freed));
            }
        }
    }

    /// Removes unused images until `wanted` bytes are free; all of them for `None`.
    async fn free(&mut self, wanted: Option<u64>) -> Freed {
        let Some(plan) = self.plan().await else { return Freed::default() };
        self.save().await;
        self.remove(&plan.removable, wanted, "space").await
    }

    /// The images that may be removed now; `None` when the runtime does not list them.
    async fn plan(&mut self) -> Option<GcPlan> {
        let mut look = match gc::look(&self.parts.runtime).await {
            Ok(look) => look,
            Err(err) => {
                self.failures += 1;
                if self.failures >= REPORTED_FROM {
                    self.record(gc::failed(err.to_string()));
                }
                return None;
            }
        };
        self.failures = 0;
        self.parts.records.follow(&look.present, look.began, self.settled).await;
        self.note_manifests(&mut look.in_use);
        self.take_pulls();
        let (now, records) = (clock::now(), &self.parts.records);
        let has_record = |image: &Present| records.has_pull_of(image);
        self.history.observe(&look.present, &look.in_use, look.began, now, has_record);
        Some(gc::plan(&look.present, &look.in_use, &self.history, &self.parts.settings, now))
    }

    /// Notes the images that manifests and pods name.
    fn note_manifests(&self, in_use: &mut InUse) {
        for source in &self.parts.sources {
            let source = source.borrow();
            // A pod of the API server that has ended does not run again. Its dead containers keep
            // its images for as long as they are there.
            let has_ended =
                |key: &PodKey| source.ends.get(key).is_some_and(|end| end.phase.is_some());
            for pod in source.pods.iter().filter(|pod| !has_ended(&pod.key)) {
                for image in all_images(&pod.pod) {
                    in_use.by_manifest(image);
                }
            }
        }
        let runs_again = |view: &&Arc<PodView>| {
            let is_of_api = |origin: &Origin| origin.source == SourceKind::Api;
            !view.has_stopped() || !view.origin.as_ref().is_some_and(is_of_api)
        };
        for view in self.parts.pods.borrow().values().filter(runs_again) {
            for image in view.pod.iter().chain(&view.previous).flat_map(|pod| all_images(pod)) {
                in_use.by_manifest(image);
            }
        }
    }

    async fn remove(
        &mut self,
        order: &[Removable],
        wanted: Option<u64>,
        reason: &'static str,
    ) -> Freed {
        let available = || self.parts.disks.newer(Signal::ImagefsAvailable);
        // Removing takes time. An image that a new manifest needs stays: there may be no registry.
        let is_named = |image: &Present| {
            let mut in_use = InUse::default();
            self.note_manifests(&mut in_use);
            in_use.is_named(image)
        };
        let began = clock::now().boot;
        let freed = gc::remove(&self.parts.runtime, order, wanted, is_named, available).await;
        let removed = metrics().images_removed.with_label_values(&[reason]);
        removed.inc_by(u64::try_from(freed.removed.len()).unwrap_or(u64::MAX));
        let gone: Vec<&str> = freed.removed.iter().map(|gone| gone.image.id.as_str()).collect();
        self.parts.records.forget(&gone, began).await;
        self.history.removed(gone);
        self.save().await;
        freed
    }

    fn record(&self, event: Event) {
        self.parts.events.record(event);
    }

    async fn save(&mut self) {
        if !self.history.is_worth_saving(&self.saved) {
            return;
        }
        if let Err(err) = self.parts.store.put_images(&self.history).await {
            tracing::debug!(%err, "the history of images is not on disk yet");
        }
        self.saved.clone_from(&self.history);
    }
}

/// The next request whose answer is still awaited. Others have waited for too long: the shortage may
/// be over by now. Cancel-safe.
async fn next_request(requests: &mut mpsc::Receiver<FreeRequest>) -> Option<FreeRequest> {
    loop {
        let request = requests.recv().await?;
        if !request.answer.is_closed() {
            return Some(request);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn a_request_that_nobody_waits_for_is_skipped() {
        let (sender, mut requests) = mpsc::channel(2);
        let mut answers = Vec::new();
        for wanted in [Some(1), Some(2)] {
            let (answer, freed) = oneshot::channel();
            sender.try_send(FreeRequest { wanted, answer }).unwrap();
            answers.push(freed);
        }
        drop(answers.remove(0));
        assert_eq!(next_request(&mut requests).await.unwrap().wanted, Some(2));
        drop(sender);
        assert!(next_request(&mut requests).await.is_none());
    }
}
