//! What the API server counts.

/// One line of `apiserver_request_total`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestCount {
    /// As the API server calls it: `GET`, `LIST`, `WATCH`, `APPLY`, ...
    pub verb: String,
    /// `nodes`
    pub resource: String,
    /// `status`, or empty.
    pub subresource: String,
    /// `200`
    pub code: String,
    /// How many were answered. A watch counts when it ends.
    pub count: u64,
}

/// The counts in a page of metrics.
pub fn request_counts(page: &str) -> Vec<RequestCount> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("apiserver_request_total{"));
    let counts = lines.map(|line| {
        let (labels, count) = line.rsplit_once("} ").unwrap();
        let label = |name: &str| {
            let pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
            let value = pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next();
            value.unwrap_or_default().trim_matches('"').to_owned()
        };
        RequestCount {
            verb: label("verb"),
            resource: label("resource"),
            subresource: label("subresource"),
            code: label("code"),
            count: whole(count),
        }
    });
    counts.collect()
}

/// How many requests with this verb were answered for a resource, or `resource/subresource`.
pub fn sum(counts: &[RequestCount], verb: &str, resource: &str) -> u64 {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let matching = counts.iter().filter(|count| {
        count.verb == verb && count.resource == resource && count.subresource == subresource
    });
    matching.map(|count| count.count).sum()
}

/// A counter's value: large ones are written with an exponent.
fn whole(text: &str) -> u64 {
    if let Ok(count) = text.parse() {
        return count;
    }
    let (digits, exponent) = text.split_once("e+").unwrap_or((text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let exponent: usize = exponent.parse().unwrap();
    format!("{whole}{fraction:0<exponent$}").parse().unwrap()
}
