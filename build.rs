//! Compiles the protocol definitions of `proto/` with a pure-Rust compiler: no protoc is needed.
//! Has the binary linked with packed relocations.

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
    // Half a MiB that is read at every start, and so resident, comes down to some KiB. glibc
    // understands them since 2.36.
    #[expect(clippy::disallowed_methods, reason = "how cargo tells a build script")]
    let target = |what: &str| std::env::var(format!("CARGO_CFG_TARGET_{what}"));
    if target("OS")? == "linux" && target("ENV")? == "gnu" {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    Ok(())
}
