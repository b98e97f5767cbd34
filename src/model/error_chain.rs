//! The text of an error with its causes.

/// An error with its causes, as messages show it: `a: b: c`. A cause that the text of its error ends
/// with is not repeated.
#[must_use]
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let told = error.to_string();
        if !text.ends_with(&told) {
            text.push_str(": ");
            text.push_str(&told);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::error_chain;
    use thiserror::Error;

    #[derive(Debug, Error)]
    #[error("no space left")]
    struct Full;
    #[derive(Debug, Error)]
    #[error("cannot write a: {0}")]
    struct Telling(#[source] Full);
    #[derive(Debug, Error)]
    #[error("cannot prepare")]
    struct Silent(#[source] Telling);

    #[test]
    fn every_cause_is_named_once() {
        assert_eq!(
            error_chain(&Silent(Telling(Full))),
            "cannot prepare: cannot write a: no space left"
        );
    }
}
