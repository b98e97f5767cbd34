//! The syntax of names. Each rule says what a good value looks like.

use crate::podspec::clean_path;
use thiserror::Error;

/// Why a text does not satisfy a rule of this module.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(in crate::manifest) enum NameSyntaxError {
    #[error("must be no more than {0} bytes")]
    TooLong(usize),
    #[error("must be non-empty")]
    Empty,
    #[error(
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and \
         must start and end with an alphanumeric character (e.g. 'my-name', or '123-abc')"
    )]
    DnsLabel,
    #[error(
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
         '.', and must start and end with an alphanumeric character (e.g. 'example.com')"
    )]
    DnsSubdomain,
    /// The part of a qualified name before the slash.
    #[error("prefix part {0}")]
    Prefix(Box<NameSyntaxError>),
    /// The part of a qualified name after the slash, or all of it.
    #[error("name part {0}")]
    NamePart(Box<NameSyntaxError>),
    /// The characters of the name part of a qualified name.
    #[error(
        "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
         alphanumeric character (e.g. 'MyName', or 'my.name')"
    )]
    Token,
    #[error(
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
         '.', and must start and end with an alphanumeric character"
    )]
    LabelValue,
    #[error("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")]
    PortCharacters,
    #[error("must contain at least one letter (a-z)")]
    NoLetter,
    #[error("must not contain consecutive hyphens")]
    ConsecutiveHyphens,
    /// A hyphen at the beginning or the end.
    #[error("must not begin or end with a hyphen")]
    OuterHyphen,
    #[error(
        "a valid environment variable name must consist only of printable ASCII characters other \
         than '='"
    )]
    EnvName,
    #[error(
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
         'key.name', or 'KEY_NAME', or 'key-name')"
    )]
    ConfigKey,
    /// A name that every directory has: `.` or `..`.
    #[error("must not be '{0}'")]
    Reserved(&'static str),
    #[error("must not start with '..'")]
    StartsWithDots,
    /// An empty path, or a file name in it that no file can have.
    #[error("must consist of file names of at most 255 bytes, separated by '/'")]
    FileNames,
    #[error("must be the name of a sysctl, like net.ipv4.tcp_syncookies")]
    Sysctl,
    #[error(
        "must consist of alphanumeric characters or '-', and must start and end with an \
         alphanumeric character"
    )]
    Uid,
    #[error("must be a relative path")]
    AbsolutePath,
    /// `..` as a part of a path.
    #[error("must not contain '..'")]
    Backstep,
}

impl NameSyntaxError {
    fn in_prefix(self) -> Self {
        Self::Prefix(Box::new(self))
    }

    fn in_name_part(self) -> Self {
        Self::NamePart(Box::new(self))
    }
}

/// A DNS label: names of namespaces, containers, volumes, hosts.
pub(super) fn dns_label(text: &str) -> Result<(), NameSyntaxError> {
    max_len(text, 63)?;
    if is_label(text) {
        return Ok(());
    }
    Err(NameSyntaxError::DnsLabel)
}

/// A DNS subdomain: names of pods, host names with dots. As for the API server, only the whole has a
/// limit.
pub(super) fn dns_subdomain(text: &str) -> Result<(), NameSyntaxError> {
    max_len(text, 253)?;
    if text.split('.').all(is_label) {
        return Ok(());
    }
    Err(NameSyntaxError::DnsSubdomain)
}

/// The key of a label or annotation: `[prefix/]name`.
pub(super) fn qualified_name(text: &str) -> Result<(), NameSyntaxError> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if let Some(prefix) = prefix {
        if prefix.is_empty() {
            return Err(NameSyntaxError::Empty.in_prefix());
        }
        dns_subdomain(prefix).map_err(NameSyntaxError::in_prefix)?;
    }
    if name.is_empty() {
        return Err(NameSyntaxError::Empty.in_name_part());
    }
    max_len(name, 63).map_err(NameSyntaxError::in_name_part)?;
    if is_token(name) {
        return Ok(());
    }
    Err(NameSyntaxError::Token.in_name_part())
}

/// The value of a label; may be empty.
pub(super) fn label_value(text: &str) -> Result<(), NameSyntaxError> {
    max_len(text, 63)?;
    if text.is_empty() || is_token(text) {
        return Ok(());
    }
    Err(NameSyntaxError::LabelValue)
}

