//! Makes a shutdown of the machine wait for pods: takes a delay lock of logind, and listens for the
//! signal that announces a shutdown.
//!
//! ```text
//! listen:  connect ─► find logind ─► long enough a delay? ─► lock ─► hear ─┬─► the bus is lost: once more, after 1 s
//!            ▲                             │ drop-in, reload             │
//!            └──────── another logind ◄────┴─────────────────────────────┘
//! conduct: going down ─► group by group: tell the workers, wait for its pods or its time ─► release the lock
//!          stays up   ─► tell the workers, take a new lock
//! ```
//!
//! No pod starts before logind has answered for the first time: an agent that restarts while the
//! machine shuts down must not start pods. The wait is short, and there is none without logind.
//!
//! Only logind begins a shutdown. A signal that stops the agent says nothing about the machine, and
//! does not stop pods. The state of a shutdown is not saved, and the lock is a file descriptor:
//! both end with the agent.

mod logind;
#[cfg(test)]
mod tests;

use crate::{
    blocking::LOOKS,
    clock,
    event::Recorder,
    metrics::metrics,
    model::{
        Ending, Event, EventKind, EventTarget, MachineState, Shutdown, ShutdownPeriods,
        format_duration,
    },
    publish::PublishIfChanged as _,
};
use logind::{Heard, Logind, LogindError, write_drop_in};
use std::{convert::Infallible, path::PathBuf, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use zbus::OwnedFd;

/// The pause before the next connection to a bus that was lost.
const AGAIN: Duration = Duration::from_secs(1);
/// The length of the queue from the listener to the conductor.
const TOLD: usize = 4;
/// Pods start at the latest this long after the agent, even if logind has not answered.
const FIRST_ANSWER: Duration = Duration::from_secs(2);
/// Longer than any shutdown.
const NEVER: Duration = Duration::from_secs(3600 * 24 * 365);
/// The drop-in file, which logind reads after its own configuration.
const DROP_IN: &str = "/etc/systemd/logind.conf.d/99-nodelet.conf";

/// The paths of the system bus and of logind's drop-in file.
pub struct Places {
    pub bus: PathBuf,
    pub drop_in: PathBuf,
}

impl Places {
    /// logind on this bus, with its usual directory for drop-ins.
    #[must_use]
    pub fn new(bus: PathBuf) -> Self {
        Self { bus, drop_in: DROP_IN.into() }
    }
}

/// The stage of a shutdown of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    #[default]
    Up,
    Ending,
    /// All pods have ended, or their time is over.
    Over,
}

/// The task.
pub struct ShutdownTask {
    pub places: Places,
    pub periods: ShutdownPeriods,
    /// The state of the machine, for the workers.
    pub machine: watch::Sender<MachineState>,
    /// The pods that the workers still have to end.
    pub ending: watch::Receiver<Ending>,
    pub stage: watch::Sender<Stage>,
    /// Sentences for the node's status.
    pub trouble: watch::Sender<Vec<String>>,
    pub events: Recorder,
}

/// Messages from the listener to the conductor.
enum Told {
    Lock(OwnedFd),
    GoingDown,
    StaysUp,
    /// There is no logind.
    NoLogind,
}

impl ShutdownTask {
    /// Runs until `stop`. Does nothing when the configuration gives pods no time.
    pub async fn run(self, stop: CancellationToken) {
        if self.periods.total().is_zero() {
            self.machine.send_replace(MachineState::Up);
            stop.cancelled().await;
            return;
        }
        let (tell, told) = mpsc::channel(TOLD);
        let Self { places, periods, machine, ending, stage, trouble, events } = self;
        let listener = Listener { places, wanted: periods.total(), tell, trouble };
        let conductor =
            Conductor { periods, machine, ending, stage, events, told, lock: None, deadline: None };
        // Both may be dropped at any point: dropping the lock releases it.
        tokio::select! {
            () = stop.cancelled() => {}
            _ = Box::pin(listener.run()) => {}
            _ = conductor.run() => {}
        }
    }
}

/// Communicates with logind.
struct Listener {
    places: Places,
    wanted: Duration,
    tell: mpsc::Sender<Told>,
    trouble: watch::Sender<Vec<String>>,
}

