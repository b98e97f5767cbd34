//! From a document of `kind: ConfigMap` or `kind: Secret` to its data.
//!
//! The rules are those of the API server. No message repeats data of a Secret.

use super::{
    CredentialNames, DecodedObject,
    decode::{add_report, check_version, meant_paths, readable_name},
    fields::{CONFIG_MAP, SECRET},
    limits,
    validate::{Report, check_object_meta, names},
};
use crate::{
    document::{self, Finding, FindingKind, Node},
    model::{CREDENTIALS, DataObject, Datum, ObjectKey, ObjectKind, Order as _, Origin, Problem},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Most bytes that the values of an object may have together.
const MAX_BYTES: usize = 1 << 20;

/// The parts of both kinds that matter here. Values of another type have been found fault with, and
/// are left out.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Written {
    metadata: ObjectMeta,
    immutable: Option<bool>,
    #[serde(rename = "type")]
    secret_type: String,
    data: BTreeMap<String, String>,
    binary_data: BTreeMap<String, String>,
    string_data: BTreeMap<String, String>,
}

/// The kind of object that a document says it is; `None` for anything else.
pub(super) fn kind(root: &Node) -> Option<ObjectKind> {
    match root.get("kind").and_then(Node::as_str) {
        Some("ConfigMap") => Some(ObjectKind::ConfigMap),
        Some("Secret") => Some(ObjectKind::Secret),
        Some(_) | None => None,
    }
}

/// The object of a document.
pub(super) fn decode(root: &Node, kind: ObjectKind, origin: &Origin) -> DecodedObject {
    let key = readable_name(root).map(|(namespace, name)| ObjectKey::new(kind, namespace, name));
    let mut credentials = CredentialNames::new();
    let (result, mut warnings) = object(root, kind, origin, &mut credentials);
    limits::shorten(&mut warnings);
    let result = result.map_err(|mut problems| {
        limits::shorten(&mut problems);
        problems
    });
    DecodedObject { position: root.position, key, result, warnings, credentials }
}

fn object(
    root: &Node,
    kind: ObjectKind,
    origin: &Origin,
    credentials: &mut CredentialNames,
) -> (Result<DataObject, Vec<Problem>>, Vec<Problem>) {
    let table = match kind {
        ObjectKind::ConfigMap => CONFIG_MAP,
        ObjectKind::Secret => SECRET,
    };
    let (notices, errors): (Vec<Finding>, Vec<Finding>) = document::walk(root, table, "")
        .into_iter()
        .partition(|finding| finding.kind == FindingKind::Ignored);
    let mut warnings: Vec<Problem> = notices.into_iter().map(|finding| finding.problem).collect();
    let meant = meant_paths(&errors);
    let mut problems: Vec<Problem> =
        errors.into_iter().map(|finding| discreet(finding, kind)).collect();
    check_version(root, &meant, &mut problems);
    let written: Written =
        serde_json::from_value(document::typed(root, table)).unwrap_or_else(|_| {
            // What does not fit was found fault with above. If not, nothing is repeated here.
            let message = format!("does not fit a {}", kind.as_str());
            let path = String::new();
            problems.push(Problem { position: root.position, path, message });
            Written::default()
        });
    let mut report = Report::default();
    check_object_meta(&mut report, &written.metadata);
    *credentials = credentials_of(&mut report, kind, &written.metadata);
    let data = match kind {
        ObjectKind::ConfigMap => config_map(&mut report, &written),
        ObjectKind::Secret => secret(&mut report, &written, credentials),
    };
    add_report(root, report, &meant, &mut problems, &mut warnings);
    if !problems.is_empty() {
        problems.order_by_key(|problem| problem.position);
        return (Err(problems), warnings);
    }
    let name = written.metadata.name.as_deref().unwrap_or_default();
    let namespace = written.metadata.namespace.as_deref().filter(|text| !text.is_empty());
    let secret_type = match kind {
        ObjectKind::Secret if written.secret_type.is_empty() => "Opaque",
        ObjectKind::Secret => &written.secret_type,
        ObjectKind::ConfigMap => "",
    };
    let object = DataObject {
        key: ObjectKey::new(kind, namespace.unwrap_or("default"), name),
        data,
        uid: "".into(),
        immutable: written.immutable.unwrap_or_default(),
        secret_type: secret_type.into(),
        origin: origin.clone(),
    };
    (Ok(object), warnings)
}

/// The problem, without the value when that may be secret.
fn discreet(finding: Finding, kind: ObjectKind) -> Problem {
    let mut problem = finding.problem;
    let in_data = ["data", "stringData"].iter().any(|field| problem.path.starts_with(field));
    if kind == ObjectKind::Secret && in_data && finding.kind == FindingKind::WrongType {
        problem.message = "Invalid value: must be text (numbers and booleans in quotes)".to_owned();
    }
    problem
}

