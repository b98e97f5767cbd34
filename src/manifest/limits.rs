//! How large manifests may be: what the agent keeps of them in memory is bounded, whatever they
//! say.
//!
//! The kubelet has none of these limits. They lie far above what the pods of one node need.

use crate::{
    document::Node,
    model::{Problem, k8s},
};

/// Most documents of one source, items of lists counted as documents. A node runs 110 pods by
/// default.
pub const MAX_DOCUMENTS: usize = 500;
/// Most memory that the documents of one source may take, in bytes, by [`memory_bytes`]. A usual
/// pod takes about 20 KiB.
pub const MAX_MEMORY_BYTES: usize = 16 << 20;
/// Most problems of one document that are kept.
const MAX_PROBLEMS: usize = 100;
/// Lists of a pod whose items take kilobytes of memory each, and their longest length.
const LONG_LISTS: [(&str, usize); 4] =
    [("containers", 100), ("initContainers", 100), ("ephemeralContainers", 100), ("volumes", 250)];

/// About how much memory a document takes, in bytes: the text that is kept of it, and its pod or
/// its problems.
#[must_use]
pub fn memory_bytes(as_written: &str, result: Result<&k8s::Pod, &[Problem]>) -> usize {
    match result {
        // The text is kept twice: as written, and in the pod.
        Ok(pod) => 2 * as_written.len() + pod_bytes(pod),
        Err(problems) => problems
            .iter()
            .map(|problem| size_of::<Problem>() + problem.path.len() + problem.message.len())
            .sum(),
    }
}

/// What the structures of a pod take without the text in them.
fn pod_bytes(pod: &k8s::Pod) -> usize {
    let spec = pod.spec.as_ref();
    let lists = spec.map(|spec| [Some(&spec.containers), spec.init_containers.as_ref()]);
    let containers = lists.into_iter().flatten().flatten().flatten();
    let in_containers: usize = containers
        .map(|container| {
            size_of::<k8s::Container>()
                + size_of::<k8s::EnvVar>() * container.env.as_ref().map_or(0, Vec::len)
                + size_of::<k8s::VolumeMount>()
                    * container.volume_mounts.as_ref().map_or(0, Vec::len)
                + size_of::<k8s::ContainerPort>() * container.ports.as_ref().map_or(0, Vec::len)
                + size_of::<String>() * container.args.as_ref().map_or(0, Vec::len)
        })
        .sum();
    let volumes = spec.and_then(|spec| spec.volumes.as_ref()).map_or(0, Vec::len);
    size_of::<k8s::Pod>() + in_containers + size_of::<k8s::Volume>() * volumes
}

/// Finds lists that are so long that the pod is not even decoded.
pub(super) fn long_lists(root: &Node) -> Vec<Problem> {
    let spec = root.get("spec");
    let find = |(name, limit): (&str, usize)| {
        let list = spec?.get(name)?;
        let count = list.items().len();
        (count > limit).then(|| Problem {
            position: list.position,
            path: format!("spec.{name}"),
            message: format!("Too many: {count}: must have at most {limit} items"),
        })
    };
    LONG_LISTS.into_iter().filter_map(find).collect()
}

/// Keeps the first problems of a document and counts the others.
pub(super) fn shorten(problems: &mut Vec<Problem>) {
    if problems.len() > MAX_PROBLEMS {
        let others = problems.len() - MAX_PROBLEMS;
        problems.truncate(MAX_PROBLEMS);
        let last = problems.last().map(|last| last.position).unwrap_or_default();
        let message = format!("and at least {others} more problems");
        problems.push(Problem { position: last, path: String::new(), message });
    }
}
