//! The files of volumes that the agent writes: configMap, secret, downwardAPI and projected.

use super::{
    EnvContext, EnvError, all_containers, container_of,
    env::{field_value, resource_value, subscript},
    objects::Finder,
    tokens::{token_access, token_key, token_sources},
};
use crate::model::{Datum, NodeObjects, ObjectKind, ServiceAccountToken, TokenAnswer, k8s};
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};
use thiserror::Error;

/// `defaultMode` when it is not set.
const DEFAULT_MODE: i32 = 0o644;

/// Field paths of what a user can change while the pod runs.
const LABELS: &str = "metadata.labels";
const ANNOTATIONS: &str = "metadata.annotations";

/// The most bytes that the files of one volume have together. `items` can name one large value many
/// thousand times.
const MAX_VOLUME_BYTES: usize = 256 << 20;

/// One file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFile {
    /// All of it: shared with the object that it comes from.
    pub content: Datum,
    /// Permission bits.
    pub mode: u32,
    /// The user that owns the file; `None` for the user of the agent.
    pub owner: Option<u32>,
}

/// Files by their path below the volume, with `/` between the parts.
pub type VolumeFiles = BTreeMap<Box<str>, VolumeFile>;

/// The path of a file without empty parts and `.`, which the API server accepts: `./a//b` is `a/b`.
#[must_use]
pub fn clean_path(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    parts.join("/")
}

/// The directories in the path of a file, from the first one on.
pub fn parent_paths(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end])
}

/// Why the files of a volume can't be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FilesError {
    /// An object or a field that does not exist.
    #[error(transparent)]
    Source(#[from] EnvError),
    /// A key that `items` names.
    #[error("{kind} references non-existent {what} key: {key}")]
    NoKey {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// `config` or `secret`.
        what: &'static str,
        /// The key.
        key: String,
    },
    /// The API server refuses to issue a token.
    #[error("failed to fetch token: {why}")]
    TokenRefused {
        /// The message of the API server.
        why: String,
    },
    /// The API server has not issued a token yet.
    #[error("the service account token has not been issued yet")]
    TokenNotKnown,
    /// More than [`MAX_VOLUME_BYTES`].
    #[error("the files of the volume have more than 256 MiB together")]
    TooLarge,
    /// A source of a projected volume that this agent does not support.
    #[error("{source_kind} is not supported in projected volumes")]
    Unsupported {
        /// `clusterTrustBundle` or `podCertificate`.
        source_kind: &'static str,
    },
}

/// The files of a volume; `None` for a volume of another kind.
///
/// # Errors
/// When an object or a key is missing, or a field does not exist.
pub fn volume_files(
    pod: &k8s::Pod,
    volume: &k8s::Volume,
    cx: &EnvContext<'_>,
) -> Result<Option<VolumeFiles>, FilesError> {
    let mut made =
        Making { pod, cx, files: VolumeFiles::new(), bytes: 0, default_mode: DEFAULT_MODE };
    if let Some(source) = &volume.config_map {
        made.default_mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        made.objects(&ObjectFiles::of_config_map(source))?;
    } else if let Some(source) = &volume.secret {
        made.default_mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        made.objects(&ObjectFiles::of_secret(source))?;
    } else if let Some(source) = &volume.downward_api {
        made.default_mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        made.downward(source.items.as_deref())?;
    } else if let Some(source) = &volume.projected {
        made.default_mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        for (index, projection) in source.sources.iter().flatten().enumerate() {
            for objects in ObjectFiles::of_projection((index, projection)) {
                made.objects(&objects)?;
            }
            if let Some(source) = &projection.downward_api {
                made.downward(source.items.as_deref())?;
            }
            if let Some(source) = &projection.service_account_token {
                made.token(source)?;
            }
            check_supported(projection)?;
        }
    } else {
        return Ok(None);
    }
    Ok(Some(made.files))
}

