//! `$(VAR)` in commands, arguments, values and sub-paths.

/// Replaces each `$(NAME)` by what `lookup` gives. `None` leaves the reference as it is written;
/// `$$` is a literal `$`; a `$` before anything else, and a `$(` that never ends, stay.
pub fn expand(text: &str, mut lookup: impl FnMut(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(&value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(text: &str) -> String {
        expand(text, |name| match name {
            "A" => Some("1".to_owned()),
            "B" => Some("$(A)".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        })
    }

    #[test]
    fn follows_the_kubelet() {
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$(B)", "$(A)"),
            ("$(NONE)", "$(NONE)"),
            ("$(EMPTY)|", "|"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$$$$", "$$"),
            ("$A", "$A"),
            ("$", "$"),
            ("$(", "$("),
            ("$(A", "$(A"),
            ("$()", "$()"),
            ("$(A)$(", "1$("),
            ("é$(A)é", "é1é"),
        ] {
            assert_eq!(with(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn leaves_text_without_dollars_alone(text in "[^$]*") {
            prop_assert_eq!(with(&text), text);
        }

        #[test]
        fn never_panics(text in any::<String>()) {
            with(&text);
        }
    }
}
