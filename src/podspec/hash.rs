//! The hashes by which a container is compared with its specification.

use super::Amounts;
use crate::model::k8s;
use std::fmt::Write as _;

/// The kubelet's container hash, lowercase hex without leading zeros: FNV-1a (32 bits) over what
/// Go prints for the bytes of `{"image":...,"name":...}`. Only the name and the image count.
#[must_use]
pub fn container_hash(container: &k8s::Container) -> String {
    let image = container.image.as_deref().unwrap_or_default();
    let json = format!("{{\"image\":{},\"name\":{}}}", go_json(image), go_json(&container.name));
    let mut text = "([]uint8)[".to_owned();
    for (i, byte) in json.bytes().enumerate() {
        let space = if i == 0 { "" } else { " " };
        write!(text, "{space}{byte}").unwrap_or_default();
    }
    text.push(']');
    format!("{:x}", fnv1a(text.as_bytes()))
}

/// A hash of what the crash back-off of a container belongs to: its image, and the resources that
/// it starts with. The kubelet takes the same fields. Here the same amount in other words is no
/// change.
#[must_use]
pub fn back_off_hash(
    container: &k8s::Container,
    resources: Option<&k8s::ResourceRequirements>,
) -> u32 {
    let mut text = container.image.clone().unwrap_or_default();
    let requests = Amounts::of(resources.and_then(|all| all.requests.as_ref()));
    let limits = Amounts::of(resources.and_then(|all| all.limits.as_ref()));
    for (list, amounts) in [("request", requests), ("limit", limits)] {
        for (name, amount) in amounts.iter() {
            write!(text, "\n{list} {name} {amount}").unwrap_or_default();
        }
    }
    fnv1a(text.as_bytes())
}

fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// A JSON string as Go's encoder writes it: `<`, `>`, `&` and the two line separators escaped too.
fn go_json(text: &str) -> String {
    let plain = serde_json::Value::from(text).to_string();
    let mut out = String::with_capacity(plain.len());
    for c in plain.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                write!(out, "\\u{:04x}", u32::from(c)).unwrap_or_default();
            }
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str, image: Option<&str>) -> k8s::Container {
        k8s::Container {
            name: name.to_owned(),
            image: image.map(str::to_owned),
            ..Default::default()
        }
    }

    #[test]
    fn agrees_with_the_kubelet() {
        let known = container("test_container", Some("foo/image:v1"));
        assert_eq!(container_hash(&known), "8e45cbd0");
    }

    #[test]
    fn only_name_and_image_count() {
        let one = container("a", Some("b"));
        let same = k8s::Container { command: Some(vec!["x".to_owned()]), ..one.clone() };
        assert_eq!(container_hash(&one), container_hash(&same));
        assert_ne!(container_hash(&one), container_hash(&container("a", Some("c"))));
        assert_ne!(container_hash(&one), container_hash(&container("b", Some("b"))));
        assert_ne!(container_hash(&one), container_hash(&container("a", None)));
    }

    #[test]
    fn the_back_off_belongs_to_image_and_resources() {
        let hash = |text: serde_json::Value| {
            let container: k8s::Container = serde_json::from_value(text).unwrap_or_default();
            back_off_hash(&container, container.resources.as_ref())
        };
        let of = |image: &str, list: &str, cpu: &str| {
            hash(
                serde_json::json!({"name": "a", "image": image, "resources": {list: {"cpu": cpu}}}),
            )
        };
        let one = of("b", "requests", "1");
        assert_eq!(one, of("b", "requests", "1000m"));
        for other in [of("c", "requests", "1"), of("b", "limits", "1"), of("b", "requests", "2")] {
            assert_ne!(one, other);
        }
        let bare = hash(serde_json::json!({"name": "a", "image": "b"}));
        let with_command = serde_json::json!({"name": "a", "image": "b", "command": ["x"]});
        assert_eq!(bare, hash(with_command));
        assert_ne!(bare, one);
    }

    #[test]
    fn escapes_as_go_does() {
        assert_eq!(go_json("a<b>&\u{2028}\""), r#""a\u003cb\u003e\u0026\u2028\"""#);
    }
}