impl Listener {
    async fn run(self) -> Infallible {
        let (mut was_there, mut lost) = (false, false);
        loop {
            let error = match Logind::connect(&self.places.bus).await {
                Ok(logind) => {
                    was_there = true;
                    match self.listen(logind, &mut lost).await {
                        Ok(never) => match never {},
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            if let (LogindError::NoBus { .. }, false) = (&error, was_there) {
                tracing::info!("a shutdown of the machine will not wait for pods: {error}");
                self.tell(Told::NoLogind).await;
                std::future::pending::<()>().await;
            }
            // A lock that is held stays held. Only the first of several losses in a row is logged
            // as info.
            if std::mem::replace(&mut lost, true) {
                tracing::debug!(err = %error, "logind is not heard");
            } else {
                tracing::info!(err = %error, "the connection to logind was lost; trying again");
            }
            sleep(AGAIN).await;
        }
    }

    /// Hears logind until the connection is lost. `lost` becomes false when the connection was good
    /// before that.
    async fn listen(&self, mut logind: Logind, lost: &mut bool) -> Result<Infallible, LogindError> {
        loop {
            match logind.find().await {
                // logind gives no lock any more.
                Ok(true) => self.tell(Told::GoingDown).await,
                Ok(false) => {
                    self.tell(Told::StaysUp).await;
                    self.lock(&logind).await?;
                }
                // The signal that logind has appeared starts another try.
                Err(error @ (LogindError::NoLogind | LogindError::Refused { .. })) => {
                    tracing::info!("a shutdown of the machine will not wait for pods: {error}");
                    self.tell(Told::NoLogind).await;
                }
                Err(error) => return Err(error),
            }
            *lost = false;
            loop {
                match logind.hear().await? {
                    Heard::GoingDown => self.tell(Told::GoingDown).await,
                    Heard::StaysUp => {
                        self.tell(Told::StaysUp).await;
                        self.lock(&logind).await?;
                    }
                    Heard::NewLogind => break,
                }
            }
        }
    }

    async fn tell(&self, what: Told) {
        // The conductor runs as long as the listener.
        if self.tell.send(what).await.is_err() {
            tracing::debug!("the conductor of shutdowns has ended");
        }
    }

    /// Takes the lock, even if logind does not wait long enough.
    async fn lock(&self, logind: &Logind) -> Result<(), LogindError> {
        let mut trouble = Vec::new();
        if let Some(why) = self.lengthen(logind).await? {
            tracing::warn!("{why}");
            trouble.push(why);
        }
        match logind.lock().await {
            Ok(lock) => {
                let wanted = format_duration(self.wanted);
                tracing::info!("a shutdown of the machine waits for pods, up to {wanted}");
                self.tell(Told::Lock(lock)).await;
            }
            Err(LogindError::Refused { call, message }) => {
                let error = LogindError::Refused { call, message };
                tracing::warn!("a shutdown of the machine will not wait for pods: {error}");
                trouble.push(format!("a shutdown of the machine will not wait for pods: {error}"));
            }
            Err(error) => return Err(error),
        }
        self.trouble.publish_if_changed(trouble);
        Ok(())
    }

    /// Makes logind wait long enough. Returns the reason if it does not.
    async fn lengthen(&self, logind: &Logind) -> Result<Option<String>, LogindError> {
        let wanted = self.wanted;
        let mut delay = logind.longest_delay().await?;
        if delay >= wanted {
            return Ok(None);
        }
        let path = self.places.drop_in.clone();
        let written = LOOKS.run(move || write_drop_in(&path, wanted)).await;
        let mut why = match written {
            Ok(Ok(())) => "another setting overrides it".to_owned(),
            Ok(Err(error)) => format!("{}: {error}", self.places.drop_in.display()),
            Err(error) => error.to_string(),
        };
        match logind.reload(wanted).await {
            Ok(now) => delay = now,
            Err(LogindError::Refused { call, message }) => why = format!("{call}: {message}"),
            Err(error) => return Err(error),
        }
        if delay >= wanted {
            return Ok(None);
        }
        let (wanted, delay) = (format_duration(wanted), format_duration(delay));
        Ok(Some(format!(
            "pods need {wanted} when the machine shuts down, but logind's InhibitDelayMaxSec is {delay}: {why}"
        )))
    }
}

/// Ends the groups of pods one after the other.
struct Conductor {
    periods: ShutdownPeriods,
    machine: watch::Sender<MachineState>,
    ending: watch::Receiver<Ending>,
    stage: watch::Sender<Stage>,
    events: Recorder,
    told: mpsc::Receiver<Told>,
    lock: Option<OwnedFd>,
    /// The end of the time of the current group; `None` when no group is being ended.
    deadline: Option<Instant>,
}

impl Conductor {
    async fn run(mut self) -> Infallible {
        let answer_by = Instant::now() + FIRST_ANSWER;
        loop {
            let far = Instant::now() + NEVER;
            let is_unknown = *self.machine.borrow() == MachineState::Unknown;
            // Cancel-safe: every arm only waits or receives.
            tokio::select! {
                Some(told) = self.told.recv() => match told {
                    // The new lock is taken before the old one is released.
                    Told::Lock(lock) => self.lock = Some(lock),
                    Told::GoingDown => self.go_down(),
                    Told::StaysUp => self.stay_up(),
                    Told::NoLogind => self.assume_up(),
                },
                Ok(()) = self.ending.changed() => {}
                () = sleep_until(self.deadline.unwrap_or(far)) => {}
                () = sleep_until(answer_by), if is_unknown => {
                    tracing::warn!("logind does not answer: pods start without knowing whether the machine goes down");
                    self.assume_up();
                }
            }
            self.go_on();
        }
    }

    fn go_down(&mut self) {
        if self.machine.borrow().shutdown().is_some() {
            return;
        }
        self.tell("Shutdown manager detected shutdown event");
        self.stage.send_replace(Stage::Ending);
        metrics().node.shutdown_began(clock::now().wall);
        self.take_turn(0);
    }

    fn stay_up(&mut self) {
        if self.machine.borrow().shutdown().is_none() {
            self.assume_up();
            return;
        }
        self.tell("Shutdown manager detected shutdown cancellation");
        if self.deadline.take().is_some() {
            metrics().node.shutdown_ended(clock::now().wall);
        }
        self.machine.send_replace(MachineState::Up);
        self.stage.send_replace(Stage::Up);
    }

    /// Lets pods start unless a shutdown was announced.
    fn assume_up(&self) {
        self.machine.send_if_modified(|machine| {
            let unknown = *machine == MachineState::Unknown;
            if unknown {
                *machine = MachineState::Up;
            }
            unknown
        });
    }

    fn take_turn(&mut self, turn: usize) {
        let seconds = self.periods.groups().get(turn).map_or(0, |group| group.seconds);
        self.deadline = Some(Instant::now() + Duration::from_secs(seconds.into()));
        let shutdown = Shutdown { periods: self.periods.clone(), turn };
        self.machine.send_replace(MachineState::GoingDown(shutdown));
    }

    /// Begins the next group when the current one has ended or its time is over. After the last
    /// group, releases the lock.
    fn go_on(&mut self) {
        let Some(deadline) = self.deadline else { return };
        let shutdown = self.machine.borrow().shutdown().cloned();
        let ending = self.ending.borrow_and_update().clone();
        let ended = ending.shutdown == shutdown && ending.left.is_empty();
        if !ended && Instant::now() < deadline {
            return;
        }
        if !ended && !ending.left.is_empty() {
            let left: Vec<String> = ending.left.iter().map(ToString::to_string).collect();
            tracing::warn!(
                pods = left.join(", "),
                "pods did not end within the time of their group"
            );
        }
        let next = shutdown.map_or(0, |shutdown| shutdown.turn + 1);
        if next < self.periods.groups().len() {
            self.take_turn(next);
            return;
        }
        self.deadline = None;
        metrics().node.shutdown_ended(clock::now().wall);
        self.stage.send_replace(Stage::Over);
        tracing::info!("the time for pods is over; the machine may shut down");
        self.lock = None;
    }

    fn tell(&self, message: &str) {
        self.events.record(Event {
            target: EventTarget::Node,
            kind: EventKind::Normal,
            reason: "Shutdown",
            message: message.to_owned(),
        });
    }
}