type Data = BTreeMap<Box<str>, Datum>;

fn config_map(report: &mut Report, written: &Written) -> Data {
    let mut data = Data::new();
    for (key, text) in &written.data {
        check_key(report, "data", key);
        if written.binary_data.contains_key(key) {
            let detail = "duplicate of key present in binaryData";
            report.invalid(&format!("data[{key}]"), key.as_str(), detail);
        }
        data.insert(key.as_str().into(), Datum::Text(text.as_str().into()));
    }
    for (key, text) in &written.binary_data {
        check_key(report, "binaryData", key);
        if let Some(bytes) = base64(report, &format!("binaryData[{key}]"), text, "") {
            data.insert(key.as_str().into(), Datum::Binary(bytes.into()));
        }
    }
    check_size(report, &data);
    data
}

fn secret(report: &mut Report, written: &Written, credentials: &CredentialNames) -> Data {
    let mut data = Data::new();
    for (key, text) in &written.data {
        check_key(report, "data", key);
        let hint = ", or write it as it is under stringData";
        if let Some(bytes) = base64(report, &format!("data[{key}]"), text, hint) {
            data.insert(key.as_str().into(), Datum::of_secret(bytes));
        }
    }
    // As the API server does when it is written.
    for (key, text) in &written.string_data {
        check_key(report, "stringData", key);
        data.insert(key.as_str().into(), Datum::Text(text.as_str().into()));
    }
    check_size(report, &data);
    check_type(report, &written.secret_type, &data, credentials);
    data
}

/// The credentials that a Secret names.
fn credentials_of(report: &mut Report, kind: ObjectKind, meta: &ObjectMeta) -> CredentialNames {
    let path = format!("metadata.annotations[{CREDENTIALS}]");
    let text = meta.annotations.as_ref().and_then(|all| all.get(CREDENTIALS));
    let mut found = CredentialNames::new();
    let Some(text) = text else { return found };
    if kind == ObjectKind::ConfigMap {
        report.wrong(&path, "credentials are for Secrets: make this a Secret");
        return found;
    }
    for entry in text.split(',').map(str::trim) {
        let (key, credential) = entry.split_once('=').unwrap_or((entry, entry));
        // A file name in the directory that systemd has made.
        let is_name = !credential.starts_with('.') && !credential.contains(['/', '\0']);
        let is_key = names::config_key(key).is_ok();
        if !(is_key && is_name && !credential.is_empty()) {
            report.invalid(&path, entry, "must be KEY=CREDENTIAL, separated by commas");
        }
        found.insert(key.into(), credential.into());
    }
    found
}

fn check_key(report: &mut Report, field: &str, key: &str) {
    if let Err(detail) = names::config_key(key) {
        report.invalid(&format!("{field}[{key}]"), key, &detail.to_string());
    }
}

fn base64(report: &mut Report, path: &str, text: &str, hint: &str) -> Option<Vec<u8>> {
    let joined: String = text.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
    let decoded = STANDARD.decode(joined).ok();
    if decoded.is_none() {
        report.wrong(path, &format!("must be base64 with padding{hint}"));
    }
    decoded
}

fn check_size(report: &mut Report, data: &Data) {
    if data.values().map(|datum| datum.as_bytes().len()).sum::<usize>() > MAX_BYTES {
        report.too_long("data", MAX_BYTES);
    }
}

/// The keys that a type of Secret needs.
fn check_type(report: &mut Report, secret_type: &str, data: &Data, credentials: &CredentialNames) {
    let has = |key: &str| data.contains_key(key) || credentials.contains_key(key);
    let mut need = |key: &str| {
        if !has(key) {
            report.required(&format!("data[{key}]"));
        }
    };
    match secret_type {
        "kubernetes.io/dockerconfigjson" => need(".dockerconfigjson"),
        "kubernetes.io/dockercfg" => need(".dockercfg"),
        "kubernetes.io/tls" => ["tls.crt", "tls.key"].into_iter().for_each(&mut need),
        "kubernetes.io/ssh-auth" => need("ssh-privatekey"),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            report.required_because("data[username]", "must have username or password");
        }
        _ => {}
    }
    for key in [".dockerconfigjson", ".dockercfg"] {
        let of_type = secret_type.strip_prefix("kubernetes.io/") == key.strip_prefix('.');
        let json =
            |datum: &Datum| serde_json::from_slice::<serde::de::IgnoredAny>(datum.as_bytes());
        if of_type && data.get(key).is_some_and(|datum| json(datum).is_err()) {
            report.wrong(&format!("data[{key}]"), "must be JSON");
        }
    }
}

#[cfg(test)]
mod tests;
