//! The syntax of names. Each rule says what a good value looks like.

use crate::podspec::clean_path;

/// A DNS label: names of namespaces, containers, volumes, hosts.
pub(super) fn dns_label(text: &str) -> Result<(), String> {
    max_len(text, 63)?;
    if is_label(text) {
        return Ok(());
    }
    Err("a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and \
         must start and end with an alphanumeric character (e.g. 'my-name', or '123-abc')"
        .to_owned())
}

/// A DNS subdomain: names of pods, host names with dots. As for the API server, only the whole has a
/// limit.
pub(super) fn dns_subdomain(text: &str) -> Result<(), String> {
    max_len(text, 253)?;
    if text.split('.').all(is_label) {
        return Ok(());
    }
    Err("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
         '.', and must start and end with an alphanumeric character (e.g. 'example.com')"
        .to_owned())
}

/// The key of a label or annotation: `[prefix/]name`.
pub(super) fn qualified_name(text: &str) -> Result<(), String> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if let Some(prefix) = prefix {
        if prefix.is_empty() {
            return Err("prefix part must be non-empty".to_owned());
        }
        dns_subdomain(prefix).map_err(|detail| format!("prefix part {detail}"))?;
    }
    if name.is_empty() {
        return Err("name part must be non-empty".to_owned());
    }
    max_len(name, 63).map_err(|detail| format!("name part {detail}"))?;
    if is_token(name) {
        return Ok(());
    }
    Err("name part must consist of alphanumeric characters, '-', '_' or '.', and must start and \
         end with an alphanumeric character (e.g. 'MyName', or 'my.name')"
        .to_owned())
}

/// The value of a label; may be empty.
pub(super) fn label_value(text: &str) -> Result<(), String> {
    max_len(text, 63)?;
    if text.is_empty() || is_token(text) {
        return Ok(());
    }
    Err("a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
         '.', and must start and end with an alphanumeric character"
        .to_owned())
}

/// The name of a port: an IANA service name.
pub(super) fn port_name(text: &str) -> Result<(), String> {
    max_len(text, 15)?;
    let fine = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !fine {
        return Err(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned()
        );
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        return Err("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        return Err("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        return Err("must not begin or end with a hyphen".to_owned());
    }
    Ok(())
}

/// The name of an environment variable.
pub(super) fn env_name(text: &str) -> Result<(), String> {
    if text.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
        return Ok(());
    }
    Err("a valid environment variable name must consist only of printable ASCII characters other \
         than '='"
        .to_owned())
}

/// A key of a ConfigMap or a Secret.
pub(in crate::manifest) fn config_key(text: &str) -> Result<(), String> {
    max_len(text, 253)?;
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if text.is_empty() || !text.bytes().all(inner) {
        return Err("a valid config key must consist of alphanumeric characters, '-', '_' or '.' \
                    (e.g. 'key.name', or 'KEY_NAME', or 'key-name')"
            .to_owned());
    }
    match text {
        "." | ".." => Err(format!("must not be '{text}'")),
        _ if text.starts_with("..") => Err("must not start with '..'".to_owned()),
        _ => Ok(()),
    }
}

/// The path of a file below its volume.
pub(super) fn volume_path(text: &str) -> Result<(), String> {
    inner_path(text)?;
    max_len(text, 4096)?;
    let clean = clean_path(text);
    if clean.starts_with("..") {
        return Err("must not start with '..'".to_owned());
    }
    if clean.is_empty() || clean.split('/').any(|part| part.len() > 255) {
        return Err("must consist of file names of at most 255 bytes, separated by '/'".to_owned());
    }
    Ok(())
}

/// The name of a sysctl, with dots or slashes.
pub(super) fn sysctl_name(text: &str) -> Result<(), String> {
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
    Err("must be the name of a sysctl, like net.ipv4.tcp_syncookies".to_owned())
}

/// A uid that a manifest gives itself: it becomes part of paths and cgroup names.
pub(super) fn uid(text: &str) -> Result<(), String> {
    max_len(text, 63)?;
    if is_label(&text.to_ascii_lowercase()) {
        return Ok(());
    }
    Err("must consist of alphanumeric characters or '-', and must start and end with an \
         alphanumeric character"
        .to_owned())
}

/// A path that stays below where it starts.
pub(super) fn inner_path(text: &str) -> Result<(), String> {
    if text.starts_with('/') {
        return Err("must be a relative path".to_owned());
    }
    no_backsteps(text)
}

/// A path without `..`.
pub(super) fn no_backsteps(text: &str) -> Result<(), String> {
    if text.split('/').any(|part| part == "..") {
        return Err("must not contain '..'".to_owned());
    }
    Ok(())
}

fn max_len(text: &str, limit: usize) -> Result<(), String> {
    if text.len() > limit {
        return Err(format!("must be no more than {limit} bytes"));
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
