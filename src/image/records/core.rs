//! The pure part: what a record says, and whether a pod may use an image that is present.
//!
//! A record belongs to one image of the runtime. For each name under which the agent has pulled the
//! image (without its tag) it has the credentials with which that succeeded. It has the shape of the
//! kubelet's `ImagePulledRecord`, so that the one can go on with what the other has written.

use super::policy::VerificationPolicy;
use crate::{
    document::{Field, Node, Type, parse, walk},
    podspec::image_name::{full_names, repository, untagged},
};
use serde_json::{Map, Value, json};

/// The version in which records are written.
const VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// An earlier version of the same shape.
const EARLIER_VERSION: &str = "kubelet.config.k8s.io/v1alpha1";
/// The most Secrets of a name. To a record that has so many, no other Secret with the same
/// credentials is added, as in the kubelet. One that has pulled the image replaces the oldest one.
const MAX_SECRETS: usize = 100;

const RECORD: &[Field] = &[
    Field::yes("kind", Type::String),
    Field::yes("apiVersion", Type::String),
    Field::yes("lastUpdatedTime", Type::Time),
    Field::yes("imageRef", Type::String),
    Field::yes("credentialMapping", Type::Map(&Type::Object(CREDENTIALS))),
];
const CREDENTIALS: &[Field] = &[
    Field::yes("kubernetesSecrets", Type::List(&Type::Object(SECRET))),
    Field::yes("kubernetesServiceAccounts", Type::List(&Type::Object(COORDINATES))),
    Field::yes("nodePodsAccessible", Type::Bool),
];
const SECRET: &[Field] = &[
    Field::yes("uid", Type::String),
    Field::yes("namespace", Type::String),
    Field::yes("name", Type::String),
    Field::yes("credentialHash", Type::String),
];
const COORDINATES: &[Field] = &[
    Field::yes("uid", Type::String),
    Field::yes("namespace", Type::String),
    Field::yes("name", Type::String),
];
const INTENT: &[Field] = &[
    Field::yes("kind", Type::String),
    Field::yes("apiVersion", Type::String),
    Field::yes("image", Type::String),
];

/// Names an object of the API. The uid of a Secret from a file is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Coordinates {
    uid: String,
    namespace: String,
    name: String,
}

/// A Secret, and the hash of the credentials in it that match the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::image) struct PullSecret {
    of: Coordinates,
    hash: String,
}

impl PullSecret {
    /// The `uid` of a Secret from a file is empty.
    pub(in crate::image) fn new(uid: &str, namespace: &str, name: &str, hash: String) -> Self {
        let of = Coordinates {
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        Self { of, hash }
    }

    fn has_credentials_of(&self, known: &Self) -> bool {
        !known.hash.is_empty() && known.hash == self.hash
    }

    /// Whether both are one Secret of the API server, whose credentials may have changed. One in a
    /// file has no uid by which it could be known.
    fn is_same_object(&self, known: &Self) -> bool {
        !self.of.uid.is_empty() && known.of == self.of
    }
}

/// What has pulled an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::image) enum PulledWith {
    /// No credentials, or those of the node, which are for every pod.
    Node,
    /// Those of a Secret.
    Secret(PullSecret),
    /// The agent ended before it has written that down.
    Unknown,
}

/// Who may use an image under one of its names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PullAccess {
    everyone: bool,
    secrets: Vec<PullSecret>,
    /// Service accounts for which a kubelet has pulled. No pod here has the credentials of one.
    accounts: Vec<Coordinates>,
}

/// The content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PulledRecord {
    image_ref: String,
    /// By the name of the image as written, without tag and digest.
    names: Vec<(String, PullAccess)>,
}

/// What is known about the origin of an image that is present.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin<'a> {
    /// Nothing tells that the agent has pulled it.
    Unrecorded,
    /// The agent has pulled it; with which credentials is not known.
    Unclear,
    /// The agent has pulled it.
    Recorded(&'a PulledRecord),
}

/// Whether a pod may use an image that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::image) enum ImageAccess {
    /// It may.
    Granted,
    /// It may: this Secret of the pod has the credentials of another one in the record, or is one of
    /// them with other credentials, and is to be written there.
    GrantedTo(PullSecret),
    /// Only a pull with its own credentials tells.
    Unverified,
}

