//! What a pod reads of ConfigMaps and Secrets.

use super::EnvError;
use crate::model::{DataObject, NodeObjects, ObjectKey, ObjectKind, k8s};

/// A place in a pod that names an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRef {
    /// Which object.
    pub key: ObjectKey,
    /// The pod also runs without the object.
    pub optional: bool,
    /// `spec.volumes[0].configMap`
    pub field: String,
}

impl ObjectRef {
    /// Whether containers get its data; not so for a Secret that only pulls use.
    #[must_use]
    pub fn is_read(&self) -> bool {
        !self.field.starts_with(PULL_SECRETS)
    }
}

const PULL_SECRETS: &str = "spec.imagePullSecrets";

/// All references of a pod, in the order of the fields.
#[must_use]
pub fn object_refs(pod: &k8s::Pod) -> Vec<ObjectRef> {
    let mut refs = Refs { namespace: namespace(pod), found: Vec::new() };
    let Some(spec) = &pod.spec else { return refs.found };
    for (index, secret) in spec.image_pull_secrets.iter().flatten().enumerate() {
        // Images that need no credentials can be pulled without it.
        let field = || format!("{PULL_SECRETS}[{index}]");
        refs.add(ObjectKind::Secret, &secret.name, Some(true), field);
    }
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        refs.of_volume(volume, &format!("spec.volumes[{index}]"));
    }
    let init = spec.init_containers.iter().flatten().enumerate();
    for (index, container) in init {
        refs.of_container(container, &format!("spec.initContainers[{index}]"));
    }
    for (index, container) in spec.containers.iter().enumerate() {
        refs.of_container(container, &format!("spec.containers[{index}]"));
    }
    refs.found
}

struct Refs<'a> {
    namespace: &'a str,
    found: Vec<ObjectRef>,
}

impl Refs<'_> {
    fn add(
        &mut self,
        kind: ObjectKind,
        name: &str,
        optional: Option<bool>,
        field: impl Fn() -> String,
    ) {
        let key = ObjectKey::new(kind, self.namespace, name);
        self.found.push(ObjectRef { key, optional: optional.unwrap_or_default(), field: field() });
    }

    fn of_volume(&mut self, volume: &k8s::Volume, path: &str) {
        use ObjectKind::{ConfigMap, Secret};
        if let Some(source) = &volume.config_map {
            self.add(ConfigMap, &source.name, source.optional, || format!("{path}.configMap"));
        }
        if let Some(source) = &volume.secret {
            let name = source.secret_name.as_deref().unwrap_or_default();
            self.add(Secret, name, source.optional, || format!("{path}.secret"));
        }
        let projected = volume.projected.iter().flat_map(|source| source.sources.iter().flatten());
        for (index, projection) in projected.enumerate() {
            let path = || format!("{path}.projected.sources[{index}]");
            if let Some(source) = &projection.config_map {
                let field = || format!("{}.configMap", path());
                self.add(ConfigMap, &source.name, source.optional, field);
            }
            if let Some(source) = &projection.secret {
                self.add(Secret, &source.name, source.optional, || format!("{}.secret", path()));
            }
        }
    }

    fn of_container(&mut self, container: &k8s::Container, path: &str) {
        use ObjectKind::{ConfigMap, Secret};
        for (index, source) in container.env_from.iter().flatten().enumerate() {
            let path = || format!("{path}.envFrom[{index}]");
            if let Some(source) = &source.config_map_ref {
                let field = || format!("{}.configMapRef", path());
                self.add(ConfigMap, &source.name, source.optional, field);
            }
            if let Some(source) = &source.secret_ref {
                self.add(Secret, &source.name, source.optional, || format!("{}.secretRef", path()));
            }
        }
        for (index, variable) in container.env.iter().flatten().enumerate() {
            let Some(source) = &variable.value_from else { continue };
            let path = || format!("{path}.env[{index}].valueFrom");
            if let Some(source) = &source.config_map_key_ref {
                let field = || format!("{}.configMapKeyRef", path());
                self.add(ConfigMap, &source.name, source.optional, field);
            }
            if let Some(source) = &source.secret_key_ref {
                let field = || format!("{}.secretKeyRef", path());
                self.add(Secret, &source.name, source.optional, field);
            }
        }
    }
}

fn namespace(pod: &k8s::Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}