/// The name of a port: an IANA service name.
pub(super) fn port_name(text: &str) -> Result<(), NameSyntaxError> {
    max_len(text, 15)?;
    let fine = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !fine {
        return Err(NameSyntaxError::PortCharacters);
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        return Err(NameSyntaxError::NoLetter);
    }
    if text.contains("--") {
        return Err(NameSyntaxError::ConsecutiveHyphens);
    }
    if text.starts_with('-') || text.ends_with('-') {
        return Err(NameSyntaxError::OuterHyphen);
    }
    Ok(())
}

/// The name of an environment variable.
pub(super) fn env_name(text: &str) -> Result<(), NameSyntaxError> {
    if text.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
        return Ok(());
    }
    Err(NameSyntaxError::EnvName)
}

/// A key of a ConfigMap or a Secret.
pub(in crate::manifest) fn config_key(text: &str) -> Result<(), NameSyntaxError> {
    max_len(text, 253)?;
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if text.is_empty() || !text.bytes().all(inner) {
        return Err(NameSyntaxError::ConfigKey);
    }
    match text {
        "." => Err(NameSyntaxError::Reserved(".")),
        ".." => Err(NameSyntaxError::Reserved("..")),
        _ if text.starts_with("..") => Err(NameSyntaxError::StartsWithDots),
        _ => Ok(()),
    }
}

/// The path of a file below its volume.
pub(super) fn volume_path(text: &str) -> Result<(), NameSyntaxError> {
    inner_path(text)?;
    max_len(text, 4096)?;
    let clean = clean_path(text);
    if clean.starts_with("..") {
        return Err(NameSyntaxError::StartsWithDots);
    }
    if clean.is_empty() || clean.split('/').any(|part| part.len() > 255) {
        return Err(NameSyntaxError::FileNames);
    }
    Ok(())
}

/// The name of a sysctl, with dots or slashes.
pub(super) fn sysctl_name(text: &str) -> Result<(), NameSyntaxError> {
    max_len(text, 253)?;
    let part = |part: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        let outer =
            |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = part.as_bytes();
        outer(bytes.first()) && outer(bytes.last()) && part.bytes().all(inner)
    };
    if text.split(['.', '/']).all(part) {
        return Ok(());
    }
    Err(NameSyntaxError::Sysctl)
}

/// A uid that a manifest gives itself: it becomes part of paths and cgroup names.
pub(super) fn uid(text: &str) -> Result<(), NameSyntaxError> {
    max_len(text, 63)?;
    if is_label(&text.to_ascii_lowercase()) {
        return Ok(());
    }
    Err(NameSyntaxError::Uid)
}

/// A path that stays below where it starts.
pub(super) fn inner_path(text: &str) -> Result<(), NameSyntaxError> {
    if text.starts_with('/') {
        return Err(NameSyntaxError::AbsolutePath);
    }
    no_backsteps(text)
}

/// A path without `..`.
pub(super) fn no_backsteps(text: &str) -> Result<(), NameSyntaxError> {
    if text.split('/').any(|part| part == "..") {
        return Err(NameSyntaxError::Backstep);
    }
    Ok(())
}

fn max_len(text: &str, limit: usize) -> Result<(), NameSyntaxError> {
    if text.len() > limit {
        return Err(NameSyntaxError::TooLong(limit));
    }
    Ok(())
}

fn is_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

fn is_token(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let outer = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    text.bytes().all(inner) && outer(bytes.first()) && outer(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_63_characters_and_subdomains_253_with_or_without_dots() {
        assert!(dns_label(&"a".repeat(63)).is_ok() && dns_label(&"a".repeat(64)).is_err());
        assert!(uid(&"a".repeat(63)).is_ok() && uid(&"a".repeat(64)).is_err());
        for name in ["a".repeat(253), ["a"; 127].join(".")] {
            assert_eq!(dns_subdomain(&name), Ok(()));
            assert!(dns_subdomain(&format!("{name}a")).is_err());
        }
        for wrong in ["", "-a", "a-", "a..b", ".a", "a.", "A", "a_b"] {
            assert!(dns_subdomain(wrong).is_err(), "{wrong:?}");
        }
    }
}
