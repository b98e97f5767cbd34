//! What a request to the HTTPS API does to the node, in the terms of authorization: a verb on
//! subresources of `nodes`.
//!
//! The paths and subresources are the kubelet's. One thing is not: who wants to run something in a
//! pod needs `create`. The kubelet goes by the method of the request, so that for it a WebSocket,
//! which begins with a GET, needs only `get`.

use http::Method;

/// What has to be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    /// Empty for a method that stands for nothing, which only an administrator may use.
    pub(super) verb: &'static str,
    pub(super) subresources: Subresources,
}

/// On which subresources of the node the verb has to be allowed. They are asked for in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subresources {
    /// One of these is enough.
    Any(&'static [&'static str]),
    All(&'static [&'static str]),
}

impl Access {
    /// Of a request with this method and path. The path is taken as it was sent: the routes compare
    /// the same text.
    pub(super) fn of(method: &Method, path: &str) -> Self {
        let first = path.strip_prefix('/').unwrap_or(path).split('/').next().unwrap_or_default();
        let any: &[&str] = match first {
            // The page tells what both of them do.
            "ui" => {
                return Self {
                    verb: verb(first, method),
                    subresources: Subresources::All(&["pods", "stats"]),
                };
            }
            "stats" => &["stats"],
            "metrics" => &["metrics"],
            "logs" => &["log"],
            "checkpoint" => &["checkpoint"],
            "statusz" => &["statusz"],
            "flagz" => &["configz"],
            "pods" | "runningpods" => &["pods", "proxy"],
            "healthz" => &["healthz", "proxy"],
            "configz" => &["configz", "proxy"],
            _ => &["proxy"],
        };
        Self { verb: verb(first, method), subresources: Subresources::Any(any) }
    }
}

fn verb(first: &str, method: &Method) -> &'static str {
    match (first, method.as_str()) {
        ("exec" | "attach" | "run" | "portForward", _) | (_, "POST") => "create",
        (_, "GET") => "get",
        (_, "PUT") => "update",
        (_, "PATCH") => "patch",
        (_, "DELETE") => "delete",
        (_, _) => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_subresources() {
        let of = |path| Access::of(&Method::GET, path).subresources;
        for (path, expected) in [
            ("/stats/summary", &["stats"][..]),
            ("/metrics", &["metrics"]),
            ("/metrics/cadvisor", &["metrics"]),
            ("/logs/", &["log"]),
            ("/pods", &["pods", "proxy"]),
            ("/runningpods/", &["pods", "proxy"]),
            ("/healthz/ping", &["healthz", "proxy"]),
            ("/configz", &["configz", "proxy"]),
            ("/flagz", &["configz"]),
            ("/statusz", &["statusz"]),
            ("/containerLogs/a/b/c", &["proxy"]),
            ("/podsecrets", &["proxy"]),
            ("/", &["proxy"]),
            ("", &["proxy"]),
            ("//pods", &["proxy"]),
            ("/%70ods", &["proxy"]),
        ] {
            assert_eq!(of(path), Subresources::Any(expected), "{path}");
        }
        for path in ["/ui", "/ui/"] {
            assert_eq!(of(path), Subresources::All(&["pods", "stats"]), "{path}");
        }
    }

    #[test]
    fn whoever_runs_something_creates() {
        let of = |method: Method, path| Access::of(&method, path).verb;
        for path in ["/exec/a/b/c", "/attach/a/b/c", "/portForward/a/b", "/run/a/b/c"] {
            assert_eq!(of(Method::GET, path), "create", "{path}");
            assert_eq!(of(Method::POST, path), "create", "{path}");
        }
        assert_eq!(of(Method::GET, "/pods"), "get");
        assert_eq!(of(Method::DELETE, "/metrics/slis"), "delete");
        assert_eq!(of(Method::PUT, "/debug/flags/v"), "update");
        assert_eq!(of(Method::HEAD, "/pods"), "");
    }
}
