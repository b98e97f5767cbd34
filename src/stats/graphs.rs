//! What graphs are drawn from: a sample every few seconds, only while somebody looks.

use super::Collector;
use crate::{
    clock,
    model::{StatsDepth, UseHistory, UseSample},
};
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

/// Time between two samples.
const EVERY: Duration = Duration::from_secs(5);
/// Samples are taken, and kept, for so long after the last look.
const KEPT: Duration = Duration::from_secs(300);

/// Takes the samples.
pub struct GraphsTask {
    /// Where statistics come from.
    pub collector: Collector,
    /// Boot time of the last look.
    pub looks: watch::Receiver<Duration>,
    /// Where samples are published.
    pub history: watch::Sender<Arc<UseHistory>>,
}

impl GraphsTask {
    /// Waits for looks, and takes samples while there are any, until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        // Cancel-safe: samples that were not taken are not missed.
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = async {
                while self.looks.changed().await.is_ok() {
                    self.take_samples().await;
                    self.history.send_replace(Arc::default());
                }
                std::future::pending::<()>().await;
            } => {}
        }
    }

    async fn take_samples(&mut self) {
        loop {
            let looked = *self.looks.borrow_and_update();
            let now = clock::now().boot;
            if now.saturating_sub(looked) >= KEPT {
                return;
            }
            let stats = self.collector.collect(StatsDepth::Resources).await;
            self.history.send_modify(|history| {
                Arc::make_mut(history).push(UseSample::of(&stats, now));
            });
            sleep(EVERY).await;
        }
    }
}
