//! logind over the system bus: the longest delay of a shutdown, the delay lock, and the signal that
//! announces a shutdown.

use crate::dbus::{self, CallError};
use std::{
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};
use thiserror::Error;
use tokio::net::UnixStream;
use tokio_stream::StreamExt as _;
use zbus::{
    Connection, Message, MessageStream, OwnedFd, OwnedVariant, Variant, connection::Builder,
    message::Type,
};

/// The deadline of a call.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often the delay is read after logind was told to reload its configuration, and the pause
/// before the first reading. The pause doubles.
const LOOKS: u32 = 5;
const FIRST_LOOK: Duration = Duration::from_millis(100);

const LOGIND: &str = "org.freedesktop.login1";
const OBJECT: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const SYSTEMD: &str = "org.freedesktop.systemd1";
const BUS: &str = "org.freedesktop.DBus";
/// The match rules of the signals.
const SIGNALS: [&str; 2] = [
    "type='signal',sender='org.freedesktop.login1',path='/org/freedesktop/login1',\
     interface='org.freedesktop.login1.Manager',member='PrepareForShutdown'",
    "type='signal',sender='org.freedesktop.DBus',interface='org.freedesktop.DBus',\
     member='NameOwnerChanged',arg0='org.freedesktop.login1'",
];
/// Errors of the bus when no process owns a name and no service can be started for it.
const NOBODY: [&str; 3] = [
    "org.freedesktop.DBus.Error.ServiceUnknown",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
    "org.freedesktop.systemd1.NoSuchUnit",
];