/// Whether the objects, keys and tokens that a volume needs are there.
///
/// # Errors
/// The first one that is missing.
pub fn check_volume_objects(
    pod: &k8s::Pod,
    volume: &k8s::Volume,
    objects: &NodeObjects,
) -> Result<(), FilesError> {
    let finder = Finder::new(pod, objects);
    ObjectFiles::of_volume(volume).try_for_each(|objects| objects.resolve(finder).map(drop))?;
    token_sources(volume).try_for_each(|source| token(pod, source, objects).map(drop))?;
    projections(volume).try_for_each(check_supported)
}

/// The token that a source requests.
fn token<'a>(
    pod: &k8s::Pod,
    source: &k8s::ServiceAccountTokenProjection,
    objects: &'a NodeObjects,
) -> Result<&'a ServiceAccountToken, FilesError> {
    match objects.api.tokens.get(&token_key(pod, source)) {
        Some(TokenAnswer::Issued(token)) => Ok(token),
        Some(TokenAnswer::Refused(why)) => Err(FilesError::TokenRefused { why: why.to_string() }),
        None => Err(FilesError::TokenNotKnown),
    }
}

fn check_supported(source: &k8s::VolumeProjection) -> Result<(), FilesError> {
    let unsupported = |source_kind| Err(FilesError::Unsupported { source_kind });
    if source.cluster_trust_bundle.is_some() {
        return unsupported("clusterTrustBundle");
    }
    if source.pod_certificate.is_some() {
        return unsupported("podCertificate");
    }
    Ok(())
}

/// The sources of a projected volume.
pub(super) fn projections(volume: &k8s::Volume) -> impl Iterator<Item = &k8s::VolumeProjection> {
    volume.projected.iter().flat_map(|source| source.sources.iter().flatten())
}

/// Whether the agent writes the files of a volume. Containers can only read them.
#[must_use]
pub fn is_made_of_files(volume: &k8s::Volume) -> bool {
    let of_objects = volume.config_map.is_some() || volume.secret.is_some();
    of_objects || volume.downward_api.is_some() || volume.projected.is_some()
}

/// True when the files of a volume come from objects or tokens. They can be missing, and they can
/// change while the pod runs.
#[must_use]
pub fn is_made_from_objects(volume: &k8s::Volume) -> bool {
    let of_projection = |source: &k8s::VolumeProjection| {
        source.service_account_token.is_some() || check_supported(source).is_err()
    };
    ObjectFiles::of_volume(volume).next().is_some() || projections(volume).any(of_projection)
}

/// True when files of a volume have labels or annotations of the pod, which can change while the
/// pod runs.
#[must_use]
pub fn reads_metadata(volume: &k8s::Volume) -> bool {
    metadata_fields(volume).next().is_some()
}

/// True when containers of the pod see labels or annotations of it, in their environment or in files.
#[must_use]
pub fn shows_metadata(pod: &k8s::Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let is_shown = |var: &k8s::EnvVar| {
        let field = var.value_from.as_ref().and_then(|source| source.field_ref.as_ref());
        field.is_some_and(|field| is_metadata(&field.field_path))
    };
    all_containers(spec).any(|container| container.env.iter().flatten().any(is_shown))
        || spec.volumes.iter().flatten().any(reads_metadata)
}

fn is_metadata(field: &str) -> bool {
    field.starts_with(LABELS) || field.starts_with(ANNOTATIONS)
}

/// A hash of the labels and annotations in the volumes of a pod; `None` when no volume has any. It
/// is not to be saved, because another release may compute another one.
#[must_use]
pub fn metadata_hash(pod: &k8s::Pod) -> Option<u64> {
    let meta = &pod.metadata;
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let mut fields = volumes.flat_map(metadata_fields).peekable();
    fields.peek()?;
    let mut hasher = DefaultHasher::new();
    for field in fields {
        let list = if field.starts_with(LABELS) { &meta.labels } else { &meta.annotations };
        match subscript(field) {
            Some((_, key)) => list.as_ref().and_then(|list| list.get(key)).hash(&mut hasher),
            None => list.hash(&mut hasher),
        }
    }
    Some(hasher.finish())
}

