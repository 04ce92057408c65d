//! Access on a folder that imitates a node: a driver, its `/proc`, its `/dev`.

use super::error::FileTrouble;
use super::*;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use tempfile::TempDir;

const MIG: &str = "MIG-6c1e6a62-6a1f-5f0a-9d3e-0123456789ab";
const SHARE: &str = "GPU-6c1e6a62-6a1f-4f0a-9d3e-0123456789ab::3";
const GPU: Target = Target::Gpu { minor: 0 };
const INSTANCE: Target = Target::Mig { minor: 0, gi: 1, ci: 0 };
const MINORS: &str =
    "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi1/ci1/access 14\n";

/// A node in one folder.
struct Node(TempDir);

impl Node {
    /// A node with GPU 0, one MIG device on it and a driver. Prints a note and returns `None` where device files cannot
    /// be created.
    fn new() -> Option<Self> {
        let node = Self::simulated();
        let devices = [
            ("nvidia0", 195, 0),
            ("nvidiactl", 195, 255),
            ("nvidia-uvm", 238, 0),
            ("nvidia-uvm-tools", 238, 1),
        ];
        for (name, major, minor) in devices {
            node.mknod(name, major, minor)?;
        }
        node.write(
            "proc/devices",
            "Character devices:\n195 nvidia\n238 nvidia-uvm\n241 nvidia-caps\n\nBlock devices:\n",
        );
        node.write("proc/driver/nvidia-caps/mig-minors", MINORS);
        for (file, minor) in [("access", 12), ("ci0/access", 13)] {
            let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
            node.write(&format!("proc/driver/nvidia/capabilities/gpu0/mig/gi1/{file}"), &text);
        }
        node.write("usr/lib/x86_64-linux-gnu/libcuda.so.580.1.2", "");
        symlink("libcuda.so.580.1.2", node.path("usr/lib/x86_64-linux-gnu/libcuda.so.1")).unwrap();
        node.write("usr/bin/nvidia-smi", "");
        Some(node)
    }

