//! Identifiers. Newtypes, so that a sandbox id is never passed where a container id belongs. Clones
//! share their text: the same id stands in many places of the memory.

use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

string_id! {
    /// `metadata.uid` of a pod: 32 lowercase hex digits for static pods, unless the manifest gives
    /// one.
    PodUid
}
string_id! {
    /// A sandbox id as the runtime gave it.
    SandboxId
}
string_id! {
    /// A container id as the runtime gave it, without the `containerd://` prefix.
    ContainerId
}

impl ContainerId {
    /// Whether a directory with this name is the cgroup of the container: `<id>`,
    /// `cri-containerd-<id>.scope`, `crio-<id>.scope`.
    #[must_use]
    pub fn has_cgroup(&self, directory: &str) -> bool {
        let name = directory.strip_suffix(".scope").unwrap_or(directory);
        name.strip_suffix(self.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('-'))
    }
}

/// A pod's full name. For static pods the name carries the node's name as suffix already.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodKey {
    /// `metadata.namespace`, never empty.
    pub namespace: Arc<str>,
    /// `metadata.name`, never empty.
    pub name: Arc<str>,
}

impl PodKey {
    /// The key of `namespace`/`name`.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

/// `namespace/name`, the form that people type.
impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
