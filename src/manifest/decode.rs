//! The way of one text through parsing, strictness, defaults, validation and identity.

use super::{
    Context, DecodedDocument, DecodedFile, DecodedObject, MAX_DOCUMENTS, MAX_MEMORY_BYTES, POD,
    defaults, identity, limits, memory_bytes, object,
    validate::{Report, validate},
};
use crate::{
    document::{self, Entry, Field, Finding, FindingKind, Node, Type, Value},
    model::{
        DesiredPod, Order as _, Origin, PodKey, PodUid, Position, Problem, REVISION_ANNOTATION,
        SourceKind, k8s,
    },
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::sync::Arc;

/// A list of pods. What a list says about itself has no meaning here.
static LIST: &[Field] = &[
    Field::yes("apiVersion", Type::String),
    Field::yes("items", Type::Any),
    Field::yes("kind", Type::String),
    Field::yes("metadata", Type::Any),
];

/// Longest path in a problem, in characters: the longest that is no nonsense has 400.
const MAX_PATH: usize = 500;

/// Reads the pods of a file or of the body of a URL.
///
/// # Errors
/// When the text can't be parsed. All other problems are reported for each document.
pub fn decode(text: &[u8], cx: &Context<'_>) -> Result<DecodedFile, Problem> {
    let mut file = Decoder { cx, documents: Vec::new(), objects: Vec::new(), memory_bytes: 0 };
    let parsed = document::parse(text)?;
    let has_content = !parsed.is_empty();
    for document in parsed {
        let root = document.root;
        match root.get("kind").and_then(Node::as_str) {
            Some(kind @ ("List" | "PodList")) => file.list(&root, kind == "PodList")?,
            Some(_) | None => file.document(&root)?,
        }
    }
    let empty_list = has_content && file.count() == 0;
    Ok(DecodedFile { documents: file.documents, objects: file.objects, empty_list })
}

/// The documents of one file, within the limits of [`super::limits`].
struct Decoder<'a> {
    cx: &'a Context<'a>,
    documents: Vec<DecodedDocument>,
    objects: Vec<DecodedObject>,
    memory_bytes: usize,
}

impl Decoder<'_> {
    fn document(&mut self, root: &Node) -> Result<(), Problem> {
        if let Some(kind) = object::kind(root) {
            let object = object::decode(root, kind, &self.origin(root));
            return self.add_object(object);
        }
        let document = decode_at(root, self.cx, self.count());
        self.add(document)
    }

    fn origin(&self, root: &Node) -> Origin {
        let (source, location) = (self.cx.source, self.cx.location.into());
        Origin { source, location, document: self.count(), line: root.position.line }
    }

    fn count(&self) -> usize {
        self.documents.len() + self.objects.len()
    }

    fn add_object(&mut self, object: DecodedObject) -> Result<(), Problem> {
        let bytes = match &object.result {
            Ok(object) => object.memory_bytes(),
            Err(problems) => memory_bytes("", Err(problems)),
        };
        self.take_room(object.position, bytes)?;
        self.objects.push(object);
        Ok(())
    }

    fn add(&mut self, document: DecodedDocument) -> Result<(), Problem> {
        let result = document.result.as_ref().map(|desired| &*desired.pod).map_err(Vec::as_slice);
        self.take_room(document.position, memory_bytes(&document.as_written, result))?;
        self.documents.push(document);
        Ok(())
    }

    fn take_room(&mut self, position: Position, bytes: usize) -> Result<(), Problem> {
        let too_large = |message: String| Problem { position, path: String::new(), message };
        if self.count() >= MAX_DOCUMENTS {
            return Err(too_large(format!(
                "Too many: at most {MAX_DOCUMENTS} documents and items of lists are read: remove some"
            )));
        }
        self.memory_bytes += bytes;
        if self.memory_bytes > MAX_MEMORY_BYTES {
            return Err(too_large(format!(
                "Too long: up to here, the documents take more than {} MiB of memory: remove some",
                MAX_MEMORY_BYTES >> 20
            )));
        }
        Ok(())
    }

    /// Every item of a list is a document. What is wrong with the list itself is a document as
    /// well, one that is rejected.
    fn list(&mut self, root: &Node, of_pods: bool) -> Result<(), Problem> {
        let items = root.get("items").filter(|items| !items.is_null());
        if let Some(items) = items.filter(|items| items.items().len() > MAX_DOCUMENTS) {
            let message = format!(
                "Too many: {}: must have at most {MAX_DOCUMENTS} items",
                items.items().len()
            );
            return Err(Problem { position: items.position, path: "items".to_owned(), message });
        }
        let findings = document::walk(root, LIST, "");
        let meant = meant_paths(&findings);
        let mut problems: Vec<Problem> =
            findings.into_iter().map(|finding| finding.problem).collect();
        check_version(root, &meant, &mut problems);
        if let Some(items) = items
            && !matches!(items.value, Value::List(_))
        {
            let message = "Invalid value: must be a list".to_owned();
            problems.push(Problem { position: items.position, path: "items".to_owned(), message });
        }
        if !problems.is_empty() {
            let mut rejected = rejected(root, self.cx, self.count(), problems);
            rejected.key = None;
            self.add(rejected)?;
        }
        for item in items.map(Node::items).unwrap_or_default() {
            let mut item = item.clone();
            if of_pods {
                name_kind(&mut item);
            }
            self.document(&item)?;
        }
        Ok(())
    }
}