/// The field paths of the labels and annotations in a volume.
fn metadata_fields(volume: &k8s::Volume) -> impl Iterator<Item = &str> {
    let own = volume.downward_api.iter().flat_map(|source| source.items.iter().flatten());
    let projected = projections(volume).filter_map(|source| source.downward_api.as_ref());
    let projected = projected.flat_map(|source| source.items.iter().flatten());
    own.chain(projected)
        .filter_map(|item| Some(item.field_ref.as_ref()?.field_path.as_str()))
        .filter(|field| is_metadata(field))
}

/// Names of the volumes that some container of the pod mounts; others are not set up.
#[must_use]
pub fn is_mounted(spec: &k8s::PodSpec, volume: &str) -> bool {
    let regular = spec.containers.iter().map(|c| &c.volume_mounts);
    let init = spec.init_containers.iter().flatten().map(|c| &c.volume_mounts);
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| &c.volume_mounts);
    regular.chain(init).chain(ephemeral).flatten().flatten().any(|mount| mount.name == volume)
}

/// The part of a volume that comes from one object.
pub(super) struct ObjectFiles<'a> {
    pub(super) kind: ObjectKind,
    pub(super) name: &'a str,
    items: Option<&'a [k8s::KeyToPath]>,
    pub(super) optional: Option<bool>,
    /// Which source of a projected volume it is.
    index: Option<usize>,
}

/// A file of an object: its path, the value and its own mode.
type ObjectFile<'a> = (&'a str, &'a Datum, Option<i32>);

impl<'a> ObjectFiles<'a> {
    /// All parts of a volume, in the order of its sources.
    pub(super) fn of_volume(volume: &'a k8s::Volume) -> impl Iterator<Item = Self> {
        let config_map = volume.config_map.iter().map(Self::of_config_map);
        let secret = volume.secret.iter().map(Self::of_secret);
        let projected = projections(volume).enumerate().flat_map(Self::of_projection);
        config_map.chain(secret).chain(projected)
    }

    fn of_config_map(source: &'a k8s::ConfigMapVolumeSource) -> Self {
        let (items, optional) = (source.items.as_deref(), source.optional);
        Self { kind: ObjectKind::ConfigMap, name: &source.name, items, optional, index: None }
    }

    fn of_secret(source: &'a k8s::SecretVolumeSource) -> Self {
        let name = source.secret_name.as_deref().unwrap_or_default();
        let (items, optional) = (source.items.as_deref(), source.optional);
        Self { kind: ObjectKind::Secret, name, items, optional, index: None }
    }

    fn of_projection(
        (index, projection): (usize, &'a k8s::VolumeProjection),
    ) -> impl Iterator<Item = Self> {
        let index = Some(index);
        let config_map = projection.config_map.iter().map(move |source| {
            let (items, optional) = (source.items.as_deref(), source.optional);
            Self { kind: ObjectKind::ConfigMap, name: &source.name, items, optional, index }
        });
        let secret = projection.secret.iter().map(move |source| {
            let (items, optional) = (source.items.as_deref(), source.optional);
            Self { kind: ObjectKind::Secret, name: &source.name, items, optional, index }
        });
        config_map.chain(secret)
    }

    /// `configMap`, `projected.sources[1].secret`: its field of the volume.
    pub(super) fn field(&self) -> String {
        let field = match self.kind {
            ObjectKind::ConfigMap => "configMap",
            ObjectKind::Secret => "secret",
        };
        match self.index {
            Some(index) => format!("projected.sources[{index}].{field}"),
            None => field.to_owned(),
        }
    }

    fn resolve(&self, finder: Finder<'a>) -> Result<Vec<ObjectFile<'a>>, FilesError> {
        let Some(object) = finder.object(self.kind, self.name, self.optional)? else {
            return Ok(Vec::new());
        };
        let Some(items) = self.items.filter(|items| !items.is_empty()) else {
            return Ok(object.data.iter().map(|(key, datum)| (&**key, datum, None)).collect());
        };
        let mut files = Vec::with_capacity(items.len());
        for item in items {
            match object.data.get(item.key.as_str()) {
                Some(datum) => files.push((item.path.as_str(), datum, item.mode)),
                None if self.optional == Some(true) => {}
                None => return Err(self.no_key(&item.key)),
            }
        }
        Ok(files)
    }

    fn no_key(&self, key: &str) -> FilesError {
        let kind = self.kind.lower();
        let what = match self.kind {
            ObjectKind::ConfigMap => "config",
            ObjectKind::Secret => "secret",
        };
        FilesError::NoKey { kind, what, key: key.to_owned() }
    }
}

/// The files made so far.
struct Making<'a> {
    pod: &'a k8s::Pod,
    cx: &'a EnvContext<'a>,
    files: VolumeFiles,
    /// Together, in bytes; those that others have replaced count, too.
    bytes: usize,
    default_mode: i32,
}

impl Making<'_> {
    /// A later file of a path takes the place of an earlier one.
    fn add(&mut self, path: &str, content: Datum, mode: Option<i32>) -> Result<(), FilesError> {
        self.add_owned(path, content, mode, None)
    }

