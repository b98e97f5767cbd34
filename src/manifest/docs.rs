//! `docs/manifests.md`, made from the field table.

use super::POD;
use crate::document::{Field, Support, Type};
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

nodelet runs Kubernetes manifests of `kind: Pod` (`apiVersion: v1`), written in YAML or JSON: one or more
documents in a file, or a `List` or `PodList`. YAML is read as Kubernetes' tools read it: `0644` is octal, `yes` and `on`
are true, whatever is in quotes is text, and a key that is written twice is an error.

Manifests are strict. An unknown field, a value of the wrong type, or a field that can't be honoured gets the manifest
rejected with a verdict that names file, line, column and field; `nodelet check FILE` says beforehand exactly what the agent
would say. Fields that are left out get Kubernetes' defaults.

A static pod's name gets the node's name as suffix, and the pod can't refer to objects of an API server: no Secrets, ConfigMaps,
ServiceAccounts, PersistentVolumeClaims or ResourceClaims.

| | meaning |
|---|---|
| yes | honoured as Kubernetes does |
| differs | honoured, with the difference that the note tells |
| ignored | known and harmless to ignore; reported by `check` and `status` |
| no | a manifest that sets it is rejected |

What is below a field marked \"no\" or \"ignored\" is not listed: it shares its fate. The values of fields about
scheduling, readiness gates and resizing are checked although they are ignored: a manifest with a wrong value is rejected.

## Limits

The kubelet has none of these limits but the first one, which is 10 MiB there. They lie far above what the pods of one node need,
and keep a wrong or hostile manifest from taking the agent's memory or time. What exceeds one is rejected with a verdict that names
the limit; last good revisions go on running.

| what | at most |
|---|---|
| text of a file, of all files of the directory together, or of the answer of a URL | 4 MiB |
| values in a file (scalars, lists and mappings, with aliases followed) | 50,000 |
| documents of a source, items of lists counted as documents | 500 |
| memory that the pods of a source take (a usual pod takes about 20 KiB) | 16 MiB |
| entries of the directory; with more, nothing of it is read | 1,000 |
| `containers` and `initContainers` of a pod, each | 100 |
| `volumes` of a pod | 250 |
| an argument, or an environment variable with its name, after `$(VAR)` expansion (the kernel's limit) | 128 KiB |
| command, arguments and environment of a container together, after `$(VAR)` expansion | 1 MiB |
| a `subPathExpr` after expansion | 4 KiB |
| `NAMESPACE_NAME-NODE_UID`, the name of the pod's log directory | 255 bytes |
| problems that are shown of a document, and of a source | 100, 200 |

Of a directory that exceeds a limit as a whole, files are read in the order of their names until there is no room.
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
    rows.sort_by(|a, b| a.path.cmp(&b.path));
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
