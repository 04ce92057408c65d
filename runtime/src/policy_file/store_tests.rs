use super::*;
use std::fs;
use std::os::unix::fs::symlink;

fn text(name: &str) -> String {
    format!(
        "apiVersion: kerf.dev/v1alpha1\nkind: GpuPolicy\nmetadata:\n  name: {name}\nspec:\n  defaultIsolation: memory\n  isolation:\n    memory: [mig, mps]\n"
    )
}

fn poll(store: &PolicyStore) {
    store.take(folder::read(&store.0.path));
}

#[test]
fn the_last_good_policy_outlives_a_typo() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    fs::write(&path, text("first")).unwrap();
    let store = PolicyStore::open(&path).unwrap();

    fs::write(&path, text("second").replace("defaultIsolation", "defaultIsolaton")).unwrap();
    poll(&store);
    assert_eq!(store.current().pods[0].name(), "first");
    let error = store.last_error().unwrap();
    assert!(error.contains("policy.yaml:6:3: ") && error.contains("defaultIsolaton"), "{error}");

    fs::write(&path, text("third")).unwrap();
    poll(&store);
    assert_eq!((store.current().pods[0].name(), store.last_error(), store.reloads()), ("third", None, 1));
}

#[test]
fn a_file_that_vanishes_and_returns_keeps_its_policy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    fs::write(&path, text("first")).unwrap();
    let store = PolicyStore::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    poll(&store);
    assert_eq!(store.current().pods[0].name(), "first");
    assert!(store.last_error().unwrap().contains("failed to read"));
    fs::write(&path, text("first")).unwrap();
    poll(&store);
    assert_eq!(store.last_error(), None);
}

#[test]
fn a_policy_that_breaks_its_isolation_class_is_refused_with_the_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    fs::write(&path, text("weak").replace("mps", "time-slicing")).unwrap();
    let error = PolicyStore::open(&path).unwrap_err().to_string();
    assert!(error.contains("spec.isolation.memory"), "{error}");
}

fn names(store: &PolicyStore) -> Vec<String> {
    store.current().pods.iter().map(|policy| policy.name().to_owned()).collect()
}

#[test]
fn files_count_in_the_order_of_their_names_and_a_bad_one_keeps_its_last_good_content() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| fs::write(folder.path().join(name), content).unwrap();
    write("b.yaml", &text("b"));
    write("a.yaml", &text("a"));
    write("c.yaml", "spec: [");
    let store = PolicyStore::open(folder.path()).unwrap();
    assert_eq!(names(&store), ["a", "b"]);
    assert_eq!((store.errors().len(), store.reloads()), (1, 0));

    write("a.yaml", &text("bad name"));
    write("b.yaml", &text("b2"));
    write("c.yaml", &text("c"));
    poll(&store);
    assert_eq!(names(&store), ["a", "b2", "c"], "other files' changes go through");
    let errors = store.errors();
    let (path, error) = errors.first_key_value().unwrap();
    assert!(path.ends_with("a.yaml") && error.contains("a.yaml:4:9: metadata.name"), "{errors:?}");

    write("a.yaml", &text("a2"));
    fs::remove_file(folder.path().join("b.yaml")).unwrap();
    poll(&store);
    assert_eq!((names(&store), store.last_error()), (vec!["a2".to_owned(), "c".to_owned()], None));
}

#[test]
fn a_file_that_conflicts_with_others_is_refused_until_the_conflict_ends() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| fs::write(folder.path().join(name), content).unwrap();
    write("a.yaml", &text("a"));
    write("b.yaml", &text("b"));
    let store = PolicyStore::open(folder.path()).unwrap();
    write("a.yaml", &text("b"));
    poll(&store);
    assert_eq!(names(&store), ["a", "b"]);
    assert!(store.last_error().unwrap().contains("a.yaml:4:9: metadata.name: another policy is called b"));
    write("b.yaml", &text("c"));
    poll(&store);
    assert_eq!((names(&store), store.last_error()), (vec!["b".to_owned(), "c".to_owned()], None));

    write("a.yaml", &text("c"));
    write("b.yaml", &text("b"));
    poll(&store);
    assert_eq!(
        (names(&store), store.last_error()),
        (vec!["c".to_owned(), "b".to_owned()], None),
        "they swap"
    );
}

