//! What a reboot takes away, also where the run directory lies on a disk that keeps it: the times in
//! there count from a boot that is over.

use super::{
    files,
    load::{CONDITIONS, EVICTIONS},
};
use std::{fs, io, path::Path};

/// Name of the file with the id of the boot in which the run directory was used last.
const BOOT_ID: &str = "boot-id";

/// Removes what another boot has left in the run directory. `boot_id`: as the kernel tells it.
pub(super) fn forget_other_boots(run: &Path, memory_dir: &Path, boot_id: &str) {
    let path = run.join(BOOT_ID);
    let last = fs::read_to_string(&path).unwrap_or_default();
    if boot_id.is_empty() || last == boot_id {
        return;
    }
    if !last.is_empty() {
        let files = files::json_files(memory_dir).into_iter();
        for path in files.chain([EVICTIONS, CONDITIONS].map(|name| run.join(name))) {
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(err) if err.kind() == io::ErrorKind::NotFound => {}
                Err(err) => {
                    tracing::warn!(%err, "cannot remove {path:?}, which is of another boot");
                }
            }
        }
    }
    // What could not be noted is noted at the next start, and nothing is removed until then.
    if let Err(err) = files::write_durably(&path, boot_id.as_bytes()) {
        tracing::warn!(%err, "cannot write {path:?}");
    }
}
