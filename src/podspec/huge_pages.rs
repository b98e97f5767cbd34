//! emptyDirs on huge pages: which pages, and how many of them.
//!
//! <https://kubernetes.io/docs/tasks/manage-hugepages/scheduling-hugepages/>

use super::HugepageLimit;
use crate::model::Quantity;
use thiserror::Error;

/// Why an emptyDir can't lie on the huge pages that its medium names.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HugePagesError {
    /// Not `HugePages` or `HugePages-` with a size.
    #[error("unknown storage medium {0:?}")]
    Medium(String),
    /// No limit gives the pod pages of that size.
    #[error("no container has a limit for such pages, as in `hugepages-2Mi: 16Mi`")]
    NotRequested,
    /// The medium names no size, and the pod may use several.
    #[error(
        "must name one of the page sizes that containers have limits for, as in `HugePages-2Mi`"
    )]
    SeveralSizes,
}

/// Whether an emptyDir with this medium lies on huge pages.
#[must_use]
pub fn is_on_huge_pages(medium: &str) -> bool {
    medium == "HugePages" || medium.starts_with("HugePages-")
}

/// The pages of an emptyDir with a medium for which [`is_on_huge_pages`] is true: their size, and
/// the most that the pod may use of them. `limits` are the [`hugepage_limits`] of the pod.
///
/// [`hugepage_limits`]: super::hugepage_limits
///
/// # Errors
/// When the pod has no such pages, or the medium leaves open which.
pub fn huge_pages(limits: &[HugepageLimit], medium: &str) -> Result<HugepageLimit, HugePagesError> {
    let mut limits: Vec<_> = limits.iter().filter(|limit| limit.limit_bytes > 0).collect();
    if let Some(size) = medium.strip_prefix("HugePages-") {
        let size = Quantity::parse(size).ok().and_then(|size| u64::try_from(size.value()).ok());
        let size = size.ok_or_else(|| HugePagesError::Medium(medium.to_owned()))?;
        limits.retain(|limit| limit.page_size_bytes == size);
    }
    match limits.as_slice() {
        [limit] => Ok(**limit),
        [] => Err(HugePagesError::NotRequested),
        _ => Err(HugePagesError::SeveralSizes),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{hugepage_limits, pod_limits};
    use super::*;
    use serde_json::json;

    fn pages(limits: &serde_json::Value, medium: &str) -> Result<(u64, u64), HugePagesError> {
        let container = json!({"name": "c", "resources": {"limits": limits}});
        let spec = serde_json::from_value(json!({"containers": [container]})).unwrap();
        huge_pages(&hugepage_limits(&pod_limits(&spec)), medium)
            .map(|limit| (limit.page_size_bytes, limit.limit_bytes))
    }

    #[test]
    fn the_medium_names_the_pages_or_leaves_no_choice() {
        let one = json!({"memory": "1Gi", "hugepages-2Mi": "16Mi"});
        assert_eq!(pages(&one, "HugePages"), Ok((2 << 20, 16 << 20)));
        assert_eq!(pages(&one, "HugePages-2048Ki"), Ok((2 << 20, 16 << 20)));
        assert_eq!(pages(&one, "HugePages-1Gi"), Err(HugePagesError::NotRequested));
        let two = json!({"hugepages-2Mi": "16Mi", "hugepages-1Gi": "2Gi"});
        assert_eq!(pages(&two, "HugePages"), Err(HugePagesError::SeveralSizes));
        assert_eq!(pages(&two, "HugePages-1Gi"), Ok((1 << 30, 2 << 30)));
        assert_eq!(
            pages(&json!({"memory": "1Gi"}), "HugePages"),
            Err(HugePagesError::NotRequested)
        );
        assert!(matches!(pages(&one, "HugePages-big"), Err(HugePagesError::Medium(_))));
    }
}