#[test]
fn the_last_policy_for_pods_stays_in_force_without_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("a.yaml"), folder.path().join("b.yaml"));
    fs::write(&first, text("default")).unwrap();
    let store = PolicyStore::open(folder.path()).unwrap();
    fs::remove_file(&first).unwrap();
    poll(&store);
    poll(&store);
    assert_eq!(names(&store), ["default"]);
    assert!(store.last_error().unwrap().contains("there is no GpuPolicy"));
    fs::write(&second, text("default").replace("memory: [mig, mps]", "memory: [mps]")).unwrap();
    poll(&store);
    assert_eq!((store.current().pods.len(), store.last_error()), (1, None), "a renamed file is no conflict");
    assert_eq!(store.current().pods[0].spec().isolation.values().next().map(Vec::len), Some(1));

    fs::remove_dir_all(folder.path()).unwrap();
    poll(&store);
    assert_eq!(names(&store), ["default"]);
    assert!(store.last_error().is_some());
}

#[test]
fn a_folder_without_a_policy_for_pods_is_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let open = || PolicyStore::open(folder.path()).unwrap_err().to_string();
    assert!(open().contains("there is no policy"), "{}", open());
    let nodes = "apiVersion: kerf.dev/v1alpha1\nkind: GpuNodePolicy\nmetadata: {name: n}\nspec: {}\n";
    fs::write(folder.path().join("n.yaml"), nodes).unwrap();
    assert!(open().contains("there is no GpuPolicy"), "{}", open());
    fs::write(folder.path().join("p.yaml"), "spec: [").unwrap();
    assert!(open().contains("p.yaml:1"), "{}", open());
}

#[test]
fn files_and_reloads_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.yaml"), text("a")).unwrap();
    fs::write(folder.path().join("b.yaml"), "spec: [").unwrap();
    let store = PolicyStore::open(folder.path()).unwrap();
    let mut registry = Registry::default();
    store.register(&mut registry);
    fs::write(folder.path().join("a.yaml"), text("a2")).unwrap();
    fs::write(folder.path().join("b.yaml"), "spec: {").unwrap();
    poll(&store);
    poll(&store);
    let mut shown = String::new();
    prometheus_client::encoding::text::encode(&mut shown, &registry).unwrap();
    for line in [
        "kerf_policy_reloads_total{result=\"loaded\"} 1",
        "kerf_policy_reloads_total{result=\"refused\"} 1",
        "kerf_policy_files{state=\"good\"} 1",
        "kerf_policy_files{state=\"bad\"} 1",
    ] {
        assert!(shown.contains(line), "{line} is not in {shown}");
    }
}

/// The longest time until a change of the files is in force. docs/policies.md guarantees it, so it does not follow
/// [`POLL_INTERVAL`].
const CHANGE_TIMEOUT: Duration = Duration::from_secs(2);

