//! The KubeletConfiguration that is in effect, as one document: what was set and is acted on, and the
//! defaults of everything else.

use super::{GivenFlag, fields::KUBELET, tree::Tree};
use crate::{
    document::{Field, Support, Type},
    model::{CollectOrdered as _, format_duration, parse_duration, without_secrets},
};
use serde_json::{Map, Value as Json};

/// Its values may be tokens.
const SECRET: &str = "staticPodURLHeader";
const MASK: &str = "<masked>";

/// The flags that were given, `name=value`, a line for each. Secrets are masked.
#[must_use]
pub fn given_flags(flags: &[GivenFlag]) -> String {
    let lines = flags.iter().flat_map(|given| {
        let name = given.flag.name;
        given.values.iter().map(move |value| match name {
            "manifest-url-header" => format!("{name}={MASK}\n"),
            "manifest-url" => format!("{name}={}\n", without_secrets(value)),
            _ => format!("{name}={value}\n"),
        })
    });
    lines.collect()
}

/// `{"kind": "KubeletConfiguration", ...}`
pub(super) fn effective(written: &Tree) -> Json {
    let mut all = object(KUBELET, Some(written));
    all.insert("apiVersion".to_owned(), super::assemble::KUBELET_KIND.0.into());
    all.insert("kind".to_owned(), super::assemble::KUBELET_KIND.1.into());
    if let Some(Json::String(url)) = all.get_mut("staticPodURL") {
        *url = without_secrets(url);
    }
    if let Some(headers) = all.get_mut(SECRET).and_then(Json::as_object_mut) {
        headers.values_mut().for_each(|values| *values = [MASK].into_iter().collect());
    }
    Json::Object(all)
}

fn object(fields: &[Field], written: Option<&Tree>) -> Map<String, Json> {
    let acted_on =
        fields.iter().filter(|field| matches!(field.support, Support::Yes | Support::Differs));
    let value = |field: &Field| {
        let written = written.and_then(|tree| tree.get(field.name));
        let value = match (field.ty, written) {
            (Type::Object(fields), written) => {
                Some(object(fields, written)).filter(|inner| !inner.is_empty()).map(Json::Object)
            }
            (Type::Duration, Some(Tree::Leaf(_, Json::String(text)))) => Some(duration(text)),
            (_, Some(tree)) => Some(json(tree)),
            (ty, None) => default_of(ty, field.setting?.default?),
        };
        Some((field.name.to_owned(), value?))
    };
    acted_on.filter_map(value).collect_ordered()
}

/// A default as a value; `None` where the table has words for it.
fn default_of(ty: Type, text: &str) -> Option<Json> {
    match ty {
        Type::Bool => text.parse::<bool>().ok().map(Json::from),
        Type::Int32 | Type::Int64 => text.parse::<i64>().ok().map(Json::from),
        Type::Duration => Some(duration(text)),
        Type::String | Type::Quantity | Type::Time | Type::IntOrString => {
            (!text.contains(' ')).then(|| text.into())
        }
        Type::Float | Type::List(_) | Type::Map(_) | Type::Object(_) | Type::Any => None,
    }
}

/// As Go writes it: `1m0s`.
fn duration(text: &str) -> Json {
    parse_duration(text).map_or(text.into(), |duration| format_duration(duration).into())
}

fn json(tree: &Tree) -> Json {
    match tree {
        Tree::Leaf(_, value) => value.clone(),
        Tree::List(_, items) => items.iter().map(json).collect(),
        Tree::Object(_, map) => {
            let fields = map.iter().map(|(name, tree)| (name.clone(), json(tree)));
            Json::Object(fields.collect_ordered())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::parse_and_validate;
    use super::{GivenFlag, given_flags};
    use serde_json::json;

    #[test]
    fn flags_are_shown_without_secrets() {
        let given = |name: &str, value: &str| {
            let flag = crate::config::flags().iter().find(|flag| flag.name == name).unwrap();
            GivenFlag { flag, values: vec![value.to_owned()] }
        };
        let flags = [
            given("manifest-url", "https://jane:secret@example.com/pods?token=secret"),
            given("manifest-url-header", "Authorization:secret"),
            given("root-dir", "/var/lib/kubelet"),
        ];
        assert_eq!(
            given_flags(&flags),
            "manifest-url=https://example.com/pods\nmanifest-url-header=<masked>\n\
             root-dir=/var/lib/kubelet\n"
        );
    }

    #[test]
    fn defaults_are_filled_in_and_secrets_are_masked() {
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
            maxPods: 20\nstaticPodURL: https://a/b?token=secret\n\
            staticPodURLHeader: {Authorization: [Bearer secret]}\n\
            authentication: {webhook: {cacheTTL: 1m}}\nenableContentionProfiling: false\n";
        let all = parse_and_validate(text.as_bytes()).unwrap().effective;
        for (pointer, value) in [
            ("/kind", json!("KubeletConfiguration")),
            ("/apiVersion", json!("kubelet.config.k8s.io/v1beta1")),
            ("/maxPods", json!(20)),
            ("/port", json!(10250)),
            ("/syncFrequency", json!("1m0s")),
            ("/authentication/webhook/cacheTTL", json!("1m0s")),
            ("/authentication/webhook/enabled", json!(true)),
            ("/evictionHard/memory.available", json!("100Mi")),
            ("/staticPodURL", json!("https://a/b")),
            ("/staticPodURLHeader/Authorization", json!(["<masked>"])),
        ] {
            assert_eq!(all.pointer(pointer), Some(&value), "{pointer} in {all:#}");
        }
        assert!(all.get("enableContentionProfiling").is_none(), "it is not acted on");
    }
}
