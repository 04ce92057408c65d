use super::*;
use std::fs;

fn text(name: &str) -> String {
    format!(
        "apiVersion: kerf.dev/v1alpha1\nkind: GpuPolicy\nmetadata:\n  name: {name}\nspec:\n  defaultIsolation: memory\n  isolation:\n    memory: [mig, mps]\n"
    )
}

fn poll(store: &PolicyStore) {
    store.take(fs::read_to_string(&store.0.path));
}

#[test]
fn the_last_good_policy_outlives_a_typo() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    fs::write(&path, text("first")).unwrap();
    let store = PolicyStore::open(&path).unwrap();

    fs::write(&path, text("second").replace("defaultIsolation", "defaultIsolaton")).unwrap();
    poll(&store);
    assert_eq!(store.current().name(), "first");
    let error = store.last_error().unwrap();
    assert!(error.contains("policy.yaml:6:3: ") && error.contains("defaultIsolaton"), "{error}");

    fs::write(&path, text("third")).unwrap();
    poll(&store);
    assert_eq!((store.current().name(), store.last_error(), store.reloads()), ("third", None, 1));
}

#[test]
fn a_file_that_vanishes_and_returns_keeps_its_policy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    fs::write(&path, text("first")).unwrap();
    let store = PolicyStore::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    poll(&store);
    assert_eq!(store.current().name(), "first");
    assert!(store.last_error().unwrap().contains("failed to read"));
    fs::write(&path, text("first")).unwrap();
    poll(&store);
    assert_eq!(store.last_error(), None);
}

#[test]
fn a_policy_that_breaks_a_promise_is_refused_by_its_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    fs::write(&path, text("weak").replace("mps", "time-slicing")).unwrap();
    let error = PolicyStore::open(&path).unwrap_err().to_string();
    assert!(error.contains("spec.isolation.memory"), "{error}");
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
        std::os::unix::fs::symlink(to, root.join("..new")).unwrap();
        fs::rename(root.join("..new"), root.join("..data")).unwrap();
    };
    link("v1");
    std::os::unix::fs::symlink("..data/policy.yaml", root.join("policy.yaml")).unwrap();
    let store = PolicyStore::open(root.join("policy.yaml")).unwrap();
    let stop = CancellationToken::new();
    let watch = tokio::spawn({
        let (store, stop) = (store.clone(), stop.clone());
        async move { store.watch(stop).await }
    });

    link("v2");
    tokio::time::timeout(10 * POLL, async {
        while store.current().name() != "second" {
            tokio::time::sleep(POLL / 4).await;
        }
    })
    .await
    .unwrap();
    stop.cancel();
    watch.await.unwrap();
    assert_eq!(store.reloads(), 1);
}