/// Judges the use of an image. `image` is its name in the manifest, `called` are the names that the
/// runtime knows for it, and `of_pod` gives the Secrets of the pod that match the image.
pub(super) fn judge(
    policy: &VerificationPolicy,
    image: &str,
    called: &[String],
    origin: Origin<'_>,
    of_pod: impl FnOnce() -> Vec<PullSecret>,
) -> ImageAccess {
    let pulled = match origin {
        Origin::Unrecorded => false,
        Origin::Unclear => true,
        Origin::Recorded(record) => record.is_of(image, called),
    };
    if !policy.verifies(image, pulled) {
        return ImageAccess::Granted;
    }
    let Origin::Recorded(record) = origin else { return ImageAccess::Unverified };
    let access: Vec<&PullAccess> = record.accesses(image).collect();
    if access.iter().any(|access| access.everyone) {
        return ImageAccess::Granted;
    }
    let known: Vec<&PullSecret> = access.iter().flat_map(|access| &access.secrets).collect();
    if known.is_empty() {
        return ImageAccess::Unverified;
    }
    let of_pod = of_pod();
    let find = |matches: fn(&PullSecret, &PullSecret) -> bool| {
        of_pod.iter().find(|secret| known.iter().any(|known| matches(secret, known)))
    };
    // A Secret may have several credentials for an image, and some may be denied.
    let renewed = || find(PullSecret::is_same_object);
    match find(PullSecret::has_credentials_of).or_else(renewed) {
        None => ImageAccess::Unverified,
        Some(secret) if known.contains(&secret) => ImageAccess::Granted,
        Some(secret) if known.len() < MAX_SECRETS || has_object(&known, secret) => {
            ImageAccess::GrantedTo(secret.clone())
        }
        Some(_) => ImageAccess::Granted,
    }
}

/// Whether the record has the Secret, with other credentials maybe.
fn has_object(known: &[&PullSecret], secret: &PullSecret) -> bool {
    known.iter().any(|known| secret.is_same_object(known))
}

/// Whether an image that the runtime calls so has the name `image` of a manifest.
pub(super) fn is_called<'a>(image: &str, called: impl IntoIterator<Item = &'a String>) -> bool {
    let names = full_names(image);
    called.into_iter().any(|name| names.contains(name))
}

impl PulledRecord {
    pub(super) fn new(image_ref: &str) -> Self {
        Self { image_ref: image_ref.to_owned(), names: Vec::new() }
    }

    pub(super) fn image_ref(&self) -> &str {
        &self.image_ref
    }

    /// Whether the agent has pulled the image under this name. A tag of another repository that the
    /// image has came from elsewhere: the agent makes a record of every name that it pulls. Other
    /// ways to name the image, as by its id, are no way around the record.
    fn is_of(&self, image: &str, called: &[String]) -> bool {
        self.names.is_empty() || self.has(image) || !is_called(image, called)
    }

    /// Whether the agent has recorded a pull under this name.
    pub(super) fn has(&self, image: &str) -> bool {
        self.accesses(image).next().is_some()
    }

    /// `busybox` and `docker.io/library/busybox` are one repository.
    fn accesses(&self, image: &str) -> impl Iterator<Item = &PullAccess> {
        let wanted = repository(image).ok();
        self.names
            .iter()
            .filter(move |(name, _)| wanted.is_some() && repository(name).ok() == wanted)
            .map(|(_, access)| access)
    }

    /// Adds a pull under the name `image`. Returns whether that is news.
    pub(super) fn add(&mut self, image: &str, with: PulledWith) -> bool {
        let name = untagged(image).unwrap_or(image);
        let known = self.names.iter().position(|(known, _)| known == name);
        let is_new = known.is_none();
        let at = known.unwrap_or(self.names.len());
        if is_new {
            self.names.push((name.to_owned(), PullAccess::default()));
        }
        let access = &mut self.names[at].1;
        match with {
            PulledWith::Unknown => is_new,
            PulledWith::Node | PulledWith::Secret(_) if access.everyone => is_new,
            PulledWith::Node => {
                *access = PullAccess { everyone: true, ..PullAccess::default() };
                true
            }
            PulledWith::Secret(secret) => {
                if access.secrets.contains(&secret) {
                    return is_new;
                }
                // A Secret with new credentials replaces the one with the earlier ones.
                access.secrets.retain(|known| known.of != secret.of);
                access.secrets.push(secret);
                // The files of the records have a limit of size.
                let surplus = access.secrets.len().saturating_sub(MAX_SECRETS);
                access.secrets.drain(..surplus);
                true
            }
        }
    }

