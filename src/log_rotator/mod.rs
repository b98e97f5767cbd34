//! Rotates the logs of running containers: looks at their sizes when [`Growth`] says so, gives a
//! log that has reached its limit another name, and asks the runtime to open a new file.
//!
//! A log that does not grow has an inotify watch that reports one change and then ends; after it,
//! the log is looked at by its rate until it does not grow any more. So an idle log costs nothing
//! but one look in each `containerLogMonitorInterval`, and a busy one no events.
//!
//! Between the new name and the new file the runtime goes on writing to the old one, and no line is
//! lost. When the agent ends in between, the next one finds no current file and asks for a new one.
//! When the runtime does not answer, the file gets its old name back.

use crate::{
    blocking::{COMPRESSIONS, COMPRESSIONS_THREADS, Crashed, LOG_FILES},
    clock,
    cri::{CriError, RuntimeClient},
    hostfiles::{HostFileError, HostFiles, LogPlace, Tidied},
    log_rotation::{Growth, NextLook, RotationSettings, files::over_total, share},
    model::{ContainerId, PodViews, error_chain},
};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use std::{
    collections::{BTreeMap, HashMap},
    io,
    pin::Pin,
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The time that the runtime has to open a new file.
const REOPEN_DEADLINE: Duration = Duration::from_secs(10);
/// The time that rotations under way have when the agent ends.
const END_DEADLINE: Duration = Duration::from_secs(2);
/// How long a container that runs may be without a log before the runtime is asked for a new file.
const MISSING: Duration = Duration::from_secs(1);
/// The longest sleep: a due time is boot time, which continues while the machine is suspended, but
/// timers stop then.
const RESYNC: Duration = Duration::from_secs(60);
/// Buffer for inotify events, which have no names here.
const EVENTS_BYTES: usize = 4 << 10;

/// What the task works with.
pub struct LogRotatorParts {
    pub runtime: RuntimeClient,
    pub files: HostFiles,
    pub settings: RotationSettings,
    /// What runs.
    pub pods: watch::Receiver<Arc<PodViews>>,
}

/// The task.
pub struct LogRotatorTask {
    parts: LogRotatorParts,
    logs: BTreeMap<ContainerId, Log>,
    hints: Option<Hints>,
    jobs: FuturesUnordered<Job>,
    /// A job looks at logs.
    looking: bool,
    /// Jobs that rotate.
    rotating: usize,
    /// Jobs that compress.
    tidying: usize,
    /// When all logs of the node are measured next; `None` while they are measured, and without
    /// `containerLogMaxTotalSize`.
    measure_at: Option<Duration>,
    /// Bytes of instances that have ended which the last measurement has found and left.
    ended: u64,
}

/// The log of a container that runs. Times are boot time.
#[allow(clippy::struct_excessive_bools, reason = "each says what one kind of job is doing")]
struct Log {
    place: LogPlace,
    growth: Growth,
    /// When to look at it next.
    look_at: Duration,
    /// When to look for files to compress.
    tidy_at: Option<Duration>,
    /// Since when there is no current file.
    missing_since: Option<Duration>,
    /// Says when it begins to grow.
    watch: Option<WatchDescriptor>,
    /// A job rotates it.
    rotating: bool,
    /// A job compresses its old files. It goes on being rotated meanwhile: a file that is removed
    /// under the job is left alone.
    tidying: bool,
    /// The last rotation failed, and the log of the agent says so.
    failing: bool,
    /// The last compression failed, and the log of the agent says so.
    untidy: bool,
}

impl Log {
    fn new(place: LogPlace, now: Duration) -> Self {
        Self {
            place,
            growth: Growth::new(now),
            look_at: NextLook::first(now),
            tidy_at: None,
            missing_since: None,
            watch: None,
            rotating: false,
            tidying: false,
            failing: false,
            untidy: false,
        }
    }
}

/// inotify, with the containers whose logs are watched.
struct Hints {
    events: EventStream<Vec<u8>>,
    watches: Watches,
    watched: HashMap<WatchDescriptor, ContainerId>,
    /// Unknown watches that have ended while a job looked: the job may have made them.
    ended: Vec<WatchDescriptor>,
}

type Job = Pin<Box<dyn Future<Output = Done> + Send>>;

/// The end of a job.
enum Done {
    Looked(Result<Vec<Looked>, Crashed>),
    Rotated(ContainerId, Result<Rotated, RotationError>),
    Tidied(ContainerId, Result<Tidied, RotationError>),
    /// How many bytes of instances that have ended are left.
    Measured(Result<u64, Crashed>),
}

/// A log to look at.
struct Look {
    id: ContainerId,
    place: LogPlace,
    /// Watch it if it still has this size, in bytes.
    watch_at: Option<u64>,
}

/// What a look has found.
struct Looked {
    id: ContainerId,
    /// In bytes; `None`: there is no file.
    size: Result<Option<u64>, HostFileError>,
    /// It had a watch when the look began.
    was_watched: bool,
    watch: Option<WatchDescriptor>,
}

/// What a rotation has done.
enum Rotated {
    /// The current file has another name, and there is a new one.
    SetAside,
    /// There was no current file; the runtime was asked to make one.
    Reopened,
}

/// Why a log was not rotated or compressed.
#[derive(Debug, thiserror::Error)]
enum RotationError {
    #[error(transparent)]
    File(#[from] HostFileError),
    #[error(transparent)]
    Crashed(#[from] Crashed),
    #[error("the runtime did not open a new log")]
    Reopen(#[source] CriError),
    #[error("the runtime did not open a new log within {} s", REOPEN_DEADLINE.as_secs())]
    Late,
}

impl LogRotatorTask {
    #[must_use]
    pub fn new(parts: LogRotatorParts) -> Self {
        let measure_at = parts.settings.max_total_size.map(|_| Duration::ZERO);
        Self {
            parts,
            logs: BTreeMap::new(),
            hints: None,
            jobs: FuturesUnordered::new(),
            looking: false,
            rotating: 0,
            tidying: 0,
            measure_at,
            ended: 0,
        }
    }

    /// Runs until shutdown; rotations that are under way then end first.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let settings = self.parts.settings;
        if settings.max_size.is_none() && settings.max_total_size.is_none() {
            return shutdown.cancelled().await;
        }
        self.hints = Hints::new();
        self.parts.pods.mark_changed();
        loop {
            let now = clock::now().boot;
            self.begin(now);
            let pause = self.wake_at().map_or(RESYNC, |due| due.saturating_sub(now));
            // Cancel-safe: every arm only waits, and the set of jobs keeps those that it holds.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return self.end().await,
                changed = self.parts.pods.changed() => {
                    if changed.is_err() {
                        // The workers end only with the agent.
                        shutdown.cancelled().await;
                        return self.end().await;
                    }
                    self.observe();
                }
                Some(done) = self.jobs.next() => self.take(done),
                event = next_event(&mut self.hints) => self.wake(event),
                () = tokio::time::sleep(pause.min(RESYNC)) => {}
            }
        }
    }

    /// A file that has lost its name and was not replaced yet would stay so until the next start.
    async fn end(mut self) {
        let deadline = tokio::time::sleep(END_DEADLINE);
        tokio::pin!(deadline);
        while self.rotating > 0 {
            tokio::select! {
                done = self.jobs.next() => match done {
                    Some(done) => self.take(done),
                    None => return,
                },
                () = &mut deadline => return,
            }
        }
    }

    /// Takes in which containers run.
    fn observe(&mut self) {
        let now = clock::now().boot;
        let pods = Arc::clone(&self.parts.pods.borrow_and_update());
        let mut gone = std::mem::take(&mut self.logs);
        for view in pods.values() {
            for instance in view.containers.iter().filter(|one| one.running_since.is_some()) {
                let log = gone.remove(&instance.id).unwrap_or_else(|| {
                    let place = LogPlace {
                        key: view.key.clone(),
                        uid: view.uid.clone(),
                        container: instance.name.clone(),
                        restart_count: instance.restart_count,
                    };
                    let tidy_at = Some(now.saturating_add(self.parts.settings.interval));
                    Log { tidy_at, ..Log::new(place, now) }
                });
                self.logs.insert(instance.id.clone(), log);
            }
        }
        if let Some(hints) = &mut self.hints {
            gone.into_values().filter_map(|log| log.watch).for_each(|watch| hints.forget(watch));
        }
    }

    /// Starts the jobs that are due.
    fn begin(&mut self, now: Duration) {
        let workers = self.parts.settings.workers.clamp(1, COMPRESSIONS_THREADS);
        let mut looks = Vec::new();
        for (id, log) in &mut self.logs {
            if log.look_at <= now && !self.looking && !log.rotating {
                let watch_at = log.watch.is_none().then(|| log.growth.size());
                looks.push(Look { id: id.clone(), place: log.place.clone(), watch_at });
            }
            let due = log.tidy_at.is_some_and(|due| due <= now) && !log.tidying;
            if due && self.tidying < workers {
                self.tidying += 1;
                (log.tidying, log.tidy_at) = (true, None);
                let (files, place, id) = (self.parts.files.clone(), log.place.clone(), id.clone());
                self.jobs.push(Box::pin(async move {
                    let work = move || files.tidy_log(&place, clock::now().wall);
                    let tidied = COMPRESSIONS.run(work).await;
                    Done::Tidied(id, tidied.map_err(Into::into).and_then(|tidied| Ok(tidied?)))
                }));
            }
        }
        if !looks.is_empty() {
            self.looking = true;
            let files = self.parts.files.clone();
            let watches = self.hints.as_ref().map(|hints| hints.watches.clone());
            self.jobs.push(Box::pin(async move {
                Done::Looked(LOG_FILES.run(move || look_at_all(&files, watches, looks)).await)
            }));
        }
        if self.measure_at.is_some_and(|due| due <= now)
            && let Some(max_total_size) = self.parts.settings.max_total_size
        {
            self.measure_at = None;
            self.jobs.push(self.keep_total(max_total_size));
        }
    }

    /// When something is due next. What waits for a job is due when the job ends.
    fn wake_at(&self) -> Option<Duration> {
        let logs = self.logs.values();
        let looks = logs.clone().filter(|log| !self.looking && !log.rotating);
        let looks = looks.map(|log| log.look_at);
        let workers = self.parts.settings.workers.clamp(1, COMPRESSIONS_THREADS);
        let tidies = logs.filter(|log| self.tidying < workers && !log.tidying);
        let tidies = tidies.filter_map(|log| log.tidy_at);
        looks.chain(tidies).chain(self.measure_at).min()
    }

    fn take(&mut self, done: Done) {
        let now = clock::now().boot;
        let (limit, interval) = (self.limit(), self.parts.settings.interval);
        match done {
            Done::Looked(looked) => {
                self.looking = false;
                match looked {
                    Ok(all) => all.into_iter().for_each(|looked| self.looked(looked, now)),
                    Err(error) => {
                        tracing::error!("{error}: container logs");
                        self.put_off(now);
                    }
                }
                if let Some(hints) = &mut self.hints {
                    hints.ended.clear();
                }
            }
            Done::Rotated(id, result) => {
                self.rotating -= 1;
                let Some(log) = self.logs.get_mut(&id) else { return };
                log.rotating = false;
                match result {
                    Ok(Rotated::SetAside) => {
                        tracing::debug!(%id, "rotated the log of a container");
                        log.failing = false;
                        log.look_at = log.growth.rotated(now, limit);
                        log.tidy_at.get_or_insert(now.saturating_add(interval));
                    }
                    // Not at once: a runtime that writes elsewhere would be asked without end.
                    Ok(Rotated::Reopened) => log.look_at = now.saturating_add(interval),
                    Err(error) => {
                        let err = error_chain(&error);
                        let LogPlace { key, container, .. } = &log.place;
                        if !std::mem::replace(&mut log.failing, true) {
                            tracing::warn!(pod = %key, container = &**container, err, "cannot rotate the container's log");
                        }
                        log.look_at = now.saturating_add(interval);
                    }
                }
            }
            Done::Tidied(id, result) => {
                self.tidying -= 1;
                let Some(log) = self.logs.get_mut(&id) else { return };
                log.tidying = false;
                let left = match result {
                    Ok(tidied) => {
                        log.untidy = false;
                        tidied.left > 0
                    }
                    Err(error) => {
                        let err = error_chain(&error);
                        let LogPlace { key, container, .. } = &log.place;
                        if !std::mem::replace(&mut log.untidy, true) {
                            tracing::warn!(pod = %key, container = &**container, err, "cannot compress the container's old logs");
                        }
                        true
                    }
                };
                if left {
                    log.tidy_at.get_or_insert(now.saturating_add(interval));
                }
            }
            Done::Measured(ended) => {
                self.measure_at = Some(now.saturating_add(interval));
                match ended {
                    Ok(ended) => self.ended = ended,
                    Err(error) => tracing::error!("{error}: container logs"),
                }
            }
        }
    }

    /// The size in bytes from which on a log is rotated.
    fn limit(&self) -> u64 {
        let RotationSettings { max_size, max_total_size, .. } = self.parts.settings;
        share(max_size.unwrap_or(u64::MAX), max_total_size, self.logs.len(), self.ended)
    }

    /// Looks at everything that is due a while later.
    fn put_off(&mut self, now: Duration) {
        let later = now.saturating_add(self.parts.settings.interval);
        for log in self.logs.values_mut() {
            log.look_at = log.look_at.max(later);
        }
    }

    fn looked(&mut self, Looked { id, size, was_watched, watch }: Looked, now: Duration) {
        let (limit, interval) = (self.limit(), self.parts.settings.interval);
        let Some(log) = self.logs.get_mut(&id).filter(|log| !log.rotating) else {
            // It has ended meanwhile.
            if let (Some(hints), Some(watch)) = (&mut self.hints, watch) {
                hints.forget(watch);
            }
            return;
        };
        // The hint that has ended its watch came during the look.
        let mut woken = was_watched && log.watch.is_none();
        if let (Some(hints), Some(watch)) = (&mut self.hints, watch) {
            woken = hints.ended.contains(&watch);
            if !woken {
                hints.watched.insert(watch.clone(), id.clone());
                log.watch = Some(watch);
            }
        }
        let next = match size {
            Ok(Some(size)) => {
                log.missing_since = None;
                log.growth.look(size, now, limit, interval)
            }
            // A rotation has not come to its end; or the pod is being removed, and the view of it
            // is late.
            Ok(None) if log.missing_since.is_none() => {
                log.missing_since = Some(now);
                NextLook::At(now.saturating_add(MISSING))
            }
            Ok(None) => NextLook::Rotate,
            Err(error) => {
                if !std::mem::replace(&mut log.failing, true) {
                    tracing::warn!("cannot watch a container's log: {error}");
                }
                NextLook::At(now.saturating_add(interval))
            }
        };
        match next {
            NextLook::Quiet(_) if woken => log.look_at = NextLook::first(now),
            NextLook::At(due) | NextLook::Quiet(due) => log.look_at = due,
            NextLook::Rotate => {
                log.rotating = true;
                if let (Some(hints), Some(watch)) = (&mut self.hints, log.watch.take()) {
                    hints.forget(watch);
                }
                self.rotating += 1;
                let (files, runtime) = (self.parts.files.clone(), self.parts.runtime.clone());
                let (place, max_files) = (log.place.clone(), self.parts.settings.max_files);
                self.jobs.push(Box::pin(async move {
                    let rotated = rotate(files, runtime, &id, place, max_files).await;
                    Done::Rotated(id, rotated)
                }));
            }
        }
    }

    /// Takes in a hint.
    fn wake(&mut self, event: io::Result<(WatchDescriptor, EventMask)>) {
        let now = clock::now().boot;
        match event {
            Ok((_, mask)) if mask.contains(EventMask::Q_OVERFLOW) => {
                self.hints = None;
                self.hints = Hints::new();
                self.look_at_all(now);
            }
            Ok((watch, _)) => {
                let Some(hints) = &mut self.hints else { return };
                let Some(id) = hints.watched.remove(&watch) else {
                    if self.looking {
                        hints.ended.push(watch);
                    }
                    return;
                };
                if let Some(log) = self.logs.get_mut(&id) {
                    log.watch = None;
                    log.growth.woken(now);
                    log.look_at = log.look_at.min(NextLook::first(now));
                }
            }
            Err(error) => {
                tracing::warn!(
                    err = %error,
                    "inotify failed: container logs are looked at periodically"
                );
                self.hints = None;
                self.look_at_all(now);
            }
        }
    }

    /// Looks at every log, because hints were lost and with them all watches.
    fn look_at_all(&mut self, now: Duration) {
        for log in self.logs.values_mut() {
            (log.watch, log.look_at) = (None, now);
        }
    }

    /// Removes the oldest files when all container logs together take too much.
    fn keep_total(&self, max_total_size: u64) -> Job {
        let files = self.parts.files.clone();
        let may_run = first_that_may_run(&self.parts.pods.borrow());
        let work = move || {
            let logs = files.measure_logs(&may_run, clock::now().wall);
            let mut ended = logs.ended;
            for old in over_total(logs, max_total_size) {
                if let Err(error) = files.remove_old_log(&old) {
                    tracing::warn!("cannot keep container logs below their limit: {error}");
                } else if old.is_last {
                    ended = ended.saturating_sub(old.size);
                    let LogPlace { key, container, restart_count, .. } = &old.place;
                    tracing::info!(
                        pod = %key, container = &**container, restart_count,
                        "emptied the log of an instance that has ended: container logs took more than containerLogMaxTotalSize"
                    );
                }
            }
            ended
        };
        Box::pin(async move { Done::Measured(LOG_FILES.run(work).await) })
    }
}

/// For each container the place of its first instance that may run: the newest one, or the next
/// one when that does not run.
fn first_that_may_run(pods: &PodViews) -> Vec<LogPlace> {
    let mut places = Vec::new();
    for view in pods.values() {
        for newest in &view.containers {
            let ended = u32::from(newest.running_since.is_none());
            places.push(LogPlace {
                key: view.key.clone(),
                uid: view.uid.clone(),
                container: newest.name.clone(),
                restart_count: newest.restart_count.saturating_add(ended),
            });
        }
    }
    places
}

impl Hints {
    fn new() -> Option<Self> {
        let inotify = Inotify::init().and_then(|inotify| {
            let watches = inotify.watches();
            Ok((watches, inotify.into_event_stream(vec![0; EVENTS_BYTES])?))
        });
        match inotify {
            Ok((watches, events)) => {
                Some(Self { events, watches, watched: HashMap::new(), ended: Vec::new() })
            }
            Err(error) => {
                tracing::warn!(err = %error, "no inotify: container logs are looked at periodically");
                None
            }
        }
    }

    /// Ends a watch.
    fn forget(&mut self, watch: WatchDescriptor) {
        self.watched.remove(&watch);
        // It may have ended by itself.
        drop(self.watches.remove(watch));
    }
}

/// Waits for ever without inotify.
async fn next_event(hints: &mut Option<Hints>) -> io::Result<(WatchDescriptor, EventMask)> {
    let Some(hints) = hints else { return std::future::pending().await };
    match hints.events.next().await {
        Some(event) => event.map(|event| (event.wd, event.mask)),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Blocks.
fn look_at_all(files: &HostFiles, mut watches: Option<Watches>, looks: Vec<Look>) -> Vec<Looked> {
    let look = |Look { id, place, watch_at }: Look| {
        let (size, was_watched) = (files.log_size(&place), watch_at.is_none());
        let mut looked = Looked { id, size, was_watched, watch: None };
        if let (Ok(Some(size)), Some(watches)) = (&looked.size, &mut watches)
            && watch_at == Some(*size)
            && let Ok(path) = files.current_log(&place)
        {
            let mask = WatchMask::MODIFY | WatchMask::ONESHOT | WatchMask::DONT_FOLLOW;
            // Without a watch it is looked at periodically.
            looked.watch = watches.add(path, mask).ok();
            // What was written between the look and the watch.
            looked.size = files.log_size(&place);
        }
        looked
    };
    looks.into_iter().map(look).collect()
}

/// Sets the current file aside, if there is one, and lets the runtime make a new one.
async fn rotate(
    files: HostFiles,
    runtime: RuntimeClient,
    id: &ContainerId,
    place: LogPlace,
    max_files: usize,
) -> Result<Rotated, RotationError> {
    let (with, at) = (files.clone(), place.clone());
    let set_aside = move || match with.log_size(&at)? {
        Some(_) => with.set_log_aside(&at, max_files, clock::now().wall),
        None => Ok(None),
    };
    let stamp = LOG_FILES.run(set_aside).await??;
    let reopened = tokio::time::timeout(REOPEN_DEADLINE, runtime.reopen_container_log(id)).await;
    let error = match reopened {
        Ok(Ok(())) => return Ok(stamp.map_or(Rotated::Reopened, |_| Rotated::SetAside)),
        Ok(Err(error)) => RotationError::Reopen(error),
        Err(_) => RotationError::Late,
    };
    if let Some(stamp) = stamp {
        LOG_FILES.run(move || files.put_log_back(&place, &stamp)).await??;
    }
    Err(error)
}

#[cfg(test)]
mod tests;
