//! Generates the stream's messages from the .proto file. It uses pure Rust, so that no protoc is needed.

const PROTO: &str = "proto/agent.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
