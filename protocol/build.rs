//! Generates the stream's messages, client and server from the .proto file. It uses pure Rust, so that no protoc is
//! needed.

const PROTO: &str = "proto/agent.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    // Without the transport the client gets no `connect` to an address, which would collide with the service's method
    // of this name.
    tonic_prost_build::configure().build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
