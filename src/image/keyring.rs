//! Registry credentials of docker config files and of plugins: pure.
//!
//! A key names a registry, optionally with a path and with `*` in the parts of its host name. All
//! keys that match an image are tried, the more specific (by reverse order of their text) first.

use crate::model::Order as _;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use std::{collections::BTreeMap, fmt, net::Ipv6Addr};

/// Hosts that stand for Docker Hub.
const DEFAULT_KEY: &str = "index.docker.io";

/// A user name and a password. `Debug` doesn't show the password.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Credentials {
    /// User name.
    pub(super) username: String,
    /// Password or token.
    pub(super) password: String,
    /// Of no use for a pull. The kubelet's hash has it.
    pub(super) email: String,
}

impl Credentials {
    /// The SHA-256 by which records of pulls tell credentials apart, in hex: that of their JSON as
    /// Go writes it, which the kubelet takes.
    pub(super) fn hash(&self) -> String {
        let fields =
            [("username", &self.username), ("password", &self.password), ("email", &self.email)];
        let mut text = String::new();
        for (key, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
            let comma = if text.is_empty() { "" } else { "," };
            text += &format!("{comma}\"{key}\":{}", serde_json::Value::from(value.as_str()));
        }
        let escaped = [
            ('<', "\\u003c"),
            ('>', "\\u003e"),
            ('&', "\\u0026"),
            ('\u{2028}', "\\u2028"),
            ('\u{2029}', "\\u2029"),
        ];
        let text = escaped.iter().fold(text, |text, (symbol, code)| text.replace(*symbol, code));
        format!("{:x}", Sha256::digest(format!("{{{text}}}")))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// Which credentials go with which registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Keyring {
    /// Keys without scheme, most specific first.
    entries: Vec<(String, Credentials)>,
}

/// How a config file is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// `config.json`: registries under `auths`.
    Config,
    /// `.dockercfg`: registries at the top.
    Legacy,
}

#[derive(Deserialize)]
struct ConfigFile {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    auth: String,
    #[serde(default)]
    email: String,
}

impl Keyring {
    /// Reads a config file. Entries without user name and password (credential helpers) are left
    /// out, as are those that can't be decoded, which is logged.
    ///
    /// # Errors
    /// When it is not JSON of that layout.
    pub(super) fn parse(text: &[u8], layout: Layout) -> Result<Self, serde_json::Error> {
        let found = match layout {
            Layout::Config => serde_json::from_slice::<ConfigFile>(text)?.auths,
            Layout::Legacy => serde_json::from_slice::<BTreeMap<String, Entry>>(text)?,
        };
        let found =
            found.iter().filter_map(|(key, entry)| Some((&**key, credentials(key, entry)?)));
        Ok(Self::new(found))
    }

    /// From registries with their credentials.
    pub(super) fn new<'a>(found: impl Iterator<Item = (&'a str, Credentials)>) -> Self {
        let entries = found.filter_map(|(key, credentials)| Some((key_of(key)?, credentials)));
        let mut keyring = Self { entries: entries.collect() };
        keyring.sort();
        keyring
    }

    /// Adds those of another one. Of equal keys the earlier stays first.
    pub(super) fn add(&mut self, other: &Self) {
        self.entries.extend(other.entries.iter().cloned());
        self.sort();
    }

    fn sort(&mut self) {
        self.entries.order_by(|a, b| b.0.cmp(&a.0));
    }

    /// The credentials for a repository (`docker.io/library/busybox`), in the order to try.
    pub(super) fn lookup(&self, repository: &str) -> Vec<&Credentials> {
        let mut found: Vec<&Credentials> = self
            .entries
            .iter()
            .filter(|(key, _)| matches(key, repository))
            .map(|(_, credentials)| credentials)
            .collect();
        let (host, _) = repository.split_once('/').unwrap_or((repository, ""));
        if found.is_empty() && (host == "docker.io" || host == DEFAULT_KEY) {
            found.extend(self.entries.iter().filter(|(k, _)| k == DEFAULT_KEY).map(|(_, c)| c));
        }
        found
    }
}

