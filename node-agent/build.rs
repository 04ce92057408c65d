//! Generates the kubelet's gRPC types from our own .proto files, in pure Rust: no protoc is needed. Links the program small.

const PROTOS: [&str; 2] = ["proto/deviceplugin.proto", "proto/podresources.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A megabyte less that every node has to read at the agent's start. glibc knows the format since 2.36 (DT_RELR), and zig's
    // linker, which tries unoptimised programs for other machines, does not.
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|is| is == value);
    if is("CARGO_CFG_TARGET_ENV", "gnu") && is("PROFILE", "release") {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
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
