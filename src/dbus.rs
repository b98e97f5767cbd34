//! Calls of methods over D-Bus, and how their errors are read.

use std::fmt::Display;
use zbus::{Connection, DBusError as _};

/// Why a call has no result.
#[derive(Debug)]
pub enum CallError {
    /// The service, or the bus in its place, answered with an error.
    Refused {
        /// Name of the D-Bus error: `org.freedesktop.DBus.Error.NoReply`.
        name: String,
        /// Its message; may be empty.
        message: String,
    },
    /// The connection broke, or the answer is not of the expected type.
    Broken(String),
}

impl CallError {
    /// Turns the errors by which the bus reports that a service is being restarted into
    /// [`Self::Broken`]. `away`: their names without `org.freedesktop.DBus.Error.`.
    #[must_use]
    pub fn broken_if(self, away: &[&str]) -> Self {
        match self {
            Self::Refused { name, message }
                if name
                    .strip_prefix("org.freedesktop.DBus.Error.")
                    .is_some_and(|name| away.contains(&name)) =>
            {
                Self::Broken(format!("{name}: {message}"))
            }
            Self::Refused { .. } | Self::Broken(_) => self,
        }
    }
}

/// Calls a method of an interface of an object, which the service `to` has.
///
/// # Errors
/// When the service or the bus answers with an error, and when no readable answer comes within the
/// time limit of the connection.
pub async fn call<B, R>(
    connection: &Connection,
    (to, object, interface): (&str, &str, &str),
    method: &str,
    body: &B,
) -> Result<R, CallError>
where
    B: serde::Serialize + zbus::DynamicType,
    R: serde::de::DeserializeOwned + zbus::Type,
{
    let call = connection.call_method(Some(to), object, Some(interface), method, body);
    let answer = call.await.map_err(refused)?;
    answer.body().deserialize().map_err(|error| broken(&error))
}

fn broken(error: &impl Display) -> CallError {
    CallError::Broken(error.to_string())
}

fn refused(error: zbus::Error) -> CallError {
    let (name, message) = if let zbus::Error::MethodError(name, message, _) = error {
        (name.to_string(), message.unwrap_or_default())
    } else if let zbus::Error::FDO(error) = error {
        (error.name().to_string(), error.description().unwrap_or_default().to_owned())
    } else {
        return broken(&error);
    };
    CallError::Refused { name, message }
}
