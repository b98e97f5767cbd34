//! `docs/manifests.md`, made from the field table.

use super::POD;
use crate::document::{Field, Support, Type};
use crate::model::Order as _;
use std::fmt::Write as _;

/// The document for users: what of a Pod manifest is honoured. A test compares it with
/// `docs/manifests.md`.
#[must_use]
pub fn markdown() -> String {
    let mut out = INTRODUCTION.to_owned();
    let mut rows = Vec::new();
    collect(POD, "", &mut rows);
    for (title, prefix) in SECTIONS {
        let (section, rest) = rows.into_iter().partition(|row: &Row| row.path.starts_with(prefix));
        rows = rest;
        table(&mut out, title, prefix, section);
    }
    table(&mut out, "The document", "", rows);
    out
}

/// Longest prefix first: each row goes to the first section that fits.
const SECTIONS: [(&str, &str); 5] = [
    ("Containers (`spec.containers[]` and `spec.initContainers[]`)", "spec.containers[]."),
    ("Volumes (`spec.volumes[]`)", "spec.volumes[]."),
    ("Security of the pod (`spec.securityContext`)", "spec.securityContext."),
    ("The pod (`spec`)", "spec."),
    ("`metadata`", "metadata."),
];

const INTRODUCTION: &str = "\
<!-- Made from the field table in src/manifest/fields. Change it there, then: UPDATE_DOCS=1 cargo test --test manifests -->
# Manifests

This page is about static pods, whose manifests are files on the machine or come from `staticPodURL`. Pods from an API server support more,
for example service accounts and PersistentVolumeClaims: see [In a cluster](cluster.md#pods-from-the-api-server).

nodelet runs Kubernetes manifests of `kind: Pod` (`apiVersion: v1`), written in YAML or JSON. A file holds one or more
documents; a document can be a `Pod`, a `ConfigMap`, a `Secret`, a `List` or a `PodList`. A URL may send pods only.
nodelet reads YAML as Kubernetes' tools do: `0644` is octal, `yes` and `on` are true, and a quoted value is text. A duplicate key is an error.

nodelet checks manifests strictly. It rejects a manifest that has an unknown field, a value of the wrong type, or a field that
nodelet does not support. The error message names file, line, column and field. `nodelet check FILE` reports the same errors
without running the pod. Fields that are left out get Kubernetes' defaults.

nodelet appends the node's name to the name of a static pod. A static pod reads ConfigMaps and Secrets from documents on the machine
([secrets.md](secrets.md)). It cannot refer to other objects of an API: ServiceAccounts, PersistentVolumeClaims or ResourceClaims.

The second column of the tables below has one of these values:

| | meaning |
|---|---|
| yes | works as in Kubernetes |
| differs | works, with the difference that the note describes |
| ignored | accepted and has no effect, which does no harm; `check` and `status` report it |
| no | a manifest that sets it is rejected |

The tables do not list the fields inside a field marked \"no\" or \"ignored\"; they are treated the same. The values of ignored
fields about scheduling, readiness gates and resizing are still checked: a manifest with an invalid value is rejected.

## Limits

These limits are far above what the pods of one node need. They keep a wrong or hostile manifest from using too much of the
agent's memory or time. Input that exceeds a limit is rejected with an error that names the limit, and the last valid version of
each pod keeps running. The kubelet has only the first of these limits: 10 MiB for each file or answer.

| limit on | maximum |
|---|---|
| text of a file, of all files of the directory together, or of the response from a URL | 4 MiB |
| values in a file (scalars, lists and mappings, after aliases are expanded) | 50,000 |
| documents of a source, where each item of a list counts as a document | 500 |
| memory that the documents of a source use (a typical pod uses about 20 KiB) | 16 MiB |
| values of a ConfigMap, or of a Secret, together (the limit of the API) | 1 MiB |
| files of a `configMap`, `secret`, `downwardAPI` or `projected` volume together | 256 MiB |
| entries of the directory; if there are more, none of them is read | 1,000 |
| `containers` of a pod, and `initContainers` of a pod | 100 each |
| `volumes` of a pod | 250 |
| an argument, or an environment variable with its name, after `$(VAR)` expansion (the kernel's limit) | 128 KiB |
| command, arguments and environment of a container together, after `$(VAR)` expansion | 1 MiB |
| a `subPathExpr` after expansion | 4 KiB |
| `NAMESPACE_NAME-NODE_UID`, the name of the pod's log directory | 255 bytes |
| problems that are reported for one document | 100 |
| problems that are reported for one source | 200 |

If the files of a directory together exceed a limit, nodelet reads them in the order of their names until the limit is reached.
";

struct Row {
    path: String,
    field: &'static Field,
}

fn collect(fields: &'static [Field], prefix: &str, rows: &mut Vec<Row>) {
    for field in fields {
        let path = format!("{prefix}{}{}", field.name, brackets(&field.ty));
        // Init containers have the same table as containers; it is printed once.
        let again = path == "spec.initContainers[]";
        let honoured = matches!(field.support, Support::Yes | Support::Differs);
        rows.push(Row { path: path.clone(), field });
        if let Some(parts) = object(&field.ty)
            && honoured
            && !again
        {
            collect(parts, &format!("{path}."), rows);
        }
    }
}

fn brackets(ty: &Type) -> &'static str {
    if matches!(ty, Type::List(_)) { "[]" } else { "" }
}

fn object(ty: &'static Type) -> Option<&'static [Field]> {
    match ty {
        Type::Object(fields) => Some(fields),
        Type::List(item) | Type::Map(item) => object(item),
        Type::Bool
        | Type::String
        | Type::Int32
        | Type::Int64
        | Type::Float
        | Type::IntOrString
        | Type::Quantity
        | Type::Duration
        | Type::Time
        | Type::Any => None,
    }
}

fn table(out: &mut String, title: &str, prefix: &str, mut rows: Vec<Row>) {
    rows.order_by(|a, b| a.path.cmp(&b.path));
    // Writing to a String can't fail.
    write!(out, "\n## {title}\n\n| field | | note |\n|---|---|---|\n").ok();
    for Row { path, field } in rows {
        let support = match field.support {
            Support::Yes => "yes",
            Support::Differs => "differs",
            Support::Ignored => "ignored",
            Support::No => "no",
        };
        let path = path.strip_prefix(prefix).unwrap_or(&path);
        writeln!(out, "| `{path}` | {support} | {} |", field.note).ok();
    }
}
