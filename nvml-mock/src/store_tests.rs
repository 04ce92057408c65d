//! Tests several stores on one state, like several processes.

use super::*;
use crate::config::MigMode;
use crate::files::MockFiles;
use crate::model::Model;

struct Node {
    folder: tempfile::TempDir,
    files: MockFiles,
}

fn node() -> Node {
    let folder = tempfile::tempdir().unwrap();
    let files = MockFiles::in_folder(folder.path());
    MockConfig::new().gpus(Model::H100, 1, MigMode::Enabled).write(&files.config).unwrap();
    Node { folder, files }
}

impl Node {
    fn proc(&self) -> std::path::PathBuf {
        self.folder.path().join("proc")
    }

    /// Whether the first GPU has a capability file at this path.
    fn has_capability(&self, path: &str) -> bool {
        self.proc().join("driver/nvidia/capabilities/gpu0/mig").join(path).is_file()
    }

    fn open(&self) -> Store {
        let MockFiles { config, state, control } = self.files.clone();
        Store::open(Paths { config: Some(config), state, control: Some(control), proc: Some(self.proc()) })
            .unwrap()
    }
}

fn cut(store: &Store) -> Outcome<u32> {
    store.update(|state, control| state.create_gpu_instance(0, 19, None, control))
}

fn instances(store: &Store) -> usize {
    store.view().unwrap().state.gpus[0].instances.len()
}

#[test]
fn an_instance_that_one_process_creates_is_visible_to_others() {
    let node = node();
    let [agent, observer] = [node.open(), node.open()];
    assert_eq!(instances(&observer), 0);
    cut(&agent).unwrap();
    assert_eq!(instances(&observer), 1);
    assert_eq!(MockState::load(&node.files.state).unwrap().slices()[0].profile, "1g.10gb");
    drop(agent);
    assert_eq!(instances(&node.open()), 1, "an agent's restart loses nothing");
}

#[test]
fn a_refused_change_writes_nothing() {
    let node = node();
    let store = node.open();
    let before = std::fs::read(&node.files.state).unwrap();
    let refused: Outcome<()> = store.update(|state, _| {
        state.gpus.clear();
        Err(NvmlCode::IN_USE)
    });
    assert_eq!(refused, Err(NvmlCode::IN_USE));
    assert_eq!(std::fs::read(&node.files.state).unwrap(), before);
}

#[test]
fn steady_reads_share_one_parsed_state() {
    let node = node();
    let store = node.open();
    let [first, second] = [store.view().unwrap().state, store.view().unwrap().state];
    assert!(Arc::ptr_eq(&first, &second));
}

#[test]
fn a_new_boot_id_clears_the_instances_once() {
    let node = node();
    let store = node.open();
    cut(&store).unwrap();
    MockControl::new().boot("boot-2").write(&node.files.control).unwrap();
    assert_eq!(instances(&store), 0);
    assert!(!store.view().unwrap().state.gpus[0].mig.current, "Hopper lost its mode");
    let state = store.view().unwrap().state;
    assert_eq!(state.boot_id, "boot-2");
    store.update(|state, control| state.set_mig_mode(0, true, control).map(|_| ())).unwrap();
    cut(&store).unwrap();
    assert_eq!(instances(&node.open()), 1, "the same boot id is no second reboot");
}

#[test]
fn a_boot_named_before_the_first_boot_is_that_boot() {
    let node = node();
    MockControl::new().boot("b7").write(&node.files.control).unwrap();
    let state = node.open().view().unwrap().state;
    assert_eq!(state.boot_id, "b7");
    assert!(state.gpus[0].mig.current, "the first boot takes the mode of the configuration");
}

#[test]
fn a_half_written_control_file_leaves_the_last_good_one_in_force() {
    let node = node();
    let store = node.open();
    MockControl::new().hang("f").write(&node.files.control).unwrap();
    assert!(store.view().unwrap().control.hangs("f"));
    std::fs::write(&node.files.control, "{\"hang\": [").unwrap();
    assert!(store.view().unwrap().control.hangs("f"));
    std::fs::remove_file(&node.files.control).unwrap();
    assert!(!store.view().unwrap().control.hangs("f"));
}

#[test]
fn threads_and_processes_cutting_at_once_never_share_a_slice() {
    let node = node();
    let stores = [node.open(), node.open()];
    std::thread::scope(|scope| {
        for store in &stores {
            for _ in 0..2 {
                scope.spawn(|| while cut(store).is_ok() {});
            }
        }
    });
    let state = MockState::load(&node.files.state).unwrap();
    assert_eq!(state.gpus[0].instances.len(), 7);
    assert!(state.gpus[0].violations().is_empty());
}

#[test]
fn errors_of_the_configuration_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let files = MockFiles::in_folder(folder.path());
    let paths = Paths { config: Some(files.config.clone()), state: files.state, control: None, proc: None };
    let missing = Store::open(paths.clone()).err().unwrap().to_string();
    assert!(missing.contains("config.json"), "{missing}");
    std::fs::write(&files.config, r#"{"gpus":[{"model":"H900"}]}"#).unwrap();
    let wrong = Store::open(paths).err().unwrap().to_string();
    assert!(wrong.contains("config.json") && wrong.contains("H900"), "{wrong}");
}

#[test]
fn files_of_the_kernel_module_follow_every_change() {
    let node = node();
    let store = node.open();
    assert!(node.proc().join("driver/nvidia-caps/mig-minors").is_file());
    let gi = cut(&store).unwrap();
    assert!(node.has_capability("gi13/access") && !node.has_capability("gi13/ci0/access"));
    store.update(|state, _| state.create_compute_instance(0, gi, 0, None)).unwrap();
    assert!(node.has_capability("gi13/ci0/access"));
    MockControl::new().boot("boot-2").write(&node.files.control).unwrap();
    store.view().unwrap();
    assert!(!node.has_capability("gi13/access"));
}

#[test]
fn files_of_the_kernel_module_are_made_true_at_the_start() {
    let node = node();
    cut(&node.open()).unwrap();
    std::fs::remove_dir_all(node.proc()).unwrap();
    let stale = node.proc().join("driver/nvidia/capabilities/gpu0/mig/gi3/ci0");
    std::fs::create_dir_all(&stale).unwrap();
    node.open();
    assert!(node.has_capability("gi13/access") && !stale.exists());
}

#[test]
fn a_gpu_event_happens_once_for_all_processes() {
    let node = node();
    let [one, other] = [node.open(), node.open()];
    let errors = crate::happening::EccErrors::double_bit("e1", 0);
    MockControl::new().ecc(errors).write(&node.files.control).unwrap();
    let count = |store: &Store| store.view().unwrap().state.gpus[0].ecc.aggregate.dram.uncorrected;
    assert_eq!([count(&one), count(&other), count(&one)], [1, 1, 1]);
    cut(&other).unwrap();
    MockControl::edit(&node.files.control, |control| *control = control.clone().reset("r1", 0)).unwrap();
    assert_eq!((instances(&one), instances(&other)), (0, 0));
    cut(&one).unwrap();
    assert_eq!(instances(&other), 1);
}
