//! Slices through systemd's D-Bus interface.
//!
//! Each operation uses its own connection and closes it afterwards. systemd sends every change of
//! every unit to all connections on its private socket, so an idle connection would wake the agent
//! all day. Another advantage: the agent need not notice when systemd re-executes itself or the bus
//! restarts. An operation whose connection breaks is repeated from the beginning, and first reads
//! the current state.
//!
//! ```text
//! ensure: what is it? ─ runs ──────────────────────────► SetUnitProperties
//!              └─ does not run ─► StartTransientUnit ─► wait until it runs
//!                                    └─ it has a file of its own: StartUnit, SetUnitProperties ─► wait
//! stop:   what is it? ─ runs ─► StopUnit ─► wait until it does not ─► ResetFailedUnit where it failed
//! ```
//!
//! The end of a job is found by polling. Signals would be lost with the connection.

#[cfg(test)]
pub(super) mod fake;
mod socket;
#[cfg(test)]
mod tests;

use super::slice::{Property, Stage, UnitState, Value};
use crate::dbus::{self, CallError};
use socket::PrivateSocket;
use std::{
    io,
    path::{Path, PathBuf},
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use thiserror::Error;
use tokio::{
    net::UnixStream,
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};
use zbus::{Connection, OwnedObjectPath, Variant, connection::Builder};

/// How long systemd may be silent during one piece of work. While the work waits for its turn, this
/// time begins anew as long as systemd answers other work.
const DEADLINE: Duration = Duration::from_secs(10);
/// Before work that a broken connection cut short is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// Between two looks at a job: doubled from the first up to the last.
const FIRST_LOOK: Duration = Duration::from_millis(2);
const LAST_LOOK: Duration = Duration::from_millis(100);

const DESTINATION: &str = "org.freedesktop.systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1";
const INTERFACE: &str = "org.freedesktop.systemd1.Manager";
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// Where systemd is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemdSockets {
    /// systemd's own socket, for root alone. Asked first: it is there before any bus daemon runs
    /// and while it does not.
    pub private: PathBuf,
    /// The system bus.
    pub bus: PathBuf,
}

impl Default for SystemdSockets {
    fn default() -> Self {
        Self { private: "/run/systemd/private".into(), bus: "/run/dbus/system_bus_socket".into() }
    }
}

/// What went wrong with systemd.
#[derive(Debug, Error)]
pub enum SystemdError {
    /// No connection could be made.
    #[error("systemd can't be reached: {private}; {bus}")]
    Unreachable {
        /// What became of the private socket.
        private: String,
        /// What became of the system bus.
        bus: String,
    },
    /// The deadline passed; `last` is what went wrong on the way, if anything did.
    #[error("systemd has not answered for {seconds} s{}", because(last.as_ref()))]
    Deadline {
        /// The deadline.
        seconds: u64,
        /// The last broken connection.
        last: Option<String>,
    },
    /// systemd says no.
    #[error("systemd refuses {call}: {name}: {message}")]
    Refused {
        /// Name of the method.
        call: &'static str,
        /// Of the D-Bus error.
        name: String,
        /// systemd's words.
        message: String,
    },
    /// The job ended and the unit is not what was asked for.
    #[error("systemd did not {what} it: its state is {state}")]
    Failed {
        /// `start` or `stop`.
        what: &'static str,
        /// The unit's state.
        state: String,
    },
    /// The connection broke, or what came over it was no answer.
    #[error("the connection to systemd broke: {message}")]
    Broken {
        /// What D-Bus says.
        message: String,
    },
}

fn because(last: Option<&String>) -> String {
    last.map(|last| format!(" ({last})")).unwrap_or_default()
}

/// A slice with what it is to have.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    pub(super) name: String,
    /// Set only when it is made.
    pub(super) made_with: Vec<Property>,
    pub(super) limits: Vec<Property>,
}