/// Makes the pod of a document that was kept as parsed: the last good revision of a manifest. With
/// warnings, which have no places either.
///
/// # Errors
/// Everything that is wrong with it, without places. What was accepted once can be rejected later,
/// by another version or another configuration.
pub fn decode_document(
    as_written: &serde_json::Value,
    origin: &Origin,
    cx: &Context<'_>,
) -> Result<(DesiredPod, Vec<Problem>), Vec<Problem>> {
    let root = Node::from_json(as_written);
    let long = limits::long_lists(&root);
    if !long.is_empty() {
        return Err(long);
    }
    let (pod, warnings) = pod(&root, as_written, origin, cx);
    Ok((pod?, warnings))
}

/// The full name of the pod of such a document, where it can be made out: also of one that is
/// rejected.
#[must_use]
pub fn name_of_document(as_written: &serde_json::Value, node_name: &str) -> Option<PodKey> {
    readable_key(&Node::from_json(as_written), node_name)
}

/// The items of a `PodList` need not say that they are pods.
fn name_kind(item: &mut Node) {
    let position = item.position;
    let Value::Map(entries) = &mut item.value else { return };
    for (key, value) in [("apiVersion", "v1"), ("kind", "Pod")] {
        if !entries.iter().any(|e| e.key == key) {
            let value = Node { position, value: Value::String(value.to_owned()) };
            entries.push(Entry { key: key.to_owned(), key_position: position, value });
        }
    }
}

fn decode_at(root: &Node, cx: &Context<'_>, document: usize) -> DecodedDocument {
    let mut decoded = rejected(root, cx, document, Vec::new());
    let long = limits::long_lists(root);
    let (result, warnings) = if long.is_empty() {
        let as_written = root.to_json();
        let made = pod(root, &as_written, &decoded.origin, cx);
        if let Ok(desired) = &made.0 {
            decoded.key = Some(desired.key.clone());
            decoded.as_written = as_written.to_string().into();
        }
        made
    } else {
        (Err(long), Vec::new())
    };
    decoded.result = result.map_err(|mut problems| {
        limits::shorten(&mut problems);
        problems
    });
    decoded.warnings = warnings;
    limits::shorten(&mut decoded.warnings);
    decoded
}

fn rejected(
    root: &Node,
    cx: &Context<'_>,
    document: usize,
    mut problems: Vec<Problem>,
) -> DecodedDocument {
    limits::shorten(&mut problems);
    let origin = Origin {
        source: cx.source,
        location: cx.location.into(),
        document,
        line: root.position.line,
    };
    DecodedDocument {
        origin,
        position: root.position,
        key: readable_key(root, cx.node_name),
        as_written: "".into(),
        result: Err(problems),
        warnings: Vec::new(),
    }
}