    /// An empty node with simulated GPUs.
    fn simulated() -> Self {
        let node = Self(tempfile::tempdir().unwrap());
        fs::create_dir(node.path("dev")).unwrap();
        node
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    fn mknod(&self, name: &str, major: u32, minor: u32) -> Option<()> {
        let path = self.path("dev").join(name);
        match mknodat(
            CWD,
            &path,
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o666),
            makedev(major, minor),
        ) {
            Ok(()) => Some(()),
            Err(rustix::io::Errno::PERM) => {
                eprintln!("SKIPPED: device files cannot be made here (EPERM); run this test as root");
                None
            }
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }

    fn places(&self) -> Places {
        Places {
            cdi: Some(self.path("cdi")),
            dev: self.path("dev"),
            proc: self.path("proc"),
            driver_root: self.path(""),
            hook: Some(HookPlaces { program: self.path("image/hook"), folder: self.path("state/bin") }),
            ..Places::default()
        }
    }

    fn simulated_places(&self) -> Places {
        Places { device_nodes: false, ..self.places() }
    }

    fn spec(&self, device: &str) -> PathBuf {
        self.path(&format!("cdi/kerf.dev-{device}.json"))
    }

    fn specs(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.path("cdi"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn wanted(devices: &[(&str, Target)]) -> BTreeMap<DeviceId, Access> {
    let access = |target| Access { visible: "UUID".to_owned(), target, mps: None };
    devices.iter().map(|(id, target)| (DeviceId::new(*id), access(*target))).collect()
}

fn ensure(
    places: Places,
    devices: &[(&str, Target)],
) -> BTreeMap<DeviceId, Result<AccessGrant, AccessError>> {
    AccessFiles::new(places).ensure(&wanted(devices), &BTreeSet::new())
}

fn only(answers: BTreeMap<DeviceId, Result<AccessGrant, AccessError>>) -> Result<AccessGrant, AccessError> {
    assert_eq!(answers.len(), 1);
    answers.into_values().next().unwrap()
}

/// The error's text, without the path of the node's folder.
fn text(node: &Node, error: &AccessError) -> String {
    error.to_string().replace(&node.0.path().display().to_string(), "")
}

#[test]
fn a_mig_device_gets_its_files_and_a_spec_that_names_them() {
    let Some(node) = Node::new() else { return };
    let grant = only(ensure(node.places(), &[(MIG, INSTANCE)])).unwrap();
    assert_eq!(grant.cdi, Some(format!("kerf.dev/gpu={MIG}")));
    assert_eq!((grant.visible.as_deref(), grant.files.len()), (Some("UUID"), 6), "beside CDI");
    insta::assert_snapshot!(fs::read_to_string(node.spec(MIG)).unwrap());
    for (name, minor) in [("nvidia-cap12", 12), ("nvidia-cap13", 13)] {
        let metadata = fs::metadata(node.path("dev/nvidia-caps").join(name)).unwrap();
        assert_eq!(node_file::number(&metadata), Some((241, minor)));
        assert_eq!(metadata.mode() & 0o7777, 0o444);
    }
    assert_eq!(fs::read_dir(node.path("dev/nvidia-caps")).unwrap().count(), 2, "no draft is left");
}

#[test]
fn a_spec_has_the_hosts_paths_of_dev_and_driver() {
    let Some(node) = Node::new() else { return };
    let driver = PathBuf::from("/run/nvidia/driver");
    let places = Places { host_dev: driver.join("dev"), host_driver_root: driver, ..node.places() };
    only(ensure(places, &[(SHARE, GPU)])).unwrap();
    let spec: serde_json::Value = serde_json::from_slice(&fs::read(node.spec(SHARE)).unwrap()).unwrap();
    let edits = &spec["devices"][0]["containerEdits"];
    assert_eq!(spec["devices"][0]["name"], SHARE);
    assert_eq!(edits["deviceNodes"][0]["path"], "/dev/nvidia0");
    assert_eq!(edits["deviceNodes"][0]["hostPath"], "/run/nvidia/driver/dev/nvidia0");
    assert_eq!(edits["mounts"][0]["containerPath"], "/usr/bin/nvidia-smi");
    assert_eq!(edits["mounts"][0]["hostPath"], "/run/nvidia/driver/usr/bin/nvidia-smi");
}

#[test]
fn without_cdi_a_grant_has_the_device_files() {
    let Some(node) = Node::new() else { return };
    let places = Places { cdi: None, host_dev: "/host/dev".into(), ..node.places() };
    let grant = only(ensure(places, &[(MIG, INSTANCE)])).unwrap();
    let files: Vec<_> =
        grant.files.iter().map(|f| (f.container.to_str().unwrap(), f.major, f.minor)).collect();
    let expected = [
        ("/dev/nvidia0", 195, 0),
        ("/dev/nvidiactl", 195, 255),
        ("/dev/nvidia-uvm", 238, 0),
        ("/dev/nvidia-uvm-tools", 238, 1),
        ("/dev/nvidia-caps/nvidia-cap12", 241, 12),
        ("/dev/nvidia-caps/nvidia-cap13", 241, 13),
    ];
    assert_eq!(files, expected);
    assert_eq!(grant.files[0].host, Path::new("/host/dev/nvidia0"));
    assert_eq!(grant.cdi, None);
}

fn hooks(node: &Node) -> serde_json::Value {
    let spec: serde_json::Value = serde_json::from_slice(&fs::read(node.spec(SHARE)).unwrap()).unwrap();
    spec["devices"][0]["containerEdits"]["hooks"].clone()
}

#[test]
fn a_hook_is_copied_to_the_host_and_adds_the_drivers_libraries() {
    let Some(node) = Node::new() else { return };
    let installed = node.path("state/bin/kerf-cdi-hook");
    let run = || only(ensure(node.places(), &[(SHARE, GPU)])).unwrap();
    run();
    assert_eq!(hooks(&node), serde_json::Value::Null, "an image without the program");
    node.write("image/hook", "first");
    run();
    let library = |name: &str| format!("/usr/lib/x86_64-linux-gnu/{name}");
    let args = ["kerf-cdi-hook", "add-libraries"].map(str::to_owned).into_iter();
    let args = args.chain(["libcuda.so", "libcuda.so.1", "libcuda.so.580.1.2"].map(library));
    let wanted = serde_json::json!([{
        "hookName": "createContainer",
        "path": installed,
        "args": args.collect::<Vec<_>>(),
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        "timeout": 10,
    }]);
    assert_eq!(hooks(&node), wanted);
    let inode = || fs::metadata(&installed).unwrap().ino();
    let first = inode();
    assert_eq!(fs::metadata(&installed).unwrap().mode() & 0o7777, 0o755);
    run();
    assert_eq!(inode(), first, "what is right stays");
    node.write("image/hook", "second release");
    run();
    assert_eq!(fs::read_to_string(&installed).unwrap(), "second release");
    let hook = node.places().hook.unwrap();
    let spared = [DeviceId::new(SHARE)].into();
    remove_but(&node.path("cdi"), Some(&hook), &spared).unwrap();
    assert!(installed.exists(), "a held device's containers may start again");
    for _ in 0..2 {
        remove_but(&node.path("cdi"), Some(&hook), &BTreeSet::new()).unwrap();
        assert!(!installed.exists());
    }
}

#[test]
fn extras_are_granted_if_they_are_enabled_and_the_node_has_them() {
    let Some(node) = Node::new() else { return };
    for folder in ["dev/infiniband", "dev/nvidia-caps-imex-channels", "run/udev"] {
        fs::create_dir_all(node.path(folder)).unwrap();
    }
    node.write("etc/cufile.json", "{}");
    let all = Extras { gdrcopy: true, gds: true, mofed: true, imex: ImexChannel::Required };
    let run = |extras| only(ensure(Places { extras, ..node.places() }, &[(SHARE, GPU)]));
    let refused = run(all).unwrap_err();
    assert!(
        text(&node, &refused).contains("/dev/nvidia-caps-imex-channels/channel0 is missing"),
        "{refused}"
    );
    let there = [
        ("gdrdrv", 235),
        ("nvidia-fs1", 236),
        ("nvidia-fs0", 236),
        ("infiniband/uverbs0", 231),
        ("infiniband/rdma_cm", 10),
        ("nvidia-caps-imex-channels/channel0", 237),
    ];
    for (name, major) in there {
        node.mknod(name, major, 0).unwrap();
    }
    let files = |grant: &AccessGrant| {
        let files = grant.files.iter().skip(4).map(|file| file.container.display().to_string());
        files.collect::<Vec<_>>().join(" ")
    };
    let plain = run(Extras::default()).unwrap();
    assert_eq!((files(&plain), plain.environment), (String::new(), Vec::new()));
    let grant = run(all).unwrap();
    let wanted = "/dev/gdrdrv /dev/nvidia-fs0 /dev/nvidia-fs1 /dev/infiniband/uverbs0 /dev/infiniband/rdma_cm \
                  /dev/nvidia-caps-imex-channels/channel0";
    assert_eq!(files(&grant), wanted);
    let names: Vec<_> = grant.environment.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["NVIDIA_GDRCOPY", "NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_IMEX_CHANNELS"]);
    let spec = fs::read_to_string(node.spec(SHARE)).unwrap();
    for path in ["/dev/infiniband/uverbs0", "/etc/cufile.json", "/run/udev"] {
        assert!(spec.contains(&format!("\"{path}\"")), "{path} is not in the specification");
    }
}

#[test]
fn a_wrong_device_file_of_a_capability_is_replaced_and_a_right_one_stays() {
    let Some(node) = Node::new() else { return };
    let cap = |minor: u32| node.path(&format!("dev/nvidia-caps/nvidia-cap{minor}"));
    fs::create_dir(node.path("dev/nvidia-caps")).unwrap();
    let right = || {
        only(ensure(node.places(), &[(MIG, INSTANCE)])).unwrap();
        let metadata = fs::symlink_metadata(cap(12)).unwrap();
        assert_eq!((node_file::number(&metadata), metadata.mode() & 0o7777), (Some((241, 12)), 0o444));
        metadata.ino()
    };
    fs::write(cap(12), "").unwrap();
    let made = right();
    assert_eq!(right(), made, "a right one stays");
    fs::set_permissions(cap(12), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(right(), made, "its mode is mended in place");
    fs::remove_file(cap(12)).unwrap();
    node.mknod("nvidia-caps/nvidia-cap12", 240, 12).unwrap();
    right();
    fs::remove_file(cap(12)).unwrap();
    symlink("nvidia-cap13", cap(12)).unwrap();
    right();
    fs::remove_file(cap(12)).unwrap();
    fs::create_dir(cap(12)).unwrap();
    let error = only(ensure(node.places(), &[(MIG, INSTANCE)])).unwrap_err();
    assert!(
        matches!(&error, AccessError::File { path, trouble: FileTrouble::InTheWay(_) } if *path == cap(12))
    );
}

#[test]
fn the_agent_creates_no_device_file_if_the_driver_leaves_them_to_the_administrator() {
    let Some(node) = Node::new() else { return };
    let text = "DeviceFileMinor: 12\nDeviceFileMode: 292\nDeviceFileModify: 0\n";
    node.write("proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", text);
    let error = only(ensure(node.places(), &[(MIG, INSTANCE)])).unwrap_err();
    assert!(
        matches!(error, AccessError::ForAdministrator { major: 241, minor: 12, mode: 0o444, .. }),
        "{error}"
    );
    fs::create_dir(node.path("dev/nvidia-caps")).unwrap();
    node.mknod("nvidia-caps/nvidia-cap12", 241, 12).unwrap();
    let grant = only(ensure(node.places(), &[(MIG, INSTANCE)]));
    assert!(grant.is_ok(), "the agent ignores the mode that the administrator has set: {grant:?}");
}

#[test]
fn the_drivers_table_suffices_if_the_capabilities_files_are_hidden() {
    let Some(node) = Node::new() else { return };
    fs::remove_dir_all(node.path("proc/driver/nvidia")).unwrap();
    assert!(only(ensure(node.places(), &[(MIG, INSTANCE)])).is_ok());
    assert!(node.path("dev/nvidia-caps/nvidia-cap13").exists());
}

#[test]
fn each_access_error_names_its_cause_and_the_remedy() {
    type Breaks = fn(&Node);
    let cases: [(&str, Target, Breaks); 9] = [
        ("no driver", GPU, |node| fs::remove_file(node.path("dev/nvidiactl")).unwrap()),
        ("another GPU's number", Target::Gpu { minor: 3 }, |_| {}),
        ("a file of a driver before", GPU, |node| {
            fs::remove_file(node.path("dev/nvidia-uvm")).unwrap();
            node.mknod("nvidia-uvm", 237, 0).unwrap();
        }),
        ("no MIG", INSTANCE, |node| fs::remove_dir_all(node.path("proc/driver/nvidia-caps")).unwrap()),
        ("no such instance", Target::Mig { minor: 0, gi: 2, ci: 0 }, |_| {}),
        ("no such instance in the table", Target::Mig { minor: 0, gi: 2, ci: 0 }, |node| {
            fs::remove_dir_all(node.path("proc/driver/nvidia")).unwrap();
        }),
        ("a table of another kind", INSTANCE, |node| {
            fs::remove_dir_all(node.path("proc/driver/nvidia")).unwrap();
            node.write("proc/driver/nvidia-caps/mig-minors", "gpu0/gi1/access: x\ngpu0/gi1/access x\n");
        }),
        ("no libraries", GPU, |node| fs::remove_dir_all(node.path("usr")).unwrap()),
        ("no module for capabilities", INSTANCE, |node| node.write("proc/devices", "195 nvidia\n")),
    ];
    let mut texts = Vec::new();
    for (case, target, breaks) in cases {
        let Some(node) = Node::new() else { return };
        breaks(&node);
        let error = only(ensure(node.places(), &[(MIG, target)])).unwrap_err();
        texts.push(format!("{case}: {}", text(&node, &error)));
        assert!(!node.spec(MIG).exists(), "{case}: no spec for what cannot be opened");
    }
    insta::assert_snapshot!(texts.join("\n"));
}

#[test]
fn a_simulated_gpu_needs_neither_files_nor_a_driver() {
    let node = Node::simulated();
    let grant = only(ensure(node.simulated_places(), &[(MIG, INSTANCE)])).unwrap();
    assert_eq!(grant.cdi, Some(format!("kerf.dev/gpu={MIG}")));
    insta::assert_snapshot!(fs::read_to_string(node.spec(MIG)).unwrap(), @r#"
    {
      "cdiVersion": "0.5.0",
      "kind": "kerf.dev/gpu",
      "devices": [
        {
          "name": "MIG-6c1e6a62-6a1f-5f0a-9d3e-0123456789ab",
          "containerEdits": {
            "env": [
              "NVIDIA_VISIBLE_DEVICES=void"
            ]
          }
        }
      ]
    }
    "#);
    assert_eq!(fs::metadata(node.path("cdi")).unwrap().mode() & 0o7777, 0o755);
    let grant = only(ensure(Places { cdi: None, ..node.simulated_places() }, &[(MIG, INSTANCE)])).unwrap();
    assert_eq!(grant, AccessGrant { visible: Some("UUID".to_owned()), ..AccessGrant::default() });
}

#[test]
fn specs_are_written_once_repaired_and_removed_if_not_wanted() {
    let node = Node::simulated();
    let both = [(MIG, INSTANCE), (SHARE, GPU)];
    ensure(node.simulated_places(), &both);
    let inode = || fs::metadata(node.spec(MIG)).unwrap().ino();
    let (first, text) = (inode(), fs::read(node.spec(MIG)).unwrap());
    ensure(node.simulated_places(), &both);
    assert_eq!(inode(), first, "what is right stays");
    for other in ["", "{", "{\"cdiVersion\": \"0.3.0\"}"] {
        fs::write(node.spec(MIG), other).unwrap();
        ensure(node.simulated_places(), &both);
        assert_eq!(fs::read(node.spec(MIG)).unwrap(), text, "{other:?}");
    }
    ensure(node.simulated_places(), &[(SHARE, GPU)]);
    assert_eq!(node.specs(), [format!("kerf.dev-{SHARE}.json")]);
    ensure(node.simulated_places(), &[]);
    assert_eq!(node.specs(), [""; 0]);
}

#[test]
fn the_spec_of_a_spared_device_stays_if_it_is_not_wanted() {
    let node = Node::simulated();
    let devices = [("MIG-1", INSTANCE), ("MIG-2", INSTANCE)];
    ensure(node.simulated_places(), &devices);
    let spared = [DeviceId::new("MIG-2")].into();
    assert!(AccessFiles::new(node.simulated_places()).ensure(&BTreeMap::new(), &spared).is_empty());
    assert_eq!(node.specs(), ["kerf.dev-MIG-2.json"]);
}

#[test]
fn foreign_files_stay_and_drafts_of_a_killed_agent_are_removed() {
    let node = Node::simulated();
    let others = ["kerf.dev-notes.json", "kerf.dev-GPU-1.yaml", "nvidia.com-gpu.json", ".other.draft"];
    for name in
        others.iter().chain(&[".kerf.dev-x1y2z3.draft", "kerf.dev-GPU-1::2.json", "kerf.dev-MIG-1.json"])
    {
        node.write(&format!("cdi/{name}"), "{");
    }
    assert!(ensure(node.simulated_places(), &[]).is_empty());
    let mut left = others.map(str::to_owned);
    left.sort();
    assert_eq!(node.specs(), left);
}

#[test]
fn a_failed_write_or_removal_of_a_spec_is_an_error_of_its_device_only() {
    let node = Node::simulated();
    fs::create_dir_all(node.spec(MIG)).unwrap();
    fs::create_dir(node.spec("MIG-old")).unwrap();
    let answers = ensure(node.simulated_places(), &[(MIG, INSTANCE), (SHARE, GPU), ("GPU-1/..", GPU)]);
    assert!(answers[SHARE].is_ok());
    for id in [MIG, "MIG-old"] {
        let spec = node.spec(id);
        let reported = &answers[id];
        let is_named = matches!(reported, Err(AccessError::File { path, .. }) if *path == spec);
        assert!(is_named, "{id}: {reported:?}");
    }
    assert!(matches!(&answers["GPU-1/.."], Err(AccessError::Name(id)) if id.as_str() == "GPU-1/.."));
    assert_eq!(answers.len(), 4);
    assert_eq!(node.specs().len(), 3, "no draft is left");
}

#[test]
fn a_folder_that_cannot_be_created_is_an_error_of_every_device() {
    let node = Node::simulated();
    node.write("cdi", "");
    // Not even root can create folders in /proc.
    let nowhere = PathBuf::from("/proc/kerf");
    for folder in [node.path("cdi"), node.path("cdi/below"), nowhere] {
        let places = Places { cdi: Some(folder.clone()), ..node.simulated_places() };
        let answers = ensure(places, &[(MIG, INSTANCE), (SHARE, GPU)]);
        assert_eq!(answers.len(), 2);
        for answer in answers.into_values() {
            assert!(
                matches!(answer, Err(AccessError::File { path, .. }) if path == folder),
                "{}",
                folder.display()
            );
        }
    }
}

#[test]
fn every_file_error_names_the_remedy() {
    use rustix::io::Errno;
    let full = "its file system is full: free space or inodes there";
    let denied = "access is denied: the agent must run as root and privileged";
    let in_the_way = "a file is where a folder should be, or a folder where a file should be: remove it";
    let cases = [
        (Errno::NOSPC, full),
        (Errno::DQUOT, full),
        (Errno::ROFS, "its file system is read-only: mount it writable on the node and into the agent"),
        (Errno::ACCESS, denied),
        (Errno::PERM, denied),
        (Errno::NOTDIR, in_the_way),
        (Errno::EXIST, in_the_way),
        (Errno::IO, "Input/output error (os error 5)"),
    ];
    for (errno, text) in cases {
        let error = AccessError::file(Path::new("/var/run/cdi/x.json"))(errno.into());
        assert_eq!(error.to_string(), format!("/var/run/cdi/x.json: {text}"));
    }
}
