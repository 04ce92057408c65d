use super::*;

fn conversion(file: &str) -> Converted {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/convert/testdata").join(file);
    let mut converted = Converted::default();
    read(&path, &mut converted).unwrap();
    converted
}

fn converted(file: &str) -> String {
    let Converted { documents, problems, .. } = conversion(file);
    let documents = text(&documents, ObjectFormat::Yaml).unwrap();
    let problems: Vec<String> =
        problems.iter().map(|problem| format!("not converted: {problem}\n")).collect();
    format!("{}{}{}", documents, if problems.is_empty() { "" } else { "---\n" }, problems.concat())
}

#[test]
fn a_mig_parted_configuration_becomes_a_policy_for_the_nodes_with_its_label() {
    insta::assert_snapshot!(converted("mig-parted.yaml"));
}

#[test]
fn mig_parted_fields_without_an_equivalent_are_reported_by_field() {
    insta::assert_snapshot!(converted("mig-parted-odd.yaml"));
}

#[test]
fn the_nos_annotations_of_a_node_become_a_policy_for_the_node() {
    insta::assert_snapshot!(converted("nos-nodes.yaml"));
}

#[test]
fn shared_gpus_of_device_plugins_become_rules() {
    insta::assert_snapshot!(converted("device-plugin.yaml"));
}

#[test]
fn time_slicing_of_mig_devices_joins_the_rule_for_their_gpus() {
    insta::assert_snapshot!(converted("device-plugin-mig.yaml"));
}

#[test]
fn each_configuration_of_a_config_map_is_for_the_nodes_with_its_label() {
    insta::assert_snapshot!(converted("device-plugin-config-map.yaml"));
}

#[test]
fn two_configurations_with_one_policy_name_are_reported_by_both_fields() {
    insta::assert_snapshot!(converted("one-name.yaml"));
}

#[test]
fn every_converted_policy_can_be_read() {
    for file in [
        "mig-parted.yaml",
        "nos-nodes.yaml",
        "device-plugin.yaml",
        "device-plugin-mig.yaml",
        "device-plugin-config-map.yaml",
    ] {
        for document in converted(file).split("---\n").filter(|text| text.contains("\nkind: ")) {
            let read: NodePolicyDocument = serde_saphyr::from_str(document).unwrap();
            assert!(read.problems().is_empty(), "{document}");
        }
    }
}

#[test]
fn json_output_is_one_policy_or_a_list() {
    let json = |documents: &[NodePolicyDocument]| -> Value {
        serde_json::from_str(&text(documents, ObjectFormat::Json).unwrap()).unwrap()
    };
    let documents = conversion("device-plugin-config-map.yaml").documents;
    let list = json(&documents);
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("List"), &json!("v1")));
    assert_eq!(list["items"].as_array().map(Vec::len), Some(documents.len()));
    assert_eq!(json(&documents[..1]), list["items"][0]);
    assert_eq!(list["items"][0]["kind"], "GpuNodePolicy");
}

#[test]
fn empty_files_and_unreadable_files_are_refused_in_one_line() {
    for (text, expected) in [
        ("", "there is nothing in it; give mig-parted's"),
        ("---\n---\n", "there is nothing in it"),
        ("[1,", "failed to parse"),
    ] {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let error = read(file.path(), &mut Converted::default()).unwrap_err().to_string();
        assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
    }
}