/// The name of a pod that may be wrong in any other way.
fn readable_key(root: &Node, node_name: &str) -> Option<PodKey> {
    if root.get("kind").and_then(Node::as_str).is_some_and(|kind| kind != "Pod") {
        return None;
    }
    let (namespace, name) = readable_name(root)?;
    Some(full_name(namespace, name, node_name))
}

/// Namespace and name of a document that may be wrong in any other way.
pub(super) fn readable_name(root: &Node) -> Option<(&str, &str)> {
    let metadata = root.get("metadata")?;
    let name = metadata.get("name")?.as_str().filter(|name| !name.is_empty())?;
    let namespace = metadata.get("namespace").and_then(Node::as_str);
    let namespace = namespace.filter(|text| !text.is_empty()).unwrap_or("default");
    Some((document::cut(namespace, MAX_PATH), document::cut(name, MAX_PATH)))
}

fn full_name(namespace: &str, name: &str, node_name: &str) -> PodKey {
    let namespace = if namespace.is_empty() { "default" } else { namespace };
    PodKey::new(namespace, &format!("{name}-{}", node_name.to_lowercase()))
}

pub(super) fn check_version(root: &Node, meant: &[String], problems: &mut Vec<Problem>) {
    let mut add = |path: &str, position: Position, message: String| {
        problems.push(Problem { position, path: path.to_owned(), message });
    };
    match root.get("apiVersion").filter(|node| !node.is_null()) {
        None if meant.iter().any(|path| path == "apiVersion") => {}
        None => add("apiVersion", root.position, "Required value: must be \"v1\"".to_owned()),
        Some(node) => match node.as_str() {
            Some("v1") | None => {}
            Some(other) => {
                let shown = document::show(&other.into());
                let message = format!("Unsupported value: {shown}: supported values: \"v1\"");
                add("apiVersion", node.position, message);
            }
        },
    }
}

/// Whether this says that it is a pod; if not, nothing else about it is worth saying.
fn check_kind(root: &Node) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |path: &str, position: Position, message: String| {
        problems.push(Problem { position, path: path.to_owned(), message });
    };
    if !matches!(root.value, Value::Map(_)) {
        let message = "must be an object: apiVersion, kind, metadata and spec of a Pod".to_owned();
        add("", root.position, message);
        return problems;
    }
    match root.get("kind").filter(|node| !node.is_null()) {
        None => add("kind", root.position, "Required value: must be \"Pod\"".to_owned()),
        Some(node) => match node.as_str() {
            Some("Pod") => {}
            Some(other) => {
                let shown = document::show(&other.into());
                let message = format!(
                    "Unsupported value: {shown}: supported values: \"Pod\", \"ConfigMap\", \"Secret\", \"PodList\", \"List\""
                );
                add("kind", node.position, message);
            }
            None => {
                add("kind", node.position, "Invalid value: must be text, \"Pod\"".to_owned());
            }
        },
    }
    problems
}

/// The pod of one document, and warnings.
fn pod(
    root: &Node,
    as_written: &serde_json::Value,
    origin: &Origin,
    cx: &Context<'_>,
) -> (Result<DesiredPod, Vec<Problem>>, Vec<Problem>) {
    let problems = check_kind(root);
    if !problems.is_empty() {
        return (Err(problems), Vec::new());
    }
    let (notices, errors): (Vec<Finding>, Vec<Finding>) = document::walk(root, POD, "")
        .into_iter()
        .partition(|finding| finding.kind == FindingKind::Ignored);
    let mut warnings: Vec<Problem> = notices.into_iter().map(|f| f.problem).collect();
    let meant = meant_paths(&errors);
    let mut problems: Vec<Problem> = errors.into_iter().map(|f| f.problem).collect();
    check_version(root, &meant, &mut problems);

    let mut typed = document::typed(root, POD);
    if let Some(fields) = typed.as_object_mut() {
        // Another version was found fault with above; the rest is worth looking at all the same.
        fields.insert("apiVersion".to_owned(), "v1".into());
    }
    let mut pod: k8s::Pod = match serde_json::from_value(typed) {
        Ok(pod) => pod,
        Err(error) => {
            let message = format!("does not fit a Pod: {error}");
            let path = String::new();
            problems.push(Problem { position: root.position, path, message });
            return (Err(problems), warnings);
        }
    };
    defaults::apply(&mut pod, cx.settings);
    let report = validate(&pod, cx);
    add_report(root, report, &meant, &mut problems, &mut warnings);
    if !problems.is_empty() {
        problems.order_by_key(|problem| problem.position);
        return (Err(problems), warnings);
    }
    (Ok(dress(pod, as_written, origin, cx)), warnings)
}

