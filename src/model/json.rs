//! JSON text to values, and values to JSON.

use serde::{Serialize, de::DeserializeOwned};

/// A value from its JSON text, by way of a [`serde_json::Value`]. The Kubernetes types have a
/// hundred fields, and serde makes the code that reads a type again for each kind of input: this
/// way the binary has it once.
///
/// # Errors
/// When the text is no JSON, or the JSON of something else.
pub fn from_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_value(serde_json::from_slice(text)?)
}

/// A value as a [`serde_json::Value`], by way of its JSON text: [`serde_json::to_value`] would have
/// the code that writes each type in the binary a second time.
///
/// # Errors
/// When the value has no JSON.
pub fn to_json_value<T: Serialize>(value: &T) -> Result<serde_json::Value, serde_json::Error> {
    serde_json::from_slice(&serde_json::to_vec(value)?)
}
