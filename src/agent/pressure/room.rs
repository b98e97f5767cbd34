//! Room on a disk that can be had without ending a pod: dead containers first, then images that
//! nothing uses.

use super::{super::image_gc::FreeRequest, PressureTask};
use crate::{
    clock,
    image::gc::Freed,
    model::{DiskLayout, Now, Pressure, PressureOrders, ReliefView, Signal},
    pressure::core::Acting,
};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long dead containers may take to go before the next thing is tried.
const DEAD_PATIENCE: Duration = Duration::from_secs(10);
/// The same of images.
const IMAGES_PATIENCE: Duration = Duration::from_secs(30);
/// How long the space may take to be back once the runtime has said that everything is removed.
const SPACE_PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries of the same for the same signal.
const PERIOD: Duration = Duration::from_secs(60);

/// What is to become available of a signal.
#[derive(Clone, Copy)]
pub(super) struct Awaited {
    pub signal: Signal,
    /// What was available before, and how much more there has to be before the next thing is done.
    pub before: u64,
    pub enough: u64,
}

/// Dead containers that are being removed, by their pods' workers.
pub(super) struct Clearing {
    room: Awaited,
    dead: usize,
    since: Duration,
    /// When they were seen to be gone.
    gone: Option<Duration>,
}

/// Images that are being removed.
pub(super) struct Freeing {
    signal: Signal,
    expected: u64,
    since: Duration,
    freed: oneshot::Receiver<Freed>,
}

impl PressureTask {
    /// Has something removed before a pod has to go. Whether that is going on now.
    pub(super) fn make_room(&mut self, acting: &Acting, layout: DiskLayout) -> bool {
        self.clear_dead(acting, layout) || self.free_images(acting, layout)
    }

    /// Notes what came of it. Whether something has come to its end.
    pub(super) fn room_made(&mut self, now: Now) -> bool {
        self.dead_cleared(now) | self.images_freed(now)
    }

    /// Whether that is going on.
    pub(super) fn makes_room(&self) -> bool {
        self.clearing.is_some() || self.freeing.is_some()
    }

    fn clear_dead(&mut self, acting: &Acting, layout: DiskLayout) -> bool {
        let signal = acting.threshold.signal;
        let (dead, now) = (*self.inputs.dead.borrow(), clock::now().boot);
        let tried = self.dead_tried.is_some_and(|at| now.saturating_sub(at) < PERIOD);
        // Where only images lie, nothing of a container does.
        let useless = layout == DiskLayout::Split && is_of_images(signal);
        if dead == 0 || tried || useless {
            return false;
        }
        self.dead_tried = Some(now);
        // What is in them is not known. When nothing is missing any more, that is enough.
        let (before, enough) = (acting.reading.available, acting.shortfall);
        let room = Awaited { signal, before, enough };
        self.clearing = Some(Clearing { room, dead, since: now, gone: None });
        self.order_dead(true);
        true
    }

    fn order_dead(&self, clear_dead: bool) {
        let before = PressureOrders::clone(&self.inputs.orders.borrow());
        self.give(PressureOrders { clear_dead, ..before });
    }

    fn dead_cleared(&mut self, now: Now) -> bool {
        let left = *self.inputs.dead.borrow();
        let Some(clearing) = &mut self.clearing else { return false };
        if left > 0 && now.boot.saturating_sub(clearing.since) < DEAD_PATIENCE {
            return false;
        }
        if clearing.gone.is_none() {
            clearing.gone = Some(now.boot);
            self.inputs.disks.ask();
        }
        let gone = clearing.gone.unwrap_or(now.boot);
        let (removed, room) = (clearing.dead.saturating_sub(left), clearing.room);
        let Some(freed) = self.freed_since(&room, gone, now) else { return false };
        let signal = room.signal;
        self.clearing = None;
        self.dead_tried = Some(now.boot);
        self.order_dead(false);
        self.state.acted(gone);
        self.inputs.disks.ask();
        let containers = if removed == 1 { "container" } else { "containers" };
        tracing::info!(%signal, freed, "removed {removed} dead {containers}");
        self.history.step(ReliefView {
            at: now.wall,
            signal,
            what: format!("removed {removed} dead {containers}"),
            freed,
            expected: None,
        });
        true
    }

    /// What has become available of a signal by a reading from after `gone`; `Some(None)` where
    /// there is none in time, `None` while it is waited for. The runtime frees writable layers a
    /// while after it has said that they are removed: on a disk [`Awaited::enough`] is waited for.
    pub(super) fn freed_since(
        &self,
        freeing: &Awaited,
        gone: Duration,
        now: Now,
    ) -> Option<Option<u64>> {
        let signal = freeing.signal;
        let reading = self.sample.readings.get(&signal).filter(|reading| reading.at > gone);
        let freed = reading.map(|reading| reading.available.saturating_sub(freeing.before));
        let disk = signal.condition() == Pressure::Disk;
        let enough = freed.is_some_and(|freed| !disk || freed >= freeing.enough);
        let late = now.boot.saturating_sub(gone) >= SPACE_PATIENCE;
        (enough || late).then_some(freed)
    }

    fn free_images(&mut self, acting: &Acting, layout: DiskLayout) -> bool {
        let signal = acting.threshold.signal;
        let now = clock::now().boot;
        let tried = self.images_tried.get(&signal);
        let lately = tried.is_some_and(|at| now.saturating_sub(*at) < PERIOD);
        if lately || !images_help(signal, layout) {
            return false;
        }
        let bytes = signal.resource() == "ephemeral-storage";
        let (answer, freed) = oneshot::channel();
        let request = FreeRequest { wanted: bytes.then_some(acting.shortfall), answer };
        if self.inputs.images.try_send(request).is_err() {
            return false;
        }
        self.images_tried.insert(signal, now);
        let expected = acting.shortfall;
        self.freeing = Some(Freeing { signal, expected, since: now, freed });
        true
    }

    fn images_freed(&mut self, now: Now) -> bool {
        let Some(freeing) = &mut self.freeing else { return false };
        let freed = match freeing.freed.try_recv() {
            Ok(freed) => freed,
            Err(oneshot::error::TryRecvError::Empty)
                if now.boot.saturating_sub(freeing.since) < IMAGES_PATIENCE =>
            {
                return false;
            }
            Err(_) => Freed::default(),
        };
        let (signal, expected) = (freeing.signal, freeing.expected);
        self.freeing = None;
        self.state.acted(now.boot);
        self.inputs.disks.ask();
        self.history.step(ReliefView {
            at: now.wall,
            signal,
            what: format!("removed {} unused images", freed.removed.len()),
            freed: (signal.resource() == "ephemeral-storage").then(|| freed.bytes()),
            expected: Some(expected),
        });
        true
    }
}

fn is_of_images(signal: Signal) -> bool {
    matches!(signal, Signal::ImagefsAvailable | Signal::ImagefsInodesFree)
}

/// Whether images lie on the file system of a signal.
fn images_help(signal: Signal, layout: DiskLayout) -> bool {
    let of_root = matches!(signal, Signal::NodefsAvailable | Signal::NodefsInodesFree);
    match layout {
        DiskLayout::Single => true,
        DiskLayout::DedicatedImages => !of_root,
        DiskLayout::Split => is_of_images(signal),
    }
}
