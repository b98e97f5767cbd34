//! The text format of Prometheus:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use jiff::Timestamp;
use std::fmt::{self, Write as _};

/// Its media type.
pub(crate) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a number of a family means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// Metrics of one name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
}

impl Family {
    /// All its lines; nothing when there are no samples.
    pub(crate) fn text(&self, tell: impl FnOnce(&mut Samples)) -> String {
        let mut samples = Samples { name: self.name, lines: String::new() };
        tell(&mut samples);
        if samples.lines.is_empty() {
            return samples.lines;
        }
        let Self { name, kind, help } = self;
        format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{}", samples.lines)
    }
}

/// The lines of one family.
pub(crate) struct Samples {
    name: &'static str,
    lines: String,
}

impl Samples {
    /// One sample. `labels` is what [`labels`] makes, or several of those with commas between.
    pub(crate) fn put(&mut self, labels: &str, value: f64, at: Option<Timestamp>) {
        self.lines.push_str(self.name);
        if !labels.is_empty() {
            self.lines.extend(["{", labels, "}"]);
        }
        // Writing to a string never fails.
        write!(self.lines, " {value}").ok();
        if let Some(at) = at {
            write!(self.lines, " {}", at.as_millisecond()).ok();
        }
        self.lines.push('\n');
    }
}

/// `name="value",...` with the values escaped.
pub(crate) fn labels<const N: usize>(pairs: [(&str, &str); N]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push(',');
        }
        text.extend([name, "=\""]);
        for c in value.chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                c => text.push(c),
            }
        }
        text.push('"');
    }
    text
}

/// A number of 64 bits as the format has it: one above 2^53 is rounded.
#[allow(clippy::cast_precision_loss, reason = "metrics are floating-point numbers")]
pub(crate) fn number(value: u64) -> f64 {
    value as f64
}

/// Unix time in seconds.
#[allow(clippy::cast_precision_loss, reason = "exact to a microsecond")]
pub(crate) fn unix(time: Timestamp) -> f64 {
    time.as_microsecond() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: Family = Family { name: "some_bytes", kind: Kind::Gauge, help: "Some bytes" };

    #[test]
    fn a_family_is_described_once() {
        let text = BYTES.text(|samples| {
            for (n, value) in [("1", 1), ("2", 1 << 40)] {
                samples.put(&labels([("n", n)]), number(value), None);
            }
        });
        assert_eq!(
            text,
            "# HELP some_bytes Some bytes\n# TYPE some_bytes gauge\n\
             some_bytes{n=\"1\"} 1\nsome_bytes{n=\"2\"} 1099511627776\n"
        );
        assert_eq!(BYTES.text(|_| {}), "");
    }

    #[test]
    fn values_of_labels_are_escaped() {
        assert_eq!(labels([("a", "x\\y\"z\n"), ("b", "")]), r#"a="x\\y\"z\n",b="""#);
        let mut samples = Samples { name: "m", lines: String::new() };
        samples.put("", 0.25, Some(Timestamp::from_millisecond(1500).unwrap_or_default()));
        assert_eq!(samples.lines, "m 0.25 1500\n");
    }
}
