//! Compiles the protocol definitions of `proto/` with a pure-Rust compiler: no protoc is needed.
//! Has the binary linked for a fixed address, and the release by the scripts in `link/` and with
//! functions folded, where the linker can.

use std::{path::Path, process::Command};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PROTOS: [&str; 7] = [
        "proto/cri_runtime_v1.proto",
        "proto/containerd_events.proto",
        "proto/containerd_tasks.proto",
        "proto/containerd_task_service.proto",
        "proto/containerd_containers.proto",
        "proto/containerd_snapshots.proto",
        "proto/grpc_health.proto",
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
    let features = told("CARGO_CFG_TARGET_FEATURE")?;
    let is_static = features.split(',').any(|feature| feature == "crt-static");
    if told("CARGO_CFG_TARGET_OS")? == "linux" && told("CARGO_CFG_TARGET_ENV")? == "gnu" {
        // At a fixed address nothing has to be relocated. Otherwise each start writes a third of a
        // MiB of tables, which no other process shares and which cannot be read from the file again.
        // A static program is linked in another way.
        if !is_static {
            println!("cargo:rustc-link-arg-bins=-no-pie");
        }
        // lld, which rustc brings, and GNU ld understand these scripts; mold does not.
        if told("PROFILE")? == "release" {
            for script in ["no-unwind-tables.ld", "text-order.ld"] {
                let script = Path::new(&told("CARGO_MANIFEST_DIR")?).join("link").join(script);
                println!("cargo:rerun-if-changed={}", script.display());
                println!("cargo:rustc-link-arg-bins=-Wl,-T,{}", script.display());
            }
            // Flags of the caller may choose another linker.
            let may_differ =
                told("CARGO_ENCODED_RUSTFLAGS")?.contains("link") || told("RUSTC_LINKER").is_ok();
            let x86_64 = told("CARGO_CFG_TARGET_ARCH")? == "x86_64";
            if x86_64 && !may_differ && brings_lld(&told("RUSTC")?)? {
                // Functions whose code is the same for several types become one. GNU ld can't.
                println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
            }
        }
    }
    Ok(())
}

/// True when rustc has an lld of its own, with which it links for this target by default.
fn brings_lld(rustc: &str) -> std::io::Result<bool> {
    let sysroot = Command::new(rustc).args(["--print", "sysroot"]).output()?.stdout;
    let sysroot = String::from_utf8_lossy(&sysroot);
    let lld = "lib/rustlib/x86_64-unknown-linux-gnu/bin/gcc-ld/ld.lld";
    Ok(Path::new(sysroot.trim_end()).join(lld).exists())
}
