//! What is asked for explicitly and this host does not have, which is an error before anything
//! runs.

use super::{host::HostFacts, read::Reader};
use serde_json::Value as Json;

/// Path of the field that says who may use swap.
pub(super) const SWAP: &str = "memorySwap.swapBehavior";

/// Reports every such field.
pub(super) fn guards(r: &mut Reader<'_>, host: &HostFacts) {
    if let Some(place) = r.switched_on("failSwapOn").filter(|_| host.swap_on) {
        let must = "swap is on: turn it off, or set this to false";
        r.invalid(place, "failSwapOn", true, must);
    }
    if let Some(place) = r.switched_on("failCgroupV1").filter(|_| host.cgroup_v1) {
        let must = "this host uses cgroup v1: move it to cgroup v2, or set this to false";
        r.invalid(place, "failCgroupV1", true, must);
    }
    if r.bool("singleProcessOOMKill") == Some(false) && host.cgroup_v1 {
        let place = r.tree.get("singleProcessOOMKill").map_or(r.tree.place(), |tree| tree.place());
        let must = "this host uses cgroup v1, where an OOM kill always takes one process";
        r.invalid(place, "singleProcessOOMKill", false, must);
    }
    let limited = r.filled_text(SWAP).filter(|(text, _)| *text == "LimitedSwap" && host.cgroup_v1);
    if let Some((text, place)) = limited {
        let must = "this host uses cgroup v1: move it to cgroup v2, or use NoSwap";
        r.invalid(place, SWAP, Json::from(text), must);
    }
    if let Some(place) = r.switched_on("protectKernelDefaults") {
        for wrong in &host.kernel {
            let must = format!(
                "invalid kernel flag: {}, expected value: {}, actual value: {}",
                wrong.name, wrong.expected, wrong.actual
            );
            r.invalid(place, "protectKernelDefaults", true, &must);
        }
    }
}
