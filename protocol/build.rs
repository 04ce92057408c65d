//! Generates the stream's messages, client and server from our .proto file, in pure Rust: no protoc is needed.

const PROTO: &str = "proto/agent.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    // Without the client's own `connect` to an address: the service has a method of this name.
    tonic_prost_build::configure().build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