/// The fields that misspelt ones stand for.
pub(super) fn meant_paths(findings: &[Finding]) -> Vec<String> {
    findings.iter().filter_map(|finding| finding.meant.clone()).collect()
}

/// Adds what validation found, with places, except where the walk has said it already. A field that
/// is missing is not worth saying where a misspelt one stands for it: `meant` has the paths of those.
pub(super) fn add_report(
    root: &Node,
    report: Report,
    meant: &[String],
    problems: &mut Vec<Problem>,
    warnings: &mut Vec<Problem>,
) {
    let known: Vec<String> = problems.iter().map(|problem| problem.path.clone()).collect();
    let place = |(path, message): (String, String)| {
        let position = root.nearest_to(&path).position;
        Problem { position, path: document::cut(&path, MAX_PATH).to_owned(), message }
    };
    let new = report.mistakes.into_iter().filter(|(path, message)| {
        let said = known.iter().any(|known| is_within(path, known) || is_within(known, path));
        let is_meant = message.starts_with("Required value") && meant.contains(path);
        !(said || is_meant)
    });
    problems.extend(new.map(place));
    warnings.extend(report.warnings.into_iter().map(place));
    warnings.order_by_key(|warning| warning.position);
}

/// Whether `path` is `outer` or a part of it.
fn is_within(path: &str, outer: &str) -> bool {
    path.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Gives a valid pod what every static pod gets: identity, full name, node, annotations,
/// toleration.
fn dress(
    mut pod: k8s::Pod,
    as_written: &serde_json::Value,
    origin: &Origin,
    cx: &Context<'_>,
) -> DesiredPod {
    let revision = identity::revision(as_written);
    let uid = match pod.metadata.uid.as_deref() {
        Some(given) if !given.is_empty() => PodUid::from(given),
        Some(_) | None => identity::uid(as_written, &pod, cx.node_name),
    };
    let written = std::mem::take(&mut pod.metadata);
    let key = full_name(
        written.namespace.as_deref().unwrap_or_default(),
        written.name.as_deref().unwrap_or_default(),
        cx.node_name,
    );
    let mut annotations = written.annotations.unwrap_or_default();
    for (name, value) in [
        ("kubernetes.io/config.hash", uid.to_string()),
        ("kubernetes.io/config.source", cx.source.as_str().to_owned()),
        ("kubernetes.io/config.seen", format!("{:.9}", cx.seen)),
        (REVISION_ANNOTATION, revision.to_string()),
    ] {
        annotations.insert(name.to_owned(), value);
    }
    // Nothing else of the metadata is ours to keep: a deletionTimestamp in an exported manifest
    // must not look like a pod that is being deleted.
    pod.metadata = ObjectMeta {
        name: Some(key.name.to_string()),
        namespace: Some(key.namespace.to_string()),
        uid: Some(uid.to_string()),
        labels: written.labels,
        annotations: Some(annotations),
        ..ObjectMeta::default()
    };
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(cx.node_name.to_owned());
        if cx.source == SourceKind::File {
            spec.tolerations.get_or_insert_default().push(k8s::Toleration {
                operator: Some("Exists".to_owned()),
                effect: Some("NoExecute".to_owned()),
                ..k8s::Toleration::default()
            });
        }
        // Decoding makes room for four elements, and pods are kept: half of a small pod's memory.
        spec.containers.shrink_to_fit();
        spec.init_containers.iter_mut().for_each(Vec::shrink_to_fit);
        spec.tolerations.iter_mut().for_each(Vec::shrink_to_fit);
    }
    pod.status = Some(k8s::PodStatus { phase: Some("Pending".to_owned()), ..Default::default() });
    DesiredPod { key, uid, revision, pod: Arc::new(pod), origin: origin.clone() }
}