/// A piece of work.
#[derive(Clone, Copy, Debug)]
enum Work<'a> {
    Ensure(&'a [Slice]),
    Stop(&'a str),
}

/// Speaks to systemd, one piece of work at a time: it has one thread.
#[derive(Debug)]
pub(super) struct Systemd {
    sockets: SystemdSockets,
    deadline: Duration,
    turn: Semaphore,
    /// Counts pieces of work that systemd has answered.
    answered: AtomicU64,
}

impl Systemd {
    pub(super) fn new(sockets: SystemdSockets) -> Self {
        let answered = AtomicU64::new(0);
        Self { sockets, deadline: DEADLINE, turn: Semaphore::new(1), answered }
    }

    #[cfg(test)]
    pub(super) fn with_deadline(sockets: SystemdSockets, deadline: Duration) -> Self {
        Self { deadline, ..Self::new(sockets) }
    }

    /// Makes slices that do not run and sets the limits of those that do, in the given order.
    pub(super) async fn ensure(&self, slices: &[Slice]) -> Result<(), SystemdError> {
        self.work(Work::Ensure(slices)).await
    }

    /// Stops a slice and whatever still runs in it. One that is not there is stopped.
    pub(super) async fn stop(&self, name: &str) -> Result<(), SystemdError> {
        self.work(Work::Stop(name)).await
    }

    /// # Cancel safety
    /// Dropping it drops the connection; what systemd was told by then it does.
    async fn work(&self, work: Work<'_>) -> Result<(), SystemdError> {
        let (turn, until) = self.turn().await?;
        let mut last = None;
        let whole = async {
            loop {
                let done = match Manager::connect(&self.sockets).await {
                    Ok(manager) => {
                        let done = manager.work(work).await;
                        manager.close().await;
                        done
                    }
                    Err(error) => Err(error),
                };
                match done {
                    Err(SystemdError::Broken { message }) => last = Some(message),
                    done => return done,
                }
                tokio::time::sleep(AGAIN).await;
            }
        };
        // On the heap: it is large, and there only while it lasts.
        let done = timeout_at(until, Box::pin(whole)).await;
        if done.is_ok() {
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        drop(turn);
        done.unwrap_or_else(|_| Err(self.silent(last)))
    }

    /// Waits for a turn. Returns it and the time at which systemd counts as silent. After a boot a
    /// hundred pods wait for their turns: while systemd answers one after the other, it is not
    /// silent.
    async fn turn(&self) -> Result<(Option<SemaphorePermit<'_>>, Instant), SystemdError> {
        let mut answered = self.answered.load(Ordering::Relaxed);
        let mut until = Instant::now() + self.deadline;
        let mut turn = pin!(self.turn.acquire());
        loop {
            let taken = timeout_at(until, &mut turn).await;
            let before = std::mem::replace(&mut answered, self.answered.load(Ordering::Relaxed));
            if before != answered {
                until = Instant::now() + self.deadline;
            }
            match taken {
                // Never closed; without a turn the work goes ahead.
                Ok(turn) => return Ok((turn.ok(), until)),
                Err(_) if before != answered => {}
                Err(_) => return Err(self.silent(None)),
            }
        }
    }

    fn silent(&self, last: Option<String>) -> SystemdError {
        SystemdError::Deadline { seconds: self.deadline.as_secs(), last }
    }
}

/// systemd's manager object over one connection.
struct Manager {
    connection: Connection,
}

impl Manager {
    async fn connect(sockets: &SystemdSockets) -> Result<Self, SystemdError> {
        let private = match UnixStream::connect(&sockets.private).await {
            Ok(stream) => return Self::open(stream, true).await,
            Err(error) => error,
        };
        let bus = match UnixStream::connect(&sockets.bus).await {
            Ok(stream) => return Self::open(stream, false).await,
            Err(error) => error,
        };
        let told = |path: &Path, error: &io::Error| format!("{}: {error}", path.display());
        let (private, bus) = (told(&sockets.private, &private), told(&sockets.bus, &bus));
        // If a socket exists, its owner will listen again.
        if sockets.private.exists() || sockets.bus.exists() {
            return Err(SystemdError::Broken { message: format!("{private}; {bus}") });
        }
        Err(SystemdError::Unreachable { private, bus })
    }

    async fn open(stream: UnixStream, private: bool) -> Result<Self, SystemdError> {
        let builder = if private {
            Builder::socket(PrivateSocket(stream)).p2p()
        } else {
            Builder::unix_stream(stream.into_std().map_err(|error| broken(&error))?)
        };
        let connection = builder.build().await.map_err(|error| broken(&error))?;
        Ok(Self { connection })
    }

    async fn close(self) {
        if let Err(error) = self.connection.close().await {
            tracing::debug!(err = %error, "the connection to systemd did not end well");
        }
    }

    async fn work(&self, work: Work<'_>) -> Result<(), SystemdError> {
        match work {
            Work::Ensure(slices) => {
                for slice in slices {
                    self.ensure(slice).await?;
                }
                Ok(())
            }
            Work::Stop(name) => self.stop(name).await,
        }
    }

    async fn ensure(&self, slice: &Slice) -> Result<(), SystemdError> {
        let limits = variants(&slice.limits);
        if self.state(&slice.name).await?.stage() == Stage::Up {
            return self.set_properties(&slice.name, &limits).await;
        }
        let mut properties = variants(&slice.made_with);
        properties.extend(variants(&slice.limits));
        let auxiliary: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
        let arguments = (slice.name.as_str(), "replace", properties, auxiliary);
        match self.call::<_, OwnedObjectPath>("StartTransientUnit", &arguments).await {
            Ok(_) => {}
            // Somebody was faster, or an administrator has written a file for it.
            Err(SystemdError::Refused { name, .. }) if name == UNIT_EXISTS => {
                let arguments = (slice.name.as_str(), "replace");
                self.call::<_, OwnedObjectPath>("StartUnit", &arguments).await?;
                self.set_properties(&slice.name, &limits).await?;
            }
            Err(error) => return Err(error),
        }
        self.wait(&slice.name, Stage::Up, "start").await.map(drop)
    }

    async fn stop(&self, name: &str) -> Result<(), SystemdError> {
        let mut state = self.state(name).await?;
        if state.stage() != Stage::Down {
            match self.call::<_, OwnedObjectPath>("StopUnit", &(name, "replace")).await {
                Ok(_) => state = self.wait(name, Stage::Down, "stop").await?,
                Err(SystemdError::Refused { name, .. }) if name == NO_SUCH_UNIT => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if state.failed() {
            match self.call::<_, ()>("ResetFailedUnit", &(name,)).await {
                Err(SystemdError::Refused { name, .. }) if name == NO_SUCH_UNIT => {}
                done => return done,
            }
        }
        Ok(())
    }

    /// Only until the machine goes down, like the slice itself.
    async fn set_properties(
        &self,
        unit: &str,
        properties: &Vec<(&str, Variant<'_>)>,
    ) -> Result<(), SystemdError> {
        if properties.is_empty() {
            return Ok(());
        }
        self.call("SetUnitProperties", &(unit, true, properties)).await
    }

    /// Waits until no job of the unit is under way.
    async fn wait(
        &self,
        unit: &str,
        wanted: Stage,
        what: &'static str,
    ) -> Result<UnitState, SystemdError> {
        let mut pause = FIRST_LOOK;
        loop {
            let state = self.state(unit).await?;
            match state.stage() {
                stage if stage == wanted => return Ok(state),
                Stage::Changing => {}
                Stage::Up | Stage::Down => {
                    return Err(SystemdError::Failed { what, state: state.active });
                }
            }
            tokio::time::sleep_until(Instant::now() + pause).await;
            pause = (pause * 2).min(LAST_LOOK);
        }
    }

    /// A unit that systemd does not know is inactive.
    async fn state(&self, unit: &str) -> Result<UnitState, SystemdError> {
        type Listed = (
            String,
            String,
            String,
            String,
            String,
            String,
            OwnedObjectPath,
            u32,
            String,
            OwnedObjectPath,
        );
        let listed: Vec<Listed> = self.call("ListUnitsByNames", &(vec![unit],)).await?;
        let Some((_, _, _, active, _, _, _, job, _, _)) = listed.into_iter().next() else {
            return Ok(UnitState { active: "inactive".to_owned(), job: false });
        };
        Ok(UnitState { active, job: job != 0 })
    }

    async fn call<B, R>(&self, method: &'static str, body: &B) -> Result<R, SystemdError>
    where
        B: serde::Serialize + zbus::DynamicType,
        R: serde::de::DeserializeOwned + zbus::Type,
    {
        let place = (DESTINATION, OBJECT, INTERFACE);
        let called = dbus::call(&self.connection, place, method, body);
        called.await.map_err(|error| refused(method, error))
    }
}

fn broken(error: &(impl std::error::Error + ?Sized)) -> SystemdError {
    SystemdError::Broken { message: error.to_string() }
}

fn refused(call: &'static str, error: CallError) -> SystemdError {
    // The bus about a systemd that is just executing itself anew.
    match error.broken_if(&["Disconnected", "NoReply", "ServiceUnknown", "NameHasNoOwner"]) {
        CallError::Refused { name, message } => SystemdError::Refused { call, name, message },
        CallError::Broken(message) => SystemdError::Broken { message },
    }
}

fn variants(properties: &[Property]) -> Vec<(&str, Variant<'_>)> {
    let variant = |property: &'_ Property| match &property.value {
        Value::Bool(on) => Variant::from(*on),
        Value::Number(number) => Variant::from(*number),
        Value::Text(text) => Variant::from(text.clone()),
    };
    properties.iter().map(|property| (property.name, variant(property))).collect()
}