    fn add_owned(
        &mut self,
        path: &str,
        content: Datum,
        mode: Option<i32>,
        owner: Option<u32>,
    ) -> Result<(), FilesError> {
        self.bytes += content.as_bytes().len();
        if self.bytes > MAX_VOLUME_BYTES {
            return Err(FilesError::TooLarge);
        }
        let mode = u32::try_from(mode.unwrap_or(self.default_mode)).unwrap_or_default();
        let file = VolumeFile { content, mode, owner };
        self.files.insert(clean_path(path).into(), file);
        Ok(())
    }

    fn token(&mut self, source: &k8s::ServiceAccountTokenProjection) -> Result<(), FilesError> {
        let token = token(self.pod, source, self.cx.objects)?;
        let access = token_access(self.pod);
        self.add_owned(&source.path, token.content(), access.mode, access.owner)
    }

    fn objects(&mut self, objects: &ObjectFiles<'_>) -> Result<(), FilesError> {
        let finder = Finder::new(self.pod, self.cx.objects);
        for (path, datum, mode) in objects.resolve(finder)? {
            self.add(path, datum.clone(), mode)?;
        }
        Ok(())
    }

    fn downward(&mut self, items: Option<&[k8s::DownwardAPIVolumeFile]>) -> Result<(), FilesError> {
        for item in items.unwrap_or_default() {
            let content = if let Some(field) = &item.field_ref {
                self.field(&field.field_path)?
            } else if let Some(resource) = &item.resource_field_ref {
                let name = resource.container_name.as_deref().unwrap_or_default();
                let container = container_of(self.pod, name)
                    .ok_or_else(|| EnvError::Container { container: name.to_owned() })?;
                resource_value(self.pod, container, resource, self.cx)?
            } else {
                String::new()
            };
            self.add(&item.path, Datum::Text(content.into()), item.mode)?;
        }
        Ok(())
    }

    /// Unlike an environment variable, a file can hold all labels or annotations.
    fn field(&self, path: &str) -> Result<String, EnvError> {
        let meta = &self.pod.metadata;
        match path {
            LABELS => Ok(lines(meta.labels.as_ref())),
            ANNOTATIONS => Ok(lines(meta.annotations.as_ref())),
            path => field_value(self.pod, path, self.cx),
        }
    }
}

/// `key="value"` for each entry, as Go's `%q` writes it, sorted by key.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines = map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quoted(value)));
    lines.collect::<Vec<_>>().join("\n")
}

/// A string literal of Go.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if is_printable(c) => out.push(c),
            c if c <= '\u{ffff}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

/// Go's `strconv.IsPrint`. `escape_debug` escapes the same characters, and combining marks where a
/// text begins with them.
fn is_printable(c: char) -> bool {
    c.is_ascii() || ['a', c].iter().collect::<String>().escape_debug().eq(['a', c])
}

#[cfg(test)]
mod tests;
