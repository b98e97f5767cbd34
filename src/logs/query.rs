//! What a client wants of a log: the parameters of `/containerLogs`, as in `PodLogOptions` v1.

use super::{Stream, Wanted};
use jiff::Timestamp;
use std::time::Duration;
use thiserror::Error;

/// What is wanted of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Go on with what is written later, until the container has ended.
    pub follow: bool,
    /// Of the container's last run before the present one.
    pub previous: bool,
    /// Only the last lines.
    pub tail: Option<u64>,
    /// Which lines, and how they are printed.
    pub wanted: Wanted,
}

/// Why the parameters are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QueryError {
    /// A number or a time can't be read.
    #[error("{{\"message\": \"Unable to decode query.\"}}")]
    Undecodable,
    /// A value is out of its range, or two do not go together.
    #[error("{{\"message\": \"Invalid request.\"}}")]
    Invalid,
}

impl LogQuery {
    /// Reads the parameters of a query, percent-decoded. Other parameters are ignored, as by the
    /// kubelet.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub fn parse(pairs: &[(String, String)], now: Timestamp) -> Result<Self, QueryError> {
        let value = |name: &str| {
            let found = pairs.iter().find(|(found, _)| found == name);
            found.map(|(_, value)| value.as_str())
        };
        let switch = |name: &str| {
            value(name).is_some_and(|text| text != "0" && !text.eq_ignore_ascii_case("false"))
        };
        let number = |name: &str| -> Result<Option<i64>, QueryError> {
            let text = value(name).filter(|text| !text.is_empty());
            text.map(|text| text.parse().map_err(|_| QueryError::Undecodable)).transpose()
        };
        let (mut tail, since_seconds) = (number("tailLines")?, number("sinceSeconds")?);
        let limit = number("limitBytes")?;
        if let Some(text) = value("tail").filter(|text| *text != "all" && !text.is_empty()) {
            tail = Some(text.parse().map_err(|_| QueryError::Undecodable)?);
        }
        let since_time = value("sinceTime").filter(|text| !text.is_empty());
        let since_time: Option<Timestamp> =
            since_time.map(|text| text.parse().map_err(|_| QueryError::Undecodable)).transpose()?;
        let stream = match value("stream") {
            None | Some("" | "All") => None,
            Some("Stdout") => Some(Stream::Stdout),
            Some("Stderr") => Some(Stream::Stderr),
            Some(_) => return Err(QueryError::Invalid),
        };
        if tail.is_some_and(|tail| tail < 0 || stream.is_some())
            || limit.is_some_and(|limit| limit < 1)
            || since_seconds.is_some_and(|seconds| seconds < 1)
            || since_seconds.is_some() && since_time.is_some()
        {
            return Err(QueryError::Invalid);
        }
        let positive = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
        let before = positive(since_seconds)
            .map(|seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap_or(Timestamp::MIN));
        Ok(Self {
            follow: switch("follow"),
            previous: switch("previous"),
            tail: positive(tail),
            wanted: Wanted {
                since: since_time.or(before),
                timestamps: switch("timestamps"),
                limit: positive(limit),
                stream,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn parse(query: &str) -> Result<LogQuery, QueryError> {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let pairs: Vec<_> = pairs.map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
        LogQuery::parse(&pairs, "2026-11-20T10:00:00Z".parse().unwrap())
    }

    #[test]
    fn parameters_are_those_of_pod_log_options() {
        assert_eq!(parse("").unwrap(), LogQuery::default());
        let all = parse(
            "follow=true&previous&timestamps=1&tailLines=10&limitBytes=5&sinceSeconds=60&container=x",
        )
        .unwrap();
        assert!(all.follow && all.previous && all.wanted.timestamps);
        assert_eq!((all.tail, all.wanted.limit), (Some(10), Some(5)));
        assert_eq!(all.wanted.since, Some("2026-11-20T09:59:00Z".parse().unwrap()));
        let off = parse("follow=false&previous=0&timestamps=False&tail=all").unwrap();
        assert_eq!(off, LogQuery::default());
        assert_eq!(parse("tail=0").unwrap().tail, Some(0));
        let one = parse(
            "stream=Stderr&sinceTime=2026-11-20T09:00:00%2B01:00".replace("%2B", "+").as_str(),
        );
        let one = one.unwrap().wanted;
        assert_eq!(one.stream, Some(Stream::Stderr));
        assert_eq!(one.since, Some("2026-11-20T08:00:00Z".parse().unwrap()));
    }

    #[test]
    fn what_can_not_be_is_refused() {
        for query in ["tailLines=many", "limitBytes=1e3", "sinceTime=yesterday", "tail=x"] {
            assert_eq!(parse(query), Err(QueryError::Undecodable), "{query}");
        }
        for query in [
            "tailLines=-1",
            "limitBytes=0",
            "sinceSeconds=0",
            "sinceSeconds=5&sinceTime=2026-11-20T09:00:00Z",
            "stream=stdout",
            "stream=Stdout&tailLines=5",
        ] {
            assert_eq!(parse(query), Err(QueryError::Invalid), "{query}");
        }
        assert_eq!(QueryError::Invalid.to_string(), r#"{"message": "Invalid request."}"#);
    }
}
