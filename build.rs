//! Compiles the protocol definitions of `proto/` with a pure-Rust compiler: no protoc is needed.
//! Has the binary linked with packed relocations, and the release without unwind tables.

use std::{fs, path::Path};

/// Leaves the unwind tables out, a tenth of the binary. In a release a panic ends the process, and
/// there are no symbols that a backtrace could show. (`-C force-unwind-tables=no` keeps those of
/// all functions that once had something to clean up.)
const NO_UNWIND_TABLES: &str = "
SECTIONS {
  /DISCARD/ : { *(.eh_frame) *(.eh_frame_hdr) *(.gcc_except_table .gcc_except_table.*) }
}
INSERT AFTER .text;
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PROTOS: [&str; 5] = [
        "proto/cri_runtime_v1.proto",
        "proto/containerd_events.proto",
        "proto/containerd_tasks.proto",
        "proto/containerd_containers.proto",
        "proto/containerd_snapshots.proto",
    ];
    for proto in PROTOS {
        println!("cargo:rerun-if-changed={proto}");
    }
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    // Ordered maps: requests and golden texts come out the same every time.
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        .btree_map(".")
        .compile_fds(descriptors)?;
    #[expect(clippy::disallowed_methods, reason = "how cargo tells a build script")]
    let told = |name: &str| std::env::var(name);
    if told("CARGO_CFG_TARGET_OS")? == "linux" && told("CARGO_CFG_TARGET_ENV")? == "gnu" {
        // Half a MiB that is read at every start, and so resident, comes down to some KiB. glibc
        // understands them since 2.36.
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
        if told("PROFILE")? == "release" {
            let script = Path::new(&told("OUT_DIR")?).join("no-unwind-tables.ld");
            fs::write(&script, NO_UNWIND_TABLES)?;
            println!("cargo:rustc-link-arg-bins=-Wl,-T,{}", script.display());
        }
    }
    Ok(())
}
