//! Figures for docs/performance.md that tests measure on their way. No test fails by one.

use super::say_loudly;
use std::{fs, path::Path, time::Duration};

/// A table of docs/performance.md.
#[derive(Clone, Copy, Debug)]
pub enum Table {
    /// In a cluster, when things go wrong.
    Cluster,
    /// In whole machines, which are emulated.
    Machine,
}

/// Prints how long something took, and keeps it for `make bench-doc`.
pub fn figure(table: Table, what: &str, took: Duration) {
    let took = format!("{:.2} s", took.as_secs_f64());
    let dir = match table {
        Table::Cluster => "cluster",
        Table::Machine => "machine",
    };
    say_loudly(&format!("{dir}: {what}: {took}"));
    // Beside CARGO_TARGET_TMPDIR, which is TARGET/tmp.
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("figures").join(dir);
    fs::create_dir_all(&dir).unwrap();
    let file = what.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    fs::write(dir.join(file), format!("| {what} | {took} |\n")).unwrap();
}
