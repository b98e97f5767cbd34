//! The pure part: what a plugin is asked, what its answer means, and how long the answer is kept.

use crate::{
    document::{Field, Node, Type, parse, walk},
    image::keyring::{Credentials, Keyring},
    model::parse_duration,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use thiserror::Error;

/// The most answers of one plugin that are kept.
const MAX_CACHED: usize = 128;
/// The key of an answer that holds for every image. No registry has such a name.
const GLOBAL: &str = "<global>";

const RESPONSE: &[Field] = &[
    Field::yes("apiVersion", Type::String),
    Field::yes("kind", Type::String),
    Field::yes("cacheKeyType", Type::String),
    Field::yes("cacheDuration", Type::Duration),
    Field::yes("auth", Type::Map(&Type::Object(AUTH))),
];
const AUTH: &[Field] =
    &[Field::yes("username", Type::String), Field::yes("password", Type::String)];

/// What is wrong with an answer. Nothing of the answer itself is repeated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum ResponseError {
    /// It is no JSON, or of another kind, or has other fields.
    #[error("the plugin printed no CredentialProviderResponse")]
    Shape,
    /// Its version is another one.
    #[error("the plugin's response has another apiVersion than {0}")]
    ApiVersion(String),
    /// It does not say for what it holds.
    #[error("the plugin's response has no valid cacheKeyType (Image, Registry or Global)")]
    CacheKeyType,
}

/// A valid answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Issued {
    pub(super) keyring: Arc<Keyring>,
    /// The key that the answer is kept under.
    pub(super) key: String,
    /// How long; zero: not at all.
    pub(super) lasts: Duration,
}

/// The request for the credentials of a repository (`docker.io/library/busybox`).
pub(super) fn request(api_version: &str, repository: &str) -> Vec<u8> {
    let request = serde_json::json!({
        "kind": "CredentialProviderRequest", "apiVersion": api_version, "image": repository,
    });
    format!("{request}\n").into_bytes()
}

/// Reads the answer to the request for `repository`.
pub(super) fn issued(
    text: &[u8],
    api_version: &str,
    repository: &str,
    default: Duration,
) -> Result<Issued, ResponseError> {
    let documents = parse(text).map_err(|_| ResponseError::Shape)?;
    let [document] = documents.as_slice() else { return Err(ResponseError::Shape) };
    let root = &document.root;
    let text = |key| root.get(key).and_then(Node::as_str);
    if text("kind") != Some("CredentialProviderResponse") {
        return Err(ResponseError::Shape);
    }
    if text("apiVersion") != Some(api_version) {
        return Err(ResponseError::ApiVersion(api_version.to_owned()));
    }
    if !walk(root, RESPONSE, "").is_empty() {
        return Err(ResponseError::Shape);
    }
    let key = match text("cacheKeyType") {
        Some("Image") => repository,
        Some("Registry") => registry(repository),
        Some("Global") => GLOBAL,
        Some(_) | None => return Err(ResponseError::CacheKeyType),
    };
    let of = |auth: &Node, key| auth.get(key).and_then(Node::as_str).unwrap_or_default().to_owned();
    let auths = root.get("auth").map_or(&[][..], Node::entries).iter().map(|entry| {
        let (username, password) = (of(&entry.value, "username"), of(&entry.value, "password"));
        (entry.key.as_str(), Credentials { username, password, ..Credentials::default() })
    });
    Ok(Issued {
        keyring: Arc::new(Keyring::new(auths)),
        key: key.to_owned(),
        lasts: text("cacheDuration").and_then(parse_duration).unwrap_or(default),
    })
}

/// The answers of one plugin that hold still.
#[derive(Debug, Default)]
pub(super) struct Cache(BTreeMap<String, Cached>);

#[derive(Debug)]
struct Cached {
    keyring: Arc<Keyring>,
    /// In boot time.
    expires: Duration,
}

impl Cache {
    /// The answer for the repository, else the one for its registry, else the one for all. `now` is
    /// boot time.
    pub(super) fn get(&mut self, repository: &str, now: Duration) -> Option<Arc<Keyring>> {
        self.0.retain(|_, cached| cached.expires > now);
        let keys = [repository, registry(repository), GLOBAL];
        keys.into_iter().find_map(|key| Some(Arc::clone(&self.0.get(key)?.keyring)))
    }

    /// Keeps an answer. When there are too many, the one that expires first goes.
    pub(super) fn put(&mut self, issued: &Issued, now: Duration) {
        if issued.lasts.is_zero() {
            return;
        }
        let expires = now.saturating_add(issued.lasts);
        let cached = Cached { keyring: Arc::clone(&issued.keyring), expires };
        self.0.insert(issued.key.clone(), cached);
        if self.0.len() > MAX_CACHED {
            let first = self.0.iter().min_by_key(|(_, cached)| cached.expires);
            if let Some(key) = first.map(|(key, _)| key.clone()) {
                self.0.remove(&key);
            }
        }
    }
}