    /// The text of the file. `updated` is the time in RFC 3339.
    pub(super) fn encode(&self, updated: &str) -> Vec<u8> {
        let mapping: Map<String, Value> =
            self.names.iter().map(|(name, access)| (name.clone(), access.to_json())).collect();
        let record = json!({
            "kind": "ImagePulledRecord", "apiVersion": VERSION, "lastUpdatedTime": updated,
            "imageRef": self.image_ref, "credentialMapping": mapping,
        });
        record.to_string().into_bytes()
    }

    /// Reads the text of a file; `None` for anything that is no such record in every part.
    pub(super) fn decode(text: &[u8]) -> Option<Self> {
        let root = root(text, "ImagePulledRecord", RECORD)?;
        let mapping = root.get("credentialMapping").map_or(&[][..], Node::entries);
        let names = mapping.iter().map(|entry| (entry.key.clone(), PullAccess::read(&entry.value)));
        let image_ref = root.get("imageRef")?.as_str()?.to_owned();
        Some(Self { image_ref, names: names.collect() })
    }
}

impl PullAccess {
    fn read(node: &Node) -> Self {
        let list = |key| node.get(key).map_or(&[][..], Node::items);
        let secret = |node: &Node| PullSecret {
            of: Coordinates::read(node),
            hash: text_of(node, "credentialHash"),
        };
        let everyone = node.get("nodePodsAccessible").map(Node::to_json);
        Self {
            everyone: everyone == Some(Value::Bool(true)),
            secrets: list("kubernetesSecrets").iter().map(secret).collect(),
            accounts: list("kubernetesServiceAccounts").iter().map(Coordinates::read).collect(),
        }
    }

    fn to_json(&self) -> Value {
        let mut access = Map::new();
        if self.everyone {
            access.insert("nodePodsAccessible".to_owned(), Value::Bool(true));
        }
        if !self.secrets.is_empty() {
            let secrets = self.secrets.iter().map(|secret| {
                let mut json = secret.of.to_json();
                json["credentialHash"] = Value::from(secret.hash.as_str());
                json
            });
            access.insert("kubernetesSecrets".to_owned(), secrets.collect());
        }
        if !self.accounts.is_empty() {
            let accounts = self.accounts.iter().map(Coordinates::to_json).collect();
            access.insert("kubernetesServiceAccounts".to_owned(), accounts);
        }
        Value::Object(access)
    }
}

impl Coordinates {
    fn read(node: &Node) -> Self {
        let text = |key| text_of(node, key);
        Self { uid: text("uid"), namespace: text("namespace"), name: text("name") }
    }

    fn to_json(&self) -> Value {
        json!({ "uid": self.uid, "namespace": self.namespace, "name": self.name })
    }
}

/// The text of a file that tells of a pull that is under way.
pub(super) fn encode_intent(image: &str) -> Vec<u8> {
    let intent = json!({ "kind": "ImagePullIntent", "apiVersion": VERSION, "image": image });
    intent.to_string().into_bytes()
}

/// The image of such a file.
pub(super) fn decode_intent(text: &[u8]) -> Option<String> {
    let root = root(text, "ImagePullIntent", INTENT)?;
    Some(root.get("image")?.as_str()?.to_owned())
}

fn root(text: &[u8], kind: &str, fields: &'static [Field]) -> Option<Node> {
    let [document] = <[_; 1]>::try_from(parse(text).ok()?).ok()?;
    let root = document.root;
    let is = |key, value: &[&str]| {
        root.get(key).and_then(Node::as_str).is_some_and(|text| value.contains(&text))
    };
    let right = is("kind", &[kind])
        && is("apiVersion", &[VERSION, EARLIER_VERSION])
        && walk(&root, fields, "").is_empty();
    right.then_some(root)
}

fn text_of(node: &Node, key: &str) -> String {
    node.get(key).and_then(Node::as_str).unwrap_or_default().to_owned()
}
