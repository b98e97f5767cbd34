//! `imagePullCredentialsVerificationPolicy`: whose access to an image on the node is verified.

use crate::podspec::image_name::untagged;
use thiserror::Error;

/// Which images that are present a pod may use only with credentials that have pulled them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VerificationPolicy {
    /// None: every pod may use every image that is present.
    NeverVerify,
    /// Those that the agent has pulled. What other programs have brought is for every pod.
    #[default]
    NeverVerifyPreloadedImages,
    /// All but those of the list.
    NeverVerifyAllowlistedImages(Vec<AllowedImages>),
    /// All.
    AlwaysVerify,
}

/// An item of `preloadedImagesVerificationAllowlist`: the name of an image without its tag, or the
/// beginning of one, which ends with `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedImages(String);

/// What is wrong with an item of the list; `Display` goes on after the item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AllowedImagesError {
    /// Spaces around it.
    #[error("must not begin or end with a space")]
    Spaces,
    /// A `*` that is not the end after a `/`.
    #[error("may have a * only at its end, after a /")]
    Wildcard,
    /// `/*` alone.
    #[error("must begin with the name of a registry")]
    NoRegistry,
    /// It is neither a name nor the beginning of one.
    #[error("must be the name of an image, or the beginning of names with /* at its end")]
    Name,
    /// A name with a tag or a digest.
    #[error("must have neither a tag nor a digest")]
    Tag,
}

impl AllowedImages {
    /// Reads an item of the list, with the rules of the kubelet.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, AllowedImagesError> {
        if text.trim() != text {
            return Err(AllowedImagesError::Spaces);
        }
        let beginning = text.strip_suffix('*').filter(|beginning| beginning.ends_with('/'));
        if beginning.unwrap_or(text).contains('*') {
            return Err(AllowedImagesError::Wildcard);
        }
        match beginning {
            Some("/") => Err(AllowedImagesError::NoRegistry),
            Some(beginning) => Ok(Self(beginning.to_owned())),
            None => match untagged(text) {
                Ok(name) if name == text => Ok(Self(text.to_owned())),
                Ok(_) => Err(AllowedImagesError::Tag),
                Err(_) => Err(AllowedImagesError::Name),
            },
        }
    }

    /// `name` has no tag.
    fn includes(&self, name: &str) -> bool {
        if self.0.ends_with('/') { name.starts_with(&self.0) } else { name == self.0 }
    }
}

impl VerificationPolicy {
    /// Whether a pod needs credentials for an image as its manifest has it. `pulled` tells whether
    /// the agent has pulled it.
    pub(super) fn verifies(&self, image: &str, pulled: bool) -> bool {
        match self {
            Self::NeverVerify => false,
            Self::NeverVerifyPreloadedImages => pulled,
            Self::NeverVerifyAllowlistedImages(list) => {
                let name = untagged(image).unwrap_or(image);
                !list.iter().any(|allowed| allowed.includes(name))
            }
            Self::AlwaysVerify => true,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_policy_decides_by_name_and_origin() {
        let list = ["r.io/team/*", "busybox", "r.io/app"].map(AllowedImages::parse);
        let list = list.into_iter().map(Result::unwrap).collect();
        let listed = VerificationPolicy::NeverVerifyAllowlistedImages(list);
        let digest = format!("busybox@sha256:{}", "0".repeat(64));
        use VerificationPolicy::{AlwaysVerify, NeverVerify, NeverVerifyPreloadedImages};
        for (policy, image, pulled, verifies) in [
            (&NeverVerify, "r.io/app:1", true, false),
            (&NeverVerifyPreloadedImages, "r.io/app:1", true, true),
            (&NeverVerifyPreloadedImages, "r.io/app:1", false, false),
            (&AlwaysVerify, "r.io/app:1", false, true),
            (&listed, "r.io/app:1", true, false),
            (&listed, "r.io/application:1", true, true),
            (&listed, "r.io/team/a/b:1", false, false),
            (&listed, "r.io/teams/a", false, true),
            (&listed, "busybox:1", true, false),
            (&listed, &digest, true, false),
            (&listed, "docker.io/library/busybox:1", false, true),
        ] {
            assert_eq!(policy.verifies(image, pulled), verifies, "{policy:?} {image} {pulled}");
        }
    }

    #[test]
    fn items_of_the_list_are_names_or_beginnings() {
        use AllowedImagesError::{Name, NoRegistry, Spaces, Tag, Wildcard};
        for good in ["busybox", "r.io:5000/a", "r.io/*", "r.io/a/*"] {
            assert!(AllowedImages::parse(good).is_ok(), "{good}");
        }
        let digest = format!("r.io/a@sha256:{}", "0".repeat(64));
        for (bad, error) in [
            ("", Name),
            (" busybox", Spaces),
            ("r.io/* ", Spaces),
            ("*", Wildcard),
            ("r.io/a*", Wildcard),
            ("r.io/*/a", Wildcard),
            ("*.io/*", Wildcard),
            ("/*", NoRegistry),
            ("Busybox", Name),
            ("r.io/", Name),
            ("busybox:1", Tag),
            (&digest, Tag),
        ] {
            assert_eq!(AllowedImages::parse(bad), Err(error), "{bad}");
        }
    }
}