/// The host of a repository, with its port.
fn registry(repository: &str) -> &str {
    repository.split_once('/').map_or(repository, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

    fn response(rest: &str) -> String {
        format!("{{\"apiVersion\": \"{V1}\", \"kind\": \"CredentialProviderResponse\"{rest}}}")
    }

    fn read(text: &str) -> Result<Issued, ResponseError> {
        issued(text.as_bytes(), V1, "r.io:5000/team/app", Duration::from_secs(7))
    }

    #[test]
    fn a_request_names_the_repository() {
        assert_eq!(
            String::from_utf8(request(V1, "r.io/app")).unwrap(),
            format!(
                "{{\"apiVersion\":\"{V1}\",\"image\":\"r.io/app\",\"kind\":\"CredentialProviderRequest\"}}\n"
            )
        );
    }

    #[test]
    fn an_answer_is_kept_as_it_says() {
        let seconds = Duration::from_secs;
        for (rest, key, lasts) in [
            (r#", "cacheKeyType": "Image""#, "r.io:5000/team/app", seconds(7)),
            (r#", "cacheKeyType": "Registry", "cacheDuration": null"#, "r.io:5000", seconds(7)),
            (r#", "cacheKeyType": "Global", "cacheDuration": "1m""#, "<global>", seconds(60)),
            (r#", "cacheKeyType": "Global", "cacheDuration": "0s""#, "<global>", seconds(0)),
        ] {
            let issued = read(&response(rest)).unwrap();
            assert_eq!((issued.key.as_str(), issued.lasts), (key, lasts), "{rest}");
        }
        let auth = r#", "cacheKeyType": "Image", "auth": {"*.io": {"username": "u", "password": "p"}, "r.io:5000": {"username": "v"}}"#;
        let issued = read(&response(auth)).unwrap();
        let users = |repository| {
            let found = issued.keyring.lookup(repository);
            found.into_iter().map(|one| one.username.as_str()).collect::<Vec<_>>()
        };
        assert_eq!((users("r.io:5000/a"), users("x.io/a")), (vec!["v"], vec!["u"]));
    }

    #[test]
    fn an_answer_is_read_strictly_and_never_repeated() {
        use ResponseError::{ApiVersion, CacheKeyType, Shape};
        let old = response("").replace("/v1\"", "/v1beta1\"");
        for (text, error) in [
            ("", Shape),
            ("SECRET", Shape),
            ("{\"auth\": {\"r.io\": {\"password\": \"SECRET\"}}", Shape),
            (&response("").replace("Response", "Request"), Shape),
            (&old, ApiVersion(V1.to_owned())),
            (&response(r#", "cacheKeyType": "Image", "SECRET": 1"#), Shape),
            (&response(r#", "cacheKeyType": "Image", "auth": {"r.io": "SECRET"}"#), Shape),
            (&response(r#", "cacheKeyType": "Image", "auth": {"r.io": {"password": 5}}"#), Shape),
            (&response(r#", "cacheKeyType": "Image", "cacheDuration": "-1s""#), Shape),
            (&response(r#", "cacheKeyType": "SECRET""#), CacheKeyType),
            (&response(""), CacheKeyType),
        ] {
            let found = read(text).unwrap_err();
            assert!(!found.to_string().contains("SECRET"), "{found}");
            assert_eq!(found, error, "{text}");
        }
    }

    #[test]
    fn the_cache_prefers_image_over_registry_over_all() {
        let issued = |key: &str, user: &str, seconds| {
            let credentials = Credentials { username: user.to_owned(), ..Credentials::default() };
            let keyring = Arc::new(Keyring::new([("r.io", credentials)].into_iter()));
            Issued { keyring, key: key.to_owned(), lasts: Duration::from_secs(seconds) }
        };
        let mut cache = Cache::default();
        let at = Duration::from_secs;
        for (key, user, seconds) in
            [("r.io/app", "image", 10), ("r.io", "registry", 20), (GLOBAL, "all", 30)]
        {
            cache.put(&issued(key, user, seconds), at(0));
        }
        cache.put(&issued("never.io", "none", 0), at(0));
        let mut user = |repository: &str, seconds| {
            let keyring = cache.get(repository, at(seconds))?;
            Some(keyring.lookup("r.io/x")[0].username.clone())
        };
        assert_eq!(user("r.io/other", 1).as_deref(), Some("registry"));
        assert_eq!(user("never.io/app", 1).as_deref(), Some("all"));
        assert_eq!(user("r.io/app", 9).as_deref(), Some("image"));
        assert_eq!(user("r.io/app", 10).as_deref(), Some("registry"));
        assert_eq!(user("r.io/app", 20).as_deref(), Some("all"));
        assert_eq!(user("r.io/app", 30), None);
        assert!(cache.0.is_empty(), "nothing is kept for longer than it holds");

        for number in 0..2 * u64::try_from(MAX_CACHED).unwrap() {
            cache.put(&issued(&format!("{number}.io"), "u", 1000 - number), at(0));
        }
        assert_eq!(cache.0.len(), MAX_CACHED);
        assert!(cache.0.contains_key("0.io") && !cache.0.contains_key("250.io"));
    }
}
