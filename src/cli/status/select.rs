//! Finds the pod that an argument names: `web`, `web-node1`, `shop/web`, `-n shop web`.

use crate::{
    cli::args::UsageError,
    model::{Order as _, PodKey},
};
use thiserror::Error;

/// A pod as it was named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

/// Why an argument names no pod.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum SelectError {
    #[error("no pod {wanted}{}", others(.known))]
    NotFound { wanted: String, known: Vec<PodKey> },
    #[error("{wanted} matches more than one pod: {}. Use a full name", joined(.found))]
    Ambiguous { wanted: String, found: Vec<PodKey> },
}

fn others(keys: &[PodKey]) -> String {
    match keys {
        [] => ": there are no pods".to_owned(),
        keys if keys.len() <= 8 => format!("; there are {}", joined(keys)),
        keys => format!("; there are {} others, see nodelet status", keys.len()),
    }
}

fn joined(keys: &[PodKey]) -> String {
    keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Wanted {
    /// Reads POD and `--namespace`.
    pub(crate) fn new(pod: &str, namespace: Option<&str>) -> Result<Self, UsageError> {
        let pod = pod.strip_prefix("pod/").or(pod.strip_prefix("pods/")).unwrap_or(pod);
        let (in_name, name) = match pod.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, pod),
        };
        if name.is_empty() || name.contains('/') || in_name == Some("") {
            return Err(UsageError::NotAPod(pod.to_owned()));
        }
        if let (Some(in_name), Some(in_flag)) = (in_name, namespace)
            && in_name != in_flag
        {
            return Err(UsageError::TwoNamespaces {
                pod: pod.to_owned(),
                in_name: in_name.to_owned(),
                in_flag: in_flag.to_owned(),
            });
        }
        let namespace = in_name.or(namespace).map(str::to_owned);
        Ok(Self { namespace, name: name.to_owned() })
    }

    /// Returns the pod that the argument names. The name as written takes precedence over the name
    /// with the node's name appended.
    pub(crate) fn select<'a>(
        &self,
        node_name: &str,
        pods: impl IntoIterator<Item = &'a PodKey>,
    ) -> Result<&'a PodKey, SelectError> {
        let mut pods: Vec<&PodKey> = pods.into_iter().collect();
        pods.order();
        pods.dedup();
        let suffixed = format!("{}-{node_name}", self.name);
        for name in [self.name.as_str(), &suffixed] {
            let found: Vec<&PodKey> = pods
                .iter()
                .copied()
                .filter(|key| *key.name == *name)
                .filter(|key| self.namespace.as_deref().is_none_or(|ns| *key.namespace == *ns))
                .collect();
            match found.as_slice() {
                [] => {}
                [one] => return Ok(one),
                several => {
                    return Err(SelectError::Ambiguous {
                        wanted: self.to_string(),
                        found: several.iter().copied().cloned().collect(),
                    });
                }
            }
        }
        let known = pods.into_iter().cloned().collect();
        Err(SelectError::NotFound { wanted: self.to_string(), known })
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods() -> Vec<PodKey> {
        ["default/web-n1", "shop/web-n1", "shop/db-n1", "default/web-n1-n1"]
            .map(|key| key.split_once('/').unwrap())
            .map(|(namespace, name)| PodKey::new(namespace, name))
            .to_vec()
    }

    #[test]
    fn finds_the_pod_that_is_meant() {
        for (pod, namespace, found) in [
            ("db", None, "shop/db-n1"),
            ("db-n1", None, "shop/db-n1"),
            ("pod/db", None, "shop/db-n1"),
            ("shop/web", None, "shop/web-n1"),
            ("web", Some("default"), "default/web-n1"),
            ("shop/web", Some("shop"), "shop/web-n1"),
            ("default/web-n1", None, "default/web-n1"),
            ("web-n1-n1", None, "default/web-n1-n1"),
        ] {
            let pods = pods();
            let key = Wanted::new(pod, namespace).unwrap().select("n1", &pods).cloned();
            assert_eq!(key.unwrap().to_string(), found, "{pod} {namespace:?}");
        }
    }

    #[test]
    fn says_what_is_unclear() {
        let pods = pods();
        let said = |pod, namespace| match Wanted::new(pod, namespace) {
            Ok(wanted) => wanted.select("n1", &pods).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert_eq!(
            said("web", None),
            "web matches more than one pod: default/web-n1, shop/web-n1. Use a full name"
        );
        assert_eq!(
            said("mail", Some("shop")),
            "no pod shop/mail; there are default/web-n1, default/web-n1-n1, shop/db-n1, shop/web-n1"
        );
        assert_eq!(
            said("a/b/c", None),
            "\"a/b/c\" is not the name of a pod: expected NAME or NAMESPACE/NAME"
        );
        assert_eq!(
            said("a/b", Some("c")),
            "\"a/b\" has the namespace \"a\", but --namespace is \"c\""
        );
    }
}