/// Follows the files and returns just after a reading, so that the next change waits as long as possible. The clock is
/// the test's, so that no slow machine can miss the limit.
async fn watch(store: &PolicyStore, stop: &CancellationToken) -> tokio::task::JoinHandle<()> {
    let (store, stop) = (store.clone(), stop.clone());
    let watch = tokio::spawn(async move { store.watch(stop).await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    watch
}

#[tokio::test(start_paused = true)]
async fn a_config_map_folder_is_followed_through_its_symlinks() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for (version, files) in [("..v1", ["a", "b"]), ("..v2", ["b", "c"])] {
        fs::create_dir(root.join(version)).unwrap();
        for name in files {
            fs::write(root.join(version).join(format!("{name}.yaml")), text(name)).unwrap();
        }
    }
    symlink("..v1", root.join("..data")).unwrap();
    for name in ["a", "b"] {
        symlink(format!("..data/{name}.yaml"), root.join(format!("{name}.yaml"))).unwrap();
    }
    let store = PolicyStore::open(root).unwrap();
    assert_eq!(names(&store), ["a", "b"]);
    let stop = CancellationToken::new();
    let watch = watch(&store, &stop).await;
    // The kubelet's order: new files, the swap of the link, new names, and old names last.
    symlink("..v2", root.join("..new")).unwrap();
    fs::rename(root.join("..new"), root.join("..data")).unwrap();
    symlink("..data/c.yaml", root.join("c.yaml")).unwrap();
    let changed = tokio::time::timeout(CHANGE_TIMEOUT, async {
        while names(&store) != ["b", "c"] {
            tokio::time::sleep(POLL_INTERVAL / 4).await;
        }
    });
    changed.await.unwrap();
    assert_eq!(store.last_error(), None);
    stop.cancel();
    watch.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_config_map_volume_is_followed_through_its_symlinks() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for (version, name) in [("v1", "first"), ("v2", "second")] {
        fs::create_dir(root.join(version)).unwrap();
        fs::write(root.join(version).join("policy.yaml"), text(name)).unwrap();
    }
    let link = |to: &str| {
        symlink(to, root.join("..new")).unwrap();
        fs::rename(root.join("..new"), root.join("..data")).unwrap();
    };
    link("v1");
    symlink("..data/policy.yaml", root.join("policy.yaml")).unwrap();
    let store = PolicyStore::open(root.join("policy.yaml")).unwrap();
    let stop = CancellationToken::new();
    let watch = watch(&store, &stop).await;

    link("v2");
    tokio::time::timeout(CHANGE_TIMEOUT, async {
        while store.current().pods[0].name() != "second" {
            tokio::time::sleep(POLL_INTERVAL / 4).await;
        }
    })
    .await
    .unwrap();
    stop.cancel();
    watch.await.unwrap();
    assert_eq!(store.reloads(), 1);
}

fn extending(name: &str, base: &str, more: &str) -> String {
    format!(
        "apiVersion: kerf.dev/v1alpha1\nkind: GpuPolicy\nmetadata: {{name: {name}}}\nspec:\n  extends: {base}\n{more}"
    )
}

/// The slices that a container may ask for, by the policy of this name.
fn max_count(store: &PolicyStore, name: &str) -> Option<u32> {
    Some(store.current().pods.iter().find(|policy| policy.name() == name)?.max_count())
}

#[test]
fn a_policy_that_extends_follows_its_base_in_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| fs::write(folder.path().join(name), content).unwrap();
    let base = |count: u32| format!("{}  maxCount: {count}\n", text("base"));
    write("10-team.yaml", &extending("team", "base", "  quota: {slices: 3}\n"));
    write("base.yaml", &base(4));
    let store = PolicyStore::open(folder.path()).unwrap();
    assert_eq!((max_count(&store, "team"), store.last_error()), (Some(4), None));

    write("base.yaml", &base(5));
    poll(&store);
    assert_eq!((max_count(&store, "team"), store.last_error()), (Some(5), None));

    // A content that would break an extending policy is not taken over, and the error is reported for this file only.
    write("base.yaml", &format!("{}  maxPerPod: {{slices: 9}}\n", base(6)));
    poll(&store);
    assert_eq!(max_count(&store, "team"), Some(5));
    let errors = store.errors();
    let (path, error) = errors.first_key_value().unwrap();
    assert!(path.ends_with("base.yaml") && errors.len() == 1, "{errors:?}");
    assert!(error.contains("10-team.yaml:6:19: spec.quota.slices: 3 is less than"), "{error}");

    // Changing both files at once is possible.
    write("base.yaml", &format!("{}  maxPerPod: {{slices: 9}}\n", base(6)));
    write("10-team.yaml", &extending("team", "base", "  quota: {slices: 30}\n"));
    poll(&store);
    assert_eq!((max_count(&store, "team"), store.last_error()), (Some(6), None));
}

#[test]
fn a_policy_outlives_the_base_that_it_extends_until_its_file_changes() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| fs::write(folder.path().join(name), content).unwrap();
    let base = |count: u32| format!("{}  maxCount: {count}\n", text("base"));
    write("10-team.yaml", &extending("team", "base", ""));
    write("base.yaml", &base(4));
    write("last.yaml", &text("last"));
    let store = PolicyStore::open(folder.path()).unwrap();
    fs::remove_file(folder.path().join("base.yaml")).unwrap();
    poll(&store);
    assert_eq!(
        (names(&store), max_count(&store, "team")),
        (vec!["team".to_owned(), "last".to_owned()], Some(4))
    );
    let error = store.last_error().unwrap();
    assert!(error.contains("10-team.yaml:5:12: spec.extends: no GpuPolicy is called base"), "{error}");

    write("last.yaml", &text("last").replace("mig, ", ""));
    poll(&store);
    assert_eq!((max_count(&store, "team"), store.errors().len()), (Some(4), 1), "others change");

    write("base.yaml", &base(7));
    poll(&store);
    assert_eq!((max_count(&store, "team"), store.last_error()), (Some(7), None), "the base is there again");

    write("10-team.yaml", &extending("team", "nobody", ""));
    poll(&store);
    assert_eq!(max_count(&store, "team"), Some(7), "a bad file never replaces a good one");
    assert!(store.last_error().unwrap().contains("no GpuPolicy is called nobody"));
}
