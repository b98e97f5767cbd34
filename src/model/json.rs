//! JSON text to values.

use serde::de::DeserializeOwned;

/// A value from its JSON text, by way of a [`serde_json::Value`]. The Kubernetes types have a
/// hundred fields, and serde makes the code that reads a type again for each kind of input: this
/// way the binary has it once.
///
/// # Errors
/// When the text is no JSON, or the JSON of something else.
pub fn from_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_value(serde_json::from_slice(text)?)
}
