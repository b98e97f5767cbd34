//! `$(VAR)` in commands, arguments, values and sub-paths.

/// One piece of a text with references.
enum Piece<'t> {
    /// Text that stands for itself.
    Text(&'t str),
    /// `$(NAME)`: as it is written, and its name.
    Reference(&'t str, &'t str),
}

/// The pieces of a text. `$$` is a literal `$`; a `$` before anything else, and a `$(` that never
/// ends, stay.
fn pieces(text: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = text;
    // Searching for the end of every `$(` in a text without `)` would take quadratic time.
    let after_last_end = text.rfind(')').map_or(0, |at| text.len() - at);
    std::iter::from_fn(move || {
        let end = match rest.find('$') {
            None if rest.is_empty() => return None,
            None => rest.len(),
            Some(0) => {
                let name = rest.strip_prefix("$(").filter(|r| r.len() >= after_last_end);
                let name = name.filter(|_| after_last_end > 0).and_then(|r| r.split_once(')'));
                if let Some((name, after)) = name {
                    let written = &rest[..rest.len() - after.len()];
                    rest = after;
                    return Some(Piece::Reference(written, name));
                }
                let after = rest.strip_prefix("$$").unwrap_or(&rest[1..]);
                rest = after;
                return Some(Piece::Text("$"));
            }
            Some(at) => at,
        };
        let (piece, after) = rest.split_at(end);
        rest = after;
        Some(Piece::Text(piece))
    })
}

/// Replaces each `$(NAME)` by what `lookup` gives. `None` leaves the reference as it is written.
///
/// The result can be much longer than the text: check [`expanded_len`] first.
pub fn expand<'v>(text: &str, mut lookup: impl FnMut(&str) -> Option<&'v str>) -> String {
    let mut out = String::with_capacity(text.len());
    for piece in pieces(text) {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Reference(written, name) => out.push_str(lookup(name).unwrap_or(written)),
        }
    }
    out
}

/// The length in bytes of what [`expand`] would give, computed without making it. `lookup` gives
/// the length of a variable's value.
pub fn expanded_len(text: &str, mut lookup: impl FnMut(&str) -> Option<usize>) -> usize {
    let lengths = pieces(text).map(|piece| match piece {
        Piece::Text(text) => text.len(),
        Piece::Reference(written, name) => lookup(name).unwrap_or(written.len()),
    });
    lengths.fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(text: &str) -> String {
        expand(text, |name| match name {
            "A" => Some("1"),
            "B" => Some("$(A)"),
            "EMPTY" => Some(""),
            _ => None,
        })
    }

    fn length(text: &str) -> usize {
        expanded_len(text, |name| match name {
            "A" => Some(1),
            "B" => Some("$(A)".len()),
            "EMPTY" => Some(0),
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
            assert_eq!(length(text), expected.len(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn leaves_text_without_dollars_alone(text in "[^$]*") {
            prop_assert_eq!(with(&text), text);
        }

        #[test]
        fn length_is_known_before_expansion(text in "([$()AB]|EMPTY|\\PC)*") {
            prop_assert_eq!(length(&text), with(&text).len());
        }
    }
}