/// Finds objects of a pod's namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finder<'a> {
    pub(super) namespace: &'a str,
    pub(super) objects: &'a NodeObjects,
}

impl<'a> Finder<'a> {
    pub(super) fn new(pod: &'a k8s::Pod, objects: &'a NodeObjects) -> Self {
        Self { namespace: namespace(pod), objects }
    }

    /// The object; `None` when it is optional and not there.
    pub(super) fn object(
        self,
        kind: ObjectKind,
        name: &str,
        optional: Option<bool>,
    ) -> Result<Option<&'a DataObject>, EnvError> {
        let key = ObjectKey::new(kind, self.namespace, name);
        match self.objects.found.get(&key) {
            Some(object) => Ok(Some(object)),
            None if optional == Some(true) => Ok(None),
            None => Err(EnvError::NoObject { kind: kind.lower(), name: name.to_owned() }),
        }
    }

    /// The text under a key; `None` when it is optional and not there.
    pub(super) fn text(
        self,
        (kind, name, key): (ObjectKind, &str, &str),
        optional: Option<bool>,
    ) -> Result<Option<&'a str>, EnvError> {
        let Some(object) = self.object(kind, name, optional)? else { return Ok(None) };
        match (object.data.get(key), kind) {
            (Some(datum), ObjectKind::Secret) => text_of(object, key, datum.as_text()).map(Some),
            // `binaryData` is for volumes.
            (Some(datum), ObjectKind::ConfigMap) if datum.as_text().is_some() => {
                Ok(datum.as_text())
            }
            (Some(_) | None, _) if optional == Some(true) => Ok(None),
            (Some(_) | None, _) => {
                Err(EnvError::NoKey { key: key.to_owned(), object: object.key.to_string() })
            }
        }
    }

    /// The variables that `envFrom` makes, with their prefixes.
    pub(super) fn variables(
        self,
        source: &k8s::EnvFromSource,
    ) -> Result<Vec<(String, &'a str)>, EnvError> {
        let from = |kind, name: &str, optional| self.object(kind, name, optional);
        let object = match (&source.config_map_ref, &source.secret_ref) {
            (Some(source), _) => from(ObjectKind::ConfigMap, &source.name, source.optional)?,
            (None, Some(source)) => from(ObjectKind::Secret, &source.name, source.optional)?,
            (None, None) => None,
        };
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let mut made = Vec::new();
        let Some(object) = object else { return Ok(made) };
        for (key, datum) in &object.data {
            let text = match (datum.as_text(), object.key.kind) {
                (None, ObjectKind::ConfigMap) => continue,
                (text, _) => text_of(object, key, text)?,
            };
            made.push((format!("{prefix}{key}"), text));
        }
        Ok(made)
    }
}

/// An environment variable holds text.
fn text_of<'a>(object: &DataObject, key: &str, text: Option<&'a str>) -> Result<&'a str, EnvError> {
    let text = text.filter(|text| !text.contains('\0'));
    text.ok_or_else(|| EnvError::NotText { key: key.to_owned(), object: object.key.to_string() })
}

/// Why the environment of a container can't be made from the objects that are there.
///
/// # Errors
/// The first object or key that is missing, or whose value is no text.
pub fn check_env_objects(
    pod: &k8s::Pod,
    container: &k8s::Container,
    objects: &NodeObjects,
) -> Result<(), EnvError> {
    let finder = Finder::new(pod, objects);
    for source in container.env_from.iter().flatten() {
        finder.variables(source)?;
    }
    for variable in container.env.iter().flatten() {
        if let Some(source) = &variable.value_from {
            value_from(finder, source)?;
        }
    }
    Ok(())
}

/// The value of a variable that comes from an object. The outer `None`: it comes from elsewhere;
/// the inner one: it is optional and not there.
#[expect(clippy::option_option, reason = "two different absences, told apart at the one caller")]
pub(super) fn value_from<'a>(
    finder: Finder<'a>,
    source: &k8s::EnvVarSource,
) -> Result<Option<Option<&'a str>>, EnvError> {
    if let Some(from) = &source.config_map_key_ref {
        let value = finder.text((ObjectKind::ConfigMap, &from.name, &from.key), from.optional);
        return value.map(Some);
    }
    if let Some(from) = &source.secret_key_ref {
        let value = finder.text((ObjectKind::Secret, &from.name, &from.key), from.optional);
        return value.map(Some);
    }
    Ok(None)
}
