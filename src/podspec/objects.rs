//! What a pod reads of ConfigMaps and Secrets.

use super::{
    EnvError, are_claims_known, as_container, claim_keys, files::ObjectFiles, is_static,
    token_keys, uid_of,
};
use crate::model::{
    DataObject, Datum, NodeObjects, ObjectKey, ObjectKind, ObjectScope, ObjectSight, PodUid, k8s,
};
use std::{collections::BTreeSet, fmt};

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
    for (index, name) in pull_secret_names(spec) {
        // Images that need no credentials can be pulled without it.
        let field = || format!("{PULL_SECRETS}[{index}]");
        refs.add(ObjectKind::Secret, name, Some(true), field);
    }
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        refs.of_volume(volume, format_args!("spec.volumes[{index}]"));
    }
    let init = spec.init_containers.iter().flatten().enumerate();
    for (index, container) in init {
        refs.of_container(container, format_args!("spec.initContainers[{index}]"));
    }
    for (index, container) in spec.containers.iter().enumerate() {
        refs.of_container(container, format_args!("spec.containers[{index}]"));
    }
    for (index, ephemeral) in spec.ephemeral_containers.iter().flatten().enumerate() {
        let path = format_args!("spec.ephemeralContainers[{index}]");
        refs.of_container(&as_container(ephemeral), path);
    }
    refs.found
}

/// The names in `imagePullSecrets` and their indexes. As the kubelet, it skips empty names, which
/// Helm charts make.
pub fn pull_secret_names(spec: &k8s::PodSpec) -> impl Iterator<Item = (usize, &str)> {
    let names = spec.image_pull_secrets.iter().flatten().map(|secret| secret.name.as_str());
    names.enumerate().filter(|(_, name)| !name.is_empty())
}

/// The objects to which the pod can refer.
#[must_use]
pub fn object_scope(pod: &k8s::Pod) -> ObjectScope {
    if is_static(pod) { ObjectScope::Files } else { ObjectScope::Api }
}

/// True when the agent knows whether the objects, tokens and claims of the pod exist. Until then,
/// an error about one of them is not final.
#[must_use]
pub fn are_objects_known(pod: &k8s::Pod, objects: &NodeObjects) -> bool {
    match object_scope(pod) {
        ObjectScope::Files => objects.known,
        ObjectScope::Api => {
            let api = &objects.api;
            let has_answer = |object: &ObjectRef| api.objects.contains_key(&object.key);
            object_refs(pod).iter().all(has_answer)
                && token_keys(pod).iter().all(|token| api.tokens.contains_key(token))
                && are_claims_known(pod, objects)
        }
    }
}

/// True when the agent knows the Services for the environment of the pod's containers. A static pod
/// needs none.
#[must_use]
pub fn are_services_known(pod: &k8s::Pod, objects: &NodeObjects) -> bool {
    match object_scope(pod) {
        ObjectScope::Files => true,
        ObjectScope::Api => {
            objects.api.services.is_some() && counts_for(objects.api.services_for.as_deref(), pod)
        }
    }
}

/// Whether an answer counts for a pod. `pods` are those for which it counts; `None`: for all.
pub(super) fn counts_for(pods: Option<&BTreeSet<PodUid>>, pod: &k8s::Pod) -> bool {
    pods.is_none_or(|pods| pods.contains(&uid_of(pod)))
}

/// True when everything that the pod can read is the same in both: ConfigMaps, Secrets, tokens,
/// claims, Services and runtime classes. For a static pod, whose earlier revision may run on, no
/// object of the files may differ.
#[must_use]
pub fn reads_the_same(pod: &k8s::Pod, before: &NodeObjects, after: &NodeObjects) -> bool {
    match object_scope(pod) {
        ObjectScope::Files => (before.known, &before.found) == (after.known, &after.found),
        ObjectScope::Api => {
            let (a, b) = (&*before.api, &*after.api);
            (&a.services, &a.services_for) == (&b.services, &b.services_for)
                && (&a.runtime_classes, &a.runtime_classes_for)
                    == (&b.runtime_classes, &b.runtime_classes_for)
                && object_refs(pod)
                    .iter()
                    .all(|one| a.objects.get(&one.key) == b.objects.get(&one.key))
                && token_keys(pod).iter().all(|key| a.tokens.get(key) == b.tokens.get(key))
                && claim_keys(pod).iter().all(|key| a.claims.get(key) == b.claims.get(key))
        }
    }
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

    fn of_volume(&mut self, volume: &k8s::Volume, path: fmt::Arguments<'_>) {
        for objects in ObjectFiles::of_volume(volume) {
            let field = || format!("{path}.{}", objects.field());
            self.add(objects.kind, objects.name, objects.optional, field);
        }
    }

    fn of_container(&mut self, container: &k8s::Container, path: fmt::Arguments<'_>) {
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
            let Some(from) = variable.value_from.as_ref().and_then(KeyRef::of) else { continue };
            let field = match from.kind {
                ObjectKind::ConfigMap => "configMapKeyRef",
                ObjectKind::Secret => "secretKeyRef",
            };
            let field = || format!("{path}.env[{index}].valueFrom.{field}");
            self.add(from.kind, from.name, from.optional, field);
        }
    }
}

