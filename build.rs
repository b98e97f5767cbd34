//! Compiles the CRI definitions of `proto/` with a pure-Rust compiler: no protoc is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PROTOS: [&str; 1] = ["proto/cri_runtime_v1.proto"];
    for proto in PROTOS {
        println!("cargo:rerun-if-changed={proto}");
    }
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        .compile_fds(descriptors)?;
    Ok(())
}
