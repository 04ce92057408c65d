//! Container images as `cargo xtask images` writes them: valid by the OCI's rules, without unnecessary files, and with
//! programs that run in them. A chroot stands in for a container.

#![expect(clippy::unwrap_used, reason = "a fault of a test's own shows where it is")]

#[path = "container_images/archive.rs"]
mod archive;
#[path = "container_images/inside.rs"]
mod inside;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;

use archive::{IMAGES, Image, build, image};
use inside::{Root, maps};
use kerf_nvml_mock::{MigMode, MockConfig, MockFiles, Model, library_path};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The one program that runs as root, because it cuts GPUs and makes device files.
const ROOT: &str = "kerf-node-agent";

/// Programs that open NVML, so that their images have a loader and glibc.
const DYNAMIC: [&str; 2] = ["kerf-node-agent", "kerf-cli"];

#[test]
fn archives_hold_exactly_what_their_digests_name() {
    for image in IMAGES.map(image) {
        let blobs = [image.manifest_digest(), image.configuration_digest(), image.layer_digest()];
        let mut wanted: BTreeSet<String> = blobs.iter().map(|hash| format!("blobs/sha256/{hash}")).collect();
        wanted.extend(["oci-layout", "index.json", "manifest.json"].map(str::to_owned));
        assert_eq!(image.files.keys().cloned().collect::<BTreeSet<_>>(), wanted, "{}", image.name);
        for hash in blobs {
            let content = &image.files[&format!("blobs/sha256/{hash}")];
            assert_eq!(archive::sha256(content), hash, "{}", image.name);
        }
        assert_eq!(image.files["oci-layout"], br#"{"imageLayoutVersion":"1.0.0"}"#);
        let diff_id = format!("sha256:{}", archive::sha256(&image.layer()));
        assert_eq!(image.configuration.rootfs().diff_ids(), &[diff_id], "{}", image.name);
    }
}

/// `docker load` reads only this list before version 25, and later without containerd's store.
#[test]
fn docker_finds_the_same_image() {
    for image in IMAGES.map(image) {
        let wanted = serde_json::json!([{
            "Config": format!("blobs/sha256/{}", image.configuration_digest()),
            "Layers": [format!("blobs/sha256/{}", image.layer_digest())],
            "RepoTags": [format!("registry.example.com/kerf/{}:{VERSION}", image.name)],
        }]);
        let said: serde_json::Value = serde_json::from_slice(&image.files["manifest.json"]).unwrap();
        assert_eq!(said, wanted);
    }
}

#[test]
fn an_image_names_its_platform_and_its_command() {
    for image in IMAGES.map(image) {
        let annotations = image.descriptor.annotations().as_ref().unwrap();
        let name = format!("registry.example.com/kerf/{}:{VERSION}", image.name);
        assert_eq!(annotations["io.containerd.image.name"], name);
        assert_eq!(annotations["org.opencontainers.image.ref.name"], VERSION);
        let platform = image.descriptor.platform().as_ref().unwrap();
        assert_eq!(platform.architecture(), image.configuration.architecture());
        let config = image.configuration.config().as_ref().unwrap();
        let program = if image.name == "kerf-cli" { "kerf" } else { image.name };
        assert_eq!(config.entrypoint().as_ref().unwrap(), &[format!("/usr/bin/{program}")]);
        let user = if image.name == ROOT { "0:0" } else { "65532:65532" };
        assert_eq!(config.user().as_deref(), Some(user), "{}", image.name);
        let labels = config.labels().as_ref().unwrap();
        assert_eq!(labels["org.opencontainers.image.version"], VERSION);
        assert_eq!(labels["org.opencontainers.image.licenses"], "Apache-2.0");
        assert_eq!(labels["org.opencontainers.image.source"], "https://example.com/kerf");
        assert_eq!(labels["org.opencontainers.image.created"], "2023-11-14T22:13:20Z");
        assert!(labels["org.opencontainers.image.revision"].len() >= 40);
        assert!(!labels["org.opencontainers.image.title"].is_empty());
    }
}

#[test]
fn an_image_has_no_other_files() {
    let common = ["etc/group", "etc/passwd", "tmp/", "usr/share/doc/kerf/LICENSE"];
    for image in IMAGES.map(image) {
        let program = if image.name == "kerf-cli" { "kerf" } else { image.name };
        let mut wanted: BTreeSet<String> = common.map(str::to_owned).into();
        wanted.insert(format!("usr/bin/{program}"));
        if image.name == "kerf-cli" {
            wanted.insert("usr/bin/kubectl-kerf".to_owned());
        }
        if image.name == ROOT {
            wanted.insert("usr/bin/kerf-cdi-hook".to_owned());
        }
        if DYNAMIC.contains(&image.name) {
            wanted.extend(inside::of_the_system());
        }
        let found: BTreeSet<String> =
            image.entries().into_iter().filter(|path| !is_folder_of(path, &wanted)).collect();
        assert_eq!(found, wanted, "{}", image.name);
    }
}

/// Whether the path is a parent folder of an expected file.
fn is_folder_of(path: &str, wanted: &BTreeSet<String>) -> bool {
    path.ends_with('/') && !wanted.contains(path) && wanted.iter().any(|one| one.starts_with(path))
}

#[test]
fn programs_need_only_their_image() {
    for image in IMAGES.map(image) {
        let root = Root::unpack(&image);
        let entrypoint = image.configuration.config().as_ref().unwrap().entrypoint().clone().unwrap();
        let said = root.run(&entrypoint[0], &["--version"], &[]);
        let program = entrypoint[0].rsplit('/').next().unwrap();
        assert_eq!(said.trim(), format!("{program} {VERSION}"));
    }
    let root = Root::unpack(&image("kerf-cli"));
    assert!(root.run("/usr/bin/kubectl-kerf", &["--help"], &[]).contains("Usage"));
}

/// The hook runs on hosts of any distribution.
#[test]
fn the_hook_needs_no_other_file() {
    let root = Root::unpack(&image(ROOT));
    for folder in ["lib", "lib64", "usr/lib", "usr/lib64"] {
        fs::rename(root.path(folder), root.path(&format!("no-{}", folder.replace('/', "-")))).unwrap();
    }
    let output = root.command("/usr/bin/kerf-cdi-hook", &[], &[]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("usage: kerf-cdi-hook add-libraries"), "{said}");
}

#[test]
fn static_programs_need_no_loader() {
    for image in IMAGES.map(image).into_iter().filter(|image| !DYNAMIC.contains(&image.name)) {
        let root = Root::unpack(&image);
        for folder in ["lib", "lib64", "usr/lib", "usr/lib64"] {
            assert!(!root.path(folder).exists(), "{} has /{folder}", image.name);
        }
    }
}

/// NVML is opened at run time, by the image's own loader with the image's own glibc.
#[test]
fn kerf_opens_nvml_from_inside_its_image() {
    let root = Root::unpack(&image("kerf-cli"));
    let environment = simulated_gpus(&root);
    let said = root.run("/usr/bin/kerf", &["gpu", "list", "--nvml", "/mock/libnvidia-ml.so.1"], &environment);
    assert!(said.contains("H100"), "{said}");
}

/// Container runtimes put the driver's library under its own name into one of several folders.
#[test]
fn nvml_is_found_at_the_paths_of_container_runtimes() {
    let environment_of =
        |image: &Image| image.configuration.config().as_ref().unwrap().env().clone().unwrap();
    for folder in ["usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/local/nvidia/lib64"] {
        let image = image("kerf-cli");
        let root = Root::unpack(&image);
        let mut environment = simulated_gpus(&root);
        environment.extend(environment_of(&image).iter().map(|pair| {
            let (name, value) = pair.split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        }));
        let folder = root.path(&folder.replace("x86_64", std::env::consts::ARCH));
        fs::create_dir_all(&folder).unwrap();
        fs::rename(root.path("mock/libnvidia-ml.so.1"), folder.join("libnvidia-ml.so.1")).unwrap();
        let said = root.run("/usr/bin/kerf", &["gpu", "list"], &environment);
        assert!(said.contains("H100"), "{}: {said}", folder.display());
    }
}

/// The agent's own loader opens NVML too. Its cluster is only a minimal API server.
#[test]
fn the_agent_opens_nvml_from_inside_its_image() {
    let root = Root::unpack(&image("kerf-node-agent"));
    let environment = simulated_gpus(&root);
    root.write("etc/kubeconfig", &api_server());
    // The kernel's files that the agent reads, because a process without root rights cannot mount them.
    root.write("proc/sys/kernel/random/boot_id", "00000000-0000-4000-8000-000000000000\n");
    fs::create_dir_all(root.path("proc/self")).unwrap();
    symlink("/usr/bin/kerf-node-agent", root.path("proc/self/exe")).unwrap();
    let arguments = [
        "--node=node",
        "--nvml=/mock/libnvidia-ml.so.1",
        "--kubeconfig=/etc/kubeconfig",
        "--admin-address=127.0.0.1:0",
        "--extender=127.0.0.1:9445",
    ];
    let agent = root.start("/usr/bin/kerf-node-agent", &arguments, &environment);
    let opened = |maps: &str| maps.contains("/mock/libnvidia-ml.so.1");
    let maps = maps(&root, agent, opened, Duration::from_secs(30));
    let inside = root.path("").display().to_string();
    let files: BTreeSet<&str> = maps.lines().filter_map(|line| Some(&line[line.find('/')?..])).collect();
    let outside: Vec<&&str> = files.iter().filter(|path| !path.starts_with(&inside)).collect();
    assert!(outside.is_empty(), "of the machine, not of the image: {outside:?}");
    assert!(files.iter().any(|path| path.ends_with("/libc.so.6")), "{maps}");
}

/// A kubeconfig for an API server that has only an empty GpuNode. Without that object the agent does not read its GPUs.
fn api_server() -> String {
    let server = inside::answer_all_with(r#"{"metadata": {"name": "node"}}"#);
    let authority = rcgen::generate_simple_self_signed(["kubernetes".to_owned()]).unwrap().cert.pem();
    let authority = base64::engine::general_purpose::STANDARD.encode(authority);
    let named = |what: &str, content| serde_json::json!([{"name": "a", what: content}]);
    let config = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "contexts": named("context", serde_json::json!({"cluster": "a", "user": "a"})),
        "clusters": named("cluster", serde_json::json!({"server": server, "certificate-authority-data": authority})),
        "users": named("user", serde_json::json!({})),
    });
    config.to_string()
}

