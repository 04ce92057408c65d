//! Generates the kubelet's gRPC types from our own .proto files in pure Rust, so that no protoc is needed, and links
//! the program small.

const PROTOS: [&str; 2] = ["proto/deviceplugin.proto", "proto/podresources.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // This saves a megabyte that every node must read at the agent's start. glibc supports the format since 2.36
    // (DT_RELR). zig's linker, which tests unoptimised programs for other machines, does not, so only release builds
    // use it.
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
