//! What a node log query asks for: <https://kubernetes.io/docs/concepts/cluster-administration/system-logs/#log-query>.

use jiff::Timestamp;
use thiserror::Error;

const MOST_SERVICES: usize = 4;
const MOST_LINES: u32 = 100_000;
const LONGEST_NAME: usize = 255;

/// Logs of services, or one file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NodeLogQuery {
    pub(super) services: Vec<String>,
    pub(super) file: Option<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    lines: Option<u32>,
    pattern: Option<String>,
    boot: Option<i64>,
}

/// What is wrong with a query.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum NodeLogQueryError {
    #[error("{0}")]
    Undecodable(String),
    #[error("{0}")]
    Invalid(String),
}

impl NodeLogQuery {
    pub(super) fn parse(pairs: &[(String, String)]) -> Result<Self, NodeLogQueryError> {
        let mut query = Self::default();
        let mut files = Vec::new();
        for (name, value) in pairs {
            let undecodable = |expected: &str| {
                NodeLogQueryError::Undecodable(format!("{name}: {value:?} is not {expected}"))
            };
            let time = || value.parse().map_err(|_| undecodable("a time as of RFC 3339"));
            match name.as_str() {
                "query" if value.contains(['/', '\\']) => files.push(value.clone()),
                "query" => query.services.push(value.clone()),
                "sinceTime" => query.since = Some(time()?),
                "untilTime" => query.until = Some(time()?),
                "tailLines" => {
                    query.lines =
                        Some(value.parse().map_err(|_| undecodable("a number of lines"))?);
                }
                "pattern" => query.pattern = Some(value.clone()),
                "boot" => query.boot = Some(value.parse().map_err(|_| undecodable("a number"))?),
                _ => {}
            }
        }
        query.file = files.pop();
        query.check(!files.is_empty()).map(|()| query)
    }

    fn check(&self, more_files: bool) -> Result<(), NodeLogQueryError> {
        let options = [
            self.since.is_some(),
            self.until.is_some(),
            self.lines.is_some(),
            self.pattern.is_some(),
            self.boot.is_some(),
        ];
        let wrong = if more_files || self.file.is_some() && !self.services.is_empty() {
            "query: one file, or services: not both, and not several files".to_owned()
        } else if self.file.is_some() && options.contains(&true) {
            "a file is sent as it is: sinceTime, untilTime, tailLines, pattern and boot are for \
             services"
                .to_owned()
        } else if self.services.len() > MOST_SERVICES {
            format!("query: at most {MOST_SERVICES} services")
        } else if let Some(name) = self.services.iter().find(|name| !is_name(name)) {
            format!("query: {name:?} is no name of a service")
        } else if self.since.zip(self.until).is_some_and(|(since, until)| since > until) {
            "untilTime: it is before sinceTime".to_owned()
        } else if self.lines.is_some_and(|lines| lines > MOST_LINES) {
            format!("tailLines: at most {MOST_LINES}")
        } else if self.pattern.as_ref().is_some_and(|pattern| pattern.contains('\0')) {
            "pattern: a NUL can't be looked for".to_owned()
        } else if self.boot.is_some_and(|boot| boot > 0) {
            "boot: 0 is this boot, -1 the one before".to_owned()
        } else {
            return Ok(());
        };
        Err(NodeLogQueryError::Invalid(wrong))
    }

    /// What journalctl is told.
    pub(super) fn arguments(&self, services: &[&str]) -> Vec<String> {
        let fixed = ["--utc", "--no-pager", "--output=short-precise"];
        let mut arguments: Vec<String> = fixed.map(ToOwned::to_owned).to_vec();
        arguments.extend(services.iter().map(|service| format!("--unit={service}")));
        let second = |time: Timestamp| format!("@{}", time.as_second());
        arguments.extend(self.since.map(|time| format!("--since={}", second(time))));
        arguments.extend(self.until.map(|time| format!("--until={}", second(time))));
        arguments.extend(self.lines.map(|lines| format!("--lines={lines}")));
        arguments.extend(self.pattern.as_ref().map(|pattern| format!("--grep={pattern}")));
        arguments.extend(self.boot.map(|boot| format!("--boot={boot}")));
        arguments
    }
}

/// A unit's name, which has no pattern in it.
fn is_name(name: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || "-_.@:".contains(c);
    (1..=LONGEST_NAME).contains(&name.len())
        && name.chars().all(known)
        && !name.starts_with(['-', '.'])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn parse(text: &str) -> Result<NodeLogQuery, NodeLogQueryError> {
        let pairs: Vec<(String, String)> = text
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        NodeLogQuery::parse(&pairs)
    }

    #[test]
    fn options_are_journalctls() {
        let query = parse(
            "query=kubelet&query=containerd&sinceTime=2026-11-26T10:00:00Z&\
             untilTime=2026-11-26T11:00:00Z&tailLines=20&pattern=error.*x&boot=-1",
        );
        assert_eq!(
            query.unwrap().arguments(&["kubelet", "containerd"])[3..],
            [
                "--unit=kubelet",
                "--unit=containerd",
                "--since=@1795687200",
                "--until=@1795690800",
                "--lines=20",
                "--grep=error.*x",
                "--boot=-1"
            ]
        );
        assert_eq!(parse("query=/apt/history.log").unwrap().file.unwrap(), "/apt/history.log");
    }

    #[test]
    fn wrong_queries_are_refused() {
        for text in ["query=a&tailLines=x", "query=a&sinceTime=today", "query=a&boot=last"] {
            assert!(matches!(parse(text), Err(NodeLogQueryError::Undecodable(_))), "{text}");
        }
        for text in [
            "query=a&query=/b",
            "query=/a&query=/b",
            "query=/a&tailLines=1",
            "query=a&query=b&query=c&query=d&query=e",
            "query=",
            "query=-x",
            "query=..",
            "query=a b",
            "query=a*",
            "query=a&tailLines=100001",
            "query=a&boot=1",
            "query=a&pattern=\0",
            "query=a&sinceTime=2026-11-26T10:00:00Z&untilTime=2026-11-26T09:00:00Z",
        ] {
            assert!(matches!(parse(text), Err(NodeLogQueryError::Invalid(_))), "{text}");
        }
    }
}