/// `metadata.namespace`, or the default.
pub(super) fn namespace(pod: &k8s::Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}

/// Finds objects of a pod's namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finder<'a> {
    pub(super) namespace: &'a str,
    pub(super) scope: ObjectScope,
    pub(super) objects: &'a NodeObjects,
}

impl<'a> Finder<'a> {
    pub(super) fn new(pod: &'a k8s::Pod, objects: &'a NodeObjects) -> Self {
        Self { namespace: namespace(pod), scope: object_scope(pod), objects }
    }

    /// The object; `None` when it is optional and not there.
    pub(super) fn object(
        self,
        kind: ObjectKind,
        name: &str,
        optional: Option<bool>,
    ) -> Result<Option<&'a DataObject>, EnvError> {
        let key = ObjectKey::new(kind, self.namespace, name);
        match self.objects.sight(self.scope, &key) {
            ObjectSight::Found(object) => Ok(Some(object)),
            ObjectSight::Missing if optional == Some(true) => Ok(None),
            ObjectSight::Missing => {
                Err(EnvError::NoObject { kind: kind.lower(), name: name.to_owned() })
            }
            // As in the kubelet, `optional` allows a missing object, not a refused one.
            ObjectSight::Refused(why) => Err(EnvError::Refused { why: why.to_owned() }),
            ObjectSight::Unknown => {
                Err(EnvError::NotKnown { kind: kind.lower(), name: name.to_owned() })
            }
        }
    }

    /// The value of a key; `None` when it is optional and not there.
    pub(super) fn text(self, from: &KeyRef<'_>) -> Result<Option<&'a str>, EnvError> {
        let KeyRef { kind, name, key, optional } = *from;
        let Some(object) = self.object(kind, name, optional)? else { return Ok(None) };
        let value = object.data.get(key).and_then(|datum| variable(object, key, datum));
        match value {
            Some(value) => value.map(Some),
            None if optional == Some(true) => Ok(None),
            None => Err(EnvError::NoKey { key: key.to_owned(), object: object.key.to_string() }),
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
        let Some(object) = object else { return Ok(Vec::new()) };
        let values = object.data.iter().filter_map(|(key, datum)| {
            let value = variable(object, key, datum)?;
            Some(value.map(|value| (format!("{prefix}{key}"), value)))
        });
        values.collect()
    }
}

/// The value of an environment variable; `None` for `binaryData` of a ConfigMap, which is for
/// volumes alone.
fn variable<'a>(
    object: &DataObject,
    key: &str,
    datum: &'a Datum,
) -> Option<Result<&'a str, EnvError>> {
    let text = datum.as_text();
    if text.is_none() && object.key.kind == ObjectKind::ConfigMap {
        return None;
    }
    let text = text.filter(|text| !text.contains('\0'));
    let not_text = || EnvError::NotText { key: key.to_owned(), object: object.key.to_string() };
    Some(text.ok_or_else(not_text))
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
        if let Some(from) = variable.value_from.as_ref().and_then(KeyRef::of) {
            finder.text(&from)?;
        }
    }
    Ok(())
}

/// A variable's reference to one key of an object.
pub(super) struct KeyRef<'a> {
    kind: ObjectKind,
    name: &'a str,
    key: &'a str,
    optional: Option<bool>,
}

impl<'a> KeyRef<'a> {
    /// `None` for a variable that comes from elsewhere.
    pub(super) fn of(source: &'a k8s::EnvVarSource) -> Option<Self> {
        if let Some(k8s::ConfigMapKeySelector { name, key, optional }) = &source.config_map_key_ref
        {
            return Some(Self { kind: ObjectKind::ConfigMap, name, key, optional: *optional });
        }
        let k8s::SecretKeySelector { name, key, optional } = source.secret_key_ref.as_ref()?;
        Some(Self { kind: ObjectKind::Secret, name, key, optional: *optional })
    }
}

#[cfg(test)]
pub(super) mod tests;
