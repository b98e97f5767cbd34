//! Compiles the protocol definitions of `proto/` with a pure-Rust compiler: no protoc is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PROTOS: [&str; 3] = [
        "proto/cri_runtime_v1.proto",
        "proto/containerd_events.proto",
        "proto/containerd_tasks.proto",
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
    Ok(())
}