#[derive(Debug, Error)]
pub(super) enum LogindError {
    /// Nothing listens where the bus should be.
    #[error("no system bus at {path}: {error}", path = path.display())]
    NoBus { path: PathBuf, error: io::Error },
    /// The bus is there and logind is not.
    #[error("no logind on the system bus")]
    NoLogind,
    /// logind refused a call.
    #[error("logind refuses {call}: {message}")]
    Refused { call: &'static str, message: String },
    /// The connection broke, or the response was not valid.
    #[error("the connection to logind broke: {0}")]
    Broken(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The machine is about to shut down.
    GoingDown,
    /// The shutdown was cancelled.
    StaysUp,
    /// Another logind process has taken over, which knows of no lock.
    NewLogind,
}

/// A connection to the bus that receives the signals of logind.
pub(super) struct Logind {
    connection: Connection,
    messages: MessageStream,
    /// The bus name of logind's connection. Any process can send a signal of any name to a known
    /// address; only signals from this connection count.
    owner: Option<String>,
}

impl Logind {
    /// Connects and subscribes to the signals. Does not check whether logind exists.
    pub(super) async fn connect(bus: &Path) -> Result<Self, LogindError> {
        let no_bus = |error| LogindError::NoBus { path: bus.to_owned(), error };
        let stream = UnixStream::connect(bus).await.map_err(no_bus)?;
        let stream = stream.into_std().map_err(no_bus)?;
        let builder = Builder::unix_stream(stream).method_timeout(DEADLINE);
        let built = tokio::time::timeout(DEADLINE, Box::pin(builder.build())).await;
        let connection = built.map_err(|late| broken(&late))?.map_err(|error| broken(&error))?;
        let messages = MessageStream::from(&connection);
        let logind = Self { connection, messages, owner: None };
        for rule in SIGNALS {
            logind.call_bus::<_, ()>("AddMatch", &(rule,)).await?;
        }
        Ok(logind)
    }

    /// Finds logind, which the bus starts if it does not run. Returns true when the machine is
    /// already shutting down.
    pub(super) async fn find(&mut self) -> Result<bool, LogindError> {
        self.owner = None;
        let preparing = self.property("PreparingForShutdown").await?;
        self.owner = Some(self.call_bus("GetNameOwner", &(LOGIND,)).await?);
        if let Variant::Bool(preparing) = &*preparing {
            return Ok(*preparing);
        }
        Err(LogindError::Broken("PreparingForShutdown is no truth value".to_owned()))
    }

    /// `InhibitDelayMaxSec`: the longest time that logind delays a shutdown.
    pub(super) async fn longest_delay(&self) -> Result<Duration, LogindError> {
        let delay = self.property("InhibitDelayMaxUSec").await?;
        if let Variant::U64(micros) = &*delay {
            return Ok(Duration::from_micros(*micros));
        }
        Err(LogindError::Broken("InhibitDelayMaxUSec is no number".to_owned()))
    }

    /// Makes logind read its configuration again, and waits until its longest delay is at least
    /// `wanted`. Returns the longest delay in the end.
    ///
    /// # Errors
    /// [`LogindError::Refused`] also where there is no systemd to send the signal (elogind).
    pub(super) async fn reload(&self, wanted: Duration) -> Result<Duration, LogindError> {
        const HANGUP: i32 = 1;
        let (object, interface) = ("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager");
        let arguments = ("systemd-logind.service", "all", HANGUP);
        self.call::<_, ()>((SYSTEMD, object, interface), "KillUnit", &arguments).await?;
        let mut pause = FIRST_LOOK;
        for _ in 1..LOOKS {
            tokio::time::sleep(pause).await;
            pause *= 2;
            let delay = self.longest_delay().await?;
            if delay >= wanted {
                return Ok(delay);
            }
        }
        tokio::time::sleep(pause).await;
        self.longest_delay().await
    }

    /// Takes the delay lock: the machine does not shut down until it is closed or the longest delay
    /// is over.
    pub(super) async fn lock(&self) -> Result<OwnedFd, LogindError> {
        let arguments = ("shutdown", "nodelet", "Pods are given time to end", "delay");
        self.call((LOGIND, OBJECT, MANAGER), "Inhibit", &arguments).await
    }

    /// Waits for the next relevant signal.
    ///
    /// # Cancel safety
    /// Cancel safe: signals that were not received yet are kept for the next call.
    pub(super) async fn hear(&mut self) -> Result<Heard, LogindError> {
        loop {
            let message = match self.messages.next().await {
                Some(Ok(message)) => message,
                Some(Err(error)) => return Err(broken(&error)),
                None => return Err(LogindError::Broken("it was closed".to_owned())),
            };
            if let Some(heard) = self.take(&message) {
                return Ok(heard);
            }
        }
    }

    fn take(&mut self, message: &Message) -> Option<Heard> {
        if message.message_type() != Type::Signal {
            return None;
        }
        let header = message.header();
        let (member, sender) = (header.member()?.as_str(), header.sender()?.as_str());
        match (header.interface()?.as_str(), member) {
            (MANAGER, "PrepareForShutdown") if self.owner.as_deref() == Some(sender) => {
                let down: bool = message.body().deserialize().ok()?;
                Some(if down { Heard::GoingDown } else { Heard::StaysUp })
            }
            // Only the bus itself can send under its own name.
            (BUS, "NameOwnerChanged") if sender == BUS => {
                let (name, _, new): (String, String, String) = message.body().deserialize().ok()?;
                let other = name == LOGIND && !new.is_empty() && self.owner.as_ref() != Some(&new);
                other.then_some(Heard::NewLogind)
            }
            _ => None,
        }
    }

    async fn property(&self, name: &'static str) -> Result<OwnedVariant, LogindError> {
        let properties = "org.freedesktop.DBus.Properties";
        self.call((LOGIND, OBJECT, properties), "Get", &(MANAGER, name)).await
    }

    async fn call_bus<B, R>(&self, method: &'static str, body: &B) -> Result<R, LogindError>
    where
        B: serde::Serialize + zbus::DynamicType,
        R: serde::de::DeserializeOwned + zbus::Type,
    {
        self.call((BUS, "/org/freedesktop/DBus", BUS), method, body).await
    }

    async fn call<B, R>(
        &self,
        place: (&str, &str, &str),
        method: &'static str,
        body: &B,
    ) -> Result<R, LogindError>
    where
        B: serde::Serialize + zbus::DynamicType,
        R: serde::de::DeserializeOwned + zbus::Type,
    {
        let called = dbus::call(&self.connection, place, method, body);
        called.await.map_err(|error| refused(place.0, method, error))
    }
}

fn broken(error: &(impl std::error::Error + ?Sized)) -> LogindError {
    LogindError::Broken(error.to_string())
}

fn refused(to: &str, call: &'static str, error: CallError) -> LogindError {
    // Errors of the bus while logind restarts.
    match error.broken_if(&["Disconnected", "NoReply", "TimedOut", "Timeout"]) {
        // A missing systemd says nothing about logind.
        CallError::Refused { name, .. } if to != SYSTEMD && NOBODY.contains(&name.as_str()) => {
            LogindError::NoLogind
        }
        CallError::Refused { name, message } => {
            LogindError::Refused { call, message: format!("{name}: {message}") }
        }
        CallError::Broken(message) => LogindError::Broken(message),
    }
}

/// Writes the drop-in that sets logind's longest delay, atomically.
pub(super) fn write_drop_in(path: &Path, delay: Duration) -> io::Result<()> {
    let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
    let text = format!(
        "# Written by nodelet, so that pods have time to end before the machine goes down:\n\
         # shutdownGracePeriod and shutdownGracePeriodByPodPriority in its configuration.\n\
         [Login]\nInhibitDelayMaxSec={seconds}\n"
    );
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    fs::create_dir_all(dir)?;
    // logind reads only files that end in .conf.
    let beside = dir.join(format!(".{}.new", name.to_string_lossy()));
    let mut file = fs::File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)
}
