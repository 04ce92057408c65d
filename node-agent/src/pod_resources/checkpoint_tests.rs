//! Files that the kubelet's own code has written (`pkg/kubelet/cm/devicemanager/checkpoint` of Kubernetes v1.36.4, the
//! same code in v1.33.5, v1.34.1 and v1.35.0), and one field of later kubelets.

use super::*;

/// No container has a device, and no plugin is registered.
const EMPTY: &str = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3467439661}"#;

/// The same, with null and empty swapped.
const NULL: &str = r#"{"Data":{"PodDeviceEntries":[],"RegisteredDevices":null},"Checksum":3252601439}"#;

/// An init container that hands a device on, devices by NUMA node, other names, and lists that are null or empty.
const FULL: &str = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"uid-1","ContainerName":"load","ResourceName":"nvidia.com/mig-1g.10gb","DeviceIDs":{"-1":["MIG-1","MIG-2"]},"AllocResp":"CgD/"},{"PodUID":"uid-1","ContainerName":"main","ResourceName":"nvidia.com/mig-1g.10gb","DeviceIDs":{"0":["MIG-1"],"1":["MIG-1"],"10":null,"2":[]},"AllocResp":null},{"PodUID":"uid-2","ContainerName":"ümlaut \u003c\u0026\u003e","ResourceName":"nvidia.com/gpu","DeviceIDs":{},"AllocResp":""},{"PodUID":"uid-3","ContainerName":"x","ResourceName":"nvidia.com/gpu","DeviceIDs":null,"AllocResp":"AQ=="}],"RegisteredDevices":{"a":null,"nvidia.com/gpu":[],"nvidia.com/mig-1g.10gb":["MIG-2","MIG-1"]}},"Checksum":151965901}"#;

fn read(text: &str) -> Result<Vec<String>, CheckpointError> {
    let all = parse(text.as_bytes())?;
    Ok(all.into_iter().map(|r| format!("{} {} {} {}", r.uid, r.container, r.name, r.device)).collect())
}

#[test]
fn devices_of_containers_and_init_containers_are_read_if_the_checksum_is_right() {
    let expected = ["load", "load", "main", "main"].into_iter().zip(["MIG-1", "MIG-2", "MIG-1", "MIG-1"]);
    let expected = expected.map(|(of, device)| format!("uid-1 {of} nvidia.com/mig-1g.10gb {device}"));
    assert_eq!(read(FULL).unwrap(), expected.collect::<Vec<_>>());
    assert_eq!((read(EMPTY).unwrap(), read(NULL).unwrap()), (vec![], vec![]));
}

#[test]
fn an_additional_field_of_later_kubelets_is_no_error() {
    let later = FULL.replace(r#""Checksum":151965901"#, r#""Checksum":151965901,"BootID":"b""#);
    assert!(later != FULL && read(&later).is_ok());
}

#[test]
fn a_changed_file_is_an_error() {
    for (was, is) in [
        ("uid-1", "uid-9"),
        ("load", "main"),
        ("MIG-1", "MIG-9"),
        ("CgD/", "CgDa"),
        ("\"AllocResp\":null", "\"AllocResp\":\"\""),
        ("\"DeviceIDs\":null", "\"DeviceIDs\":{}"),
        ("\"10\":null", "\"10\":[]"),
        ("151965901", "151965902"),
    ] {
        let changed = FULL.replacen(was, is, 1);
        let error = read(&changed).unwrap_err();
        assert!(matches!(error, CheckpointError::Corrupt { .. }), "{was}: {error}");
        assert!(error.to_string().contains("151965901") || was.starts_with("1519"), "{error}");
    }
}

#[test]
fn a_file_of_unknown_form_is_an_error() {
    for text in
        ["", "{}", &FULL[..FULL.len() / 2], &FULL.replace("CgD/", "!"), &FULL.replace("\"-1\"", "\"x\"")]
    {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains("kubelet_internal_checkpoint has an unknown form"), "{error}");
    }
}

#[tokio::test]
async fn a_missing_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let error = super::read(folder.path()).await.unwrap_err();
    assert!(matches!(error, CheckpointError::Unreadable(_)), "{error}");
    std::fs::write(folder.path().join(FILE), FULL).unwrap();
    assert_eq!(super::read(folder.path()).await.unwrap().len(), 4);
}