/// A key without scheme. The versions that docker writes (`https://index.docker.io/v1/`) stand
/// for the whole registry.
fn key_of(text: &str) -> Option<String> {
    let text =
        text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
    let (host, path) = match text.find('/') {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let path = match path {
        "/v1" | "/v2" | "/" => "",
        path => path
            .strip_prefix("/v1/")
            .or_else(|| path.strip_prefix("/v2/"))
            .map_or(path, |rest| &path[path.len() - rest.len() - 1..]),
    };
    let path = if path == "/" { "" } else { path };
    (!host.is_empty()).then(|| format!("{host}{path}"))
}

fn credentials(registry: &str, entry: &Entry) -> Option<Credentials> {
    if !entry.auth.is_empty() {
        let decoded = decode_base64(&entry.auth).and_then(|text| String::from_utf8(text).ok());
        let found = decoded.as_deref().and_then(|text| text.split_once(':'));
        if found.is_none() {
            tracing::warn!(
                registry,
                "its credentials are not used: \"auth\" is not the base64 of USER:PASSWORD"
            );
        }
        return found.map(|(username, password)| Credentials {
            username: username.to_owned(),
            password: password.trim_end_matches('\0').to_owned(),
            email: entry.email.clone(),
        });
    }
    let known = !entry.username.is_empty() || !entry.password.is_empty();
    known.then(|| Credentials {
        username: entry.username.clone(),
        password: entry.password.clone(),
        email: entry.email.clone(),
    })
}

/// No name of a host is longer (RFC 1035, section 2.3.4).
const MAX_HOST_BYTES: usize = 255;

/// Same number of host parts, each matching; same port; the key's path is a prefix.
pub(super) fn matches(key: &str, repository: &str) -> bool {
    let split = |text: &str| {
        let (host, path) = match text.find('/') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        let bracketed = host.strip_prefix('[').and_then(|host| host.split_once(']'));
        let (host, port) = match bracketed {
            Some((address, port)) if address.parse::<Ipv6Addr>().is_ok() => {
                (address, port.trim_start_matches(':'))
            }
            // The brackets may be a set, too.
            Some(_) | None => host.split_once(':').unwrap_or((host, "")),
        };
        (host.to_owned(), port.to_owned(), path.to_owned())
    };
    let (key_host, key_port, key_path) = split(key);
    let (host, port, path) = split(repository);
    host.len() <= MAX_HOST_BYTES
        && key_port == port
        && path.starts_with(&key_path)
        && key_host.split('.').count() == host.split('.').count()
        && key_host
            .split('.')
            .zip(host.split('.'))
            .all(|(p, part)| glob(p.as_bytes(), part.as_bytes()))
}

/// `*` for any run, `?` for one, `[a-c]` and `[^a-c]` for one of a set, `\` before a literal. Takes
/// at most one step for each pair of a symbol and a byte, because a pattern may come from the
/// author of a pod: where a `*` has matched, an earlier one need not be tried with more.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut pattern, mut text) = (pattern, text);
    // What follows the last `*`, and the text from which that was tried last.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some((b'*', after)) = pattern.split_first() {
            (pattern, retry) = (after, Some((after, text)));
        } else if pattern.is_empty() && text.is_empty() {
            return true;
        } else if let Some(left) = without_first(pattern, text) {
            (pattern, text) = left;
        } else {
            let Some((after, from)) = retry else { return false };
            let Some((_, shorter)) = from.split_first() else { return false };
            (pattern, text, retry) = (after, shorter, Some((after, shorter)));
        }
    }
}

/// What is left when the first symbol of the pattern, which is no `*`, matches the first byte.
fn without_first<'a>(pattern: &'a [u8], text: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let ((&symbol, rest), (&found, text)) = (pattern.split_first()?, text.split_first()?);
    match symbol {
        b'?' => Some((rest, text)),
        b'[' => {
            let end = rest.iter().position(|byte| *byte == b']')?;
            in_set(&rest[..end], found).then_some((&rest[end + 1..], text))
        }
        b'\\' => {
            let (&literal, rest) = rest.split_first()?;
            (literal == found).then_some((rest, text))
        }
        literal => (literal == found).then_some((rest, text)),
    }
}

fn in_set(set: &[u8], found: u8) -> bool {
    let (negated, mut set) = match set.split_first() {
        Some((b'^', rest)) => (true, rest),
        Some(_) | None => (false, set),
    };
    let mut inside = false;
    while let [low, after @ ..] = set {
        let (high, rest) = match after {
            [b'-', high, rest @ ..] => (high, rest),
            _ => (low, after),
        };
        inside |= (*low..=*high).contains(&found);
        set = rest;
    }
    inside != negated
}

/// Standard alphabet, with or without padding. Line breaks are skipped, as Go's decoder does:
/// base64(1) makes them.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0_u32, 0_u32);
    let breaks = |symbol: &u8| matches!(symbol, b'\r' | b'\n');
    for symbol in text.trim().trim_end_matches('=').bytes().filter(|symbol| !breaks(symbol)) {
        let value = match symbol {
            b'A'..=b'Z' => symbol - b'A',
            b'a'..=b'z' => symbol - b'a' + 26,
            b'0'..=b'9' => symbol - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from((bits >> count) & 0xff).ok()?);
            bits &= (1 << count) - 1;
        }
    }
    // What is left over must be padding of zero bits, and less than a symbol.
    (count < 6 && bits == 0).then_some(bytes)
}
