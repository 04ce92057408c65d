//! Generates the kubelet's gRPC types from our own .proto files, in pure Rust: no protoc is needed.

const PROTOS: [&str; 2] = ["proto/deviceplugin.proto", "proto/podresources.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for proto in PROTOS {
        println!("cargo:rerun-if-changed={proto}");
    }
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        .btree_map(".")
        .compile_fds(descriptors)?;
    Ok(())
}
