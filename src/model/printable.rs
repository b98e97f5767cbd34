//! Text from outside, made safe to print: on a terminal, where escape sequences are commands, and
//! in a log, where a line break would begin a line of somebody else's.

use std::{borrow::Cow, fmt::Write as _};

/// The text on one line, with every character that could change how other text is shown written as
/// `\u001b`: control characters, line and paragraph separators, and those that turn the direction
/// of writing. The escapes are JSON's, so JSON stays the same JSON.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, is_disruptive)
}

/// As [`printable`], with line feeds and tabs kept: for text whose lines are its own.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_disruptive(c) && !matches!(c, '\n' | '\t'))
}

fn escaped(text: &str, must_be_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&must_be_escaped) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' if must_be_escaped(c) => out.push_str("\\n"),
            '\t' if must_be_escaped(c) => out.push_str("\\t"),
            c if must_be_escaped(c) => {
                // Writing to a String can't fail.
                let written = write!(out, "\\u{:04x}", u32::from(c));
                debug_assert!(written.is_ok());
            }
            c => out.push(c),
        }
    }
    out.into()
}

fn is_disruptive(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
                | '\u{feff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_characters_become_visible() {
        for (text, one_line, lines) in [
            ("plain übel 日本 👍", "plain übel 日本 👍", "plain übel 日本 👍"),
            ("\x1b[31mred\x1b[0m", "\\u001b[31mred\\u001b[0m", "\\u001b[31mred\\u001b[0m"),
            ("a\nb\tc", "a\\nb\\tc", "a\nb\tc"),
            (
                "a\rb\u{7f}\u{9b}2J\0",
                "a\\u000db\\u007f\\u009b2J\\u0000",
                "a\\u000db\\u007f\\u009b2J\\u0000",
            ),
            ("\u{202e}txt\u{2066}\u{2028}", "\\u202etxt\\u2066\\u2028", "\\u202etxt\\u2066\\u2028"),
        ] {
            assert_eq!(printable(text), one_line, "{text:?}");
            assert_eq!(printable_lines(text), lines, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_disruptive_is_left(text in any::<String>()) {
            prop_assert!(!printable(&text).contains(is_disruptive));
        }

        #[test]
        fn json_stays_the_same_json(text in any::<String>()) {
            let json = serde_json::to_string(&text).unwrap();
            let read: String = serde_json::from_str(&printable(&json)).unwrap();
            prop_assert_eq!(read, text);
        }
    }
}