/// Puts the mock into the root as the driver's library. Returns the environment that it reads.
fn simulated_gpus(root: &Root) -> Vec<(String, String)> {
    root.write("mock/empty", "");
    let folder = root.path("mock");
    fs::copy(library_path().expect("cargo builds the mock with this test"), folder.join("libnvidia-ml.so.1"))
        .unwrap();
    MockConfig::new()
        .gpus(Model::H100, 1, MigMode::Enabled)
        .write(&MockFiles::in_folder(&folder).config)
        .unwrap();
    let inside = MockFiles::in_folder(Path::new("/mock"));
    inside.env().into_iter().map(|(name, value)| (name.to_string(), value.display().to_string())).collect()
}

#[test]
fn the_bill_of_materials_names_what_is_in_the_image() {
    let written = build();
    for name in IMAGES {
        let text = fs::read(written.join(format!("{name}.cdx.json"))).unwrap();
        let bill: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(
            (&bill["metadata"]["component"]["name"], &bill["metadata"]["component"]["version"]),
            (&name.into(), &VERSION.into())
        );
        let components = bill["components"].as_array().unwrap();
        let named: BTreeSet<&str> = components.iter().map(|c| c["name"].as_str().unwrap()).collect();
        assert!(
            named.contains("kerf-core") && named.contains("ring") && named.contains("rust-std"),
            "{name}"
        );
        let dynamic = DYNAMIC.contains(&name);
        for of_glibc in ["libc6", "libgcc-s1"] {
            assert_eq!(named.contains(of_glibc), dynamic, "{name}");
        }
        // The agent's image also has the static hook for CDI.
        assert_eq!(named.contains("musl"), !dynamic || name == "kerf-node-agent", "{name}");
        for library in image(name).entries().iter().filter(|path| path.contains(".so")) {
            assert!(named.contains(format!("/{library}").as_str()), "{name} lacks {library}");
        }
        let unlicensed: Vec<_> =
            components.iter().filter(|c| c["type"] == "library" && c["licenses"].is_null()).collect();
        assert!(unlicensed.is_empty(), "{unlicensed:?}");
    }
}

#[test]
fn checksums_are_those_of_the_files() {
    let written = build();
    let sums = fs::read_to_string(written.join("SHA256SUMS")).unwrap();
    assert_eq!(sums.lines().count(), 2 * IMAGES.len());
    for line in sums.lines() {
        let (sum, name) = line.split_once("  ").unwrap();
        assert_eq!(archive::sha256(&fs::read(written.join(name)).unwrap()), sum, "{name}");
    }
}

#[test]
fn the_same_programs_give_the_same_bytes() {
    let again = tempfile::tempdir().unwrap();
    let names = ["kerf-webhook", "kerf-cli"];
    archive::write(again.path(), &names);
    for file in names.iter().flat_map(|name| [format!("{name}.tar"), format!("{name}.cdx.json")]) {
        let (first, second) =
            (fs::read(build().join(&file)).unwrap(), fs::read(again.path().join(&file)).unwrap());
        assert!(first == second, "{file} differs from one run to the next");
    }
}
