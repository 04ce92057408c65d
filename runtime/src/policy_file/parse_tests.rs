use super::*;

const GOOD: &str = "apiVersion: kerf.dev/v1alpha1\nkind: GpuPolicy\nmetadata: {name: a}\nspec:\n  defaultIsolation: memory\n  isolation: {memory: [mig]}\n";
const NODE: &str = "apiVersion: kerf.dev/v1alpha1\nkind: GpuNodePolicy\nmetadata: {name: n}\nspec:\n  gpus:\n  - kinds: [mig]\n";

fn errors(text: &str) -> Vec<String> {
    let errors = parse(Path::new("p.yaml"), text).err().unwrap_or_default();
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn a_file_may_have_several_documents_of_both_kinds() {
    let text = format!("# two\n---\n{GOOD}---\n\n--- # the nodes\n{NODE}...\n---\n# the end\n");
    let content = parse(Path::new("p.yaml"), &text).unwrap();
    assert_eq!((content.pods.len(), content.nodes.len()), (1, 1));
    assert_eq!(content.nodes[0].document.lines_before, 10);
}

#[test]
fn json_is_read_as_yaml_is() {
    let text = "{\n\t\"apiVersion\": \"kerf.dev/v1alpha1\", \"kind\": \"GpuNodePolicy\",\n\t\"metadata\": {\"name\": \"n\"},\n\t\"spec\": {\"gpus\": []}\n}\n";
    assert_eq!(errors(text), Vec::<String>::new());
}

/// Line and column count in the file, whichever document has the mistake, and every mistake of a file is reported.
#[test]
fn a_mistake_has_its_file_line_and_column() {
    let texts = [
        GOOD.replace("defaultIsolation", "defaultIsolaton"),
        format!("{GOOD}---\n{}", NODE.replace("gpus", "gpu")),
        format!("{GOOD}---\n{}", NODE.replace("[mig]", "[mps, mps]")),
        GOOD.replace("mig", "vgpu"),
        GOOD.replace("memory: [mig]", "memory: [mig, time-slicing], hardware: [mps]"),
        GOOD.replace("spec:", "spec:\n  match: {namespaces: []}"),
        GOOD.replace("spec:", "spec:\n  sizes:\n    minGb: 10\n    maxGb: 5\n  maxPerPod: {memoryGb: 4}"),
        GOOD.replace("metadata: {name: a}", "metadata: {name: a}\nmetadata: {name: b}"),
        GOOD.replace("GpuPolicy", "Pod"),
        "spec: [".to_owned(),
        "just a text\n".to_owned(),
        "# nothing\n---\n".to_owned(),
    ];
    let reported: Vec<String> = texts.iter().map(|text| errors(text).join("\n")).collect();
    insta::assert_snapshot!(reported.join("\n\n"));
}

/// With several files the place is in the file that extends.
#[test]
fn a_mistake_in_an_inherited_field_is_reported_at_extends() {
    let child = |more: &str| {
        let name = "metadata: {name: b}\nspec:\n  extends: a\n";
        format!("apiVersion: kerf.dev/v1alpha1\nkind: GpuPolicy\n{name}{more}")
    };
    let reported = |base: &str, child: &str| {
        let texts =
            [("base.yaml", base), ("child.yaml", child)].map(|(path, text)| (path.into(), text.to_owned()));
        let checked = crate::policy_file::check_texts(Path::new("folder"), texts);
        checked.err().unwrap_or_default().iter().fold(String::new(), |all, error| all + &format!("{error}\n"))
    };
    let deny = "apiVersion: kerf.dev/v1alpha1\nkind: GpuPolicy\nmetadata: {name: a}\nspec: {deny: no GPUs}\n";
    insta::assert_snapshot!(
        [
            reported(GOOD, &child("")),
            reported(GOOD, &child("  sizes: {minGb: 9, maxGb: 5}\n")),
            reported(&format!("{GOOD}  maxPerPod: {{slices: 5}}\n"), &child("  quota: {slices: 2}\n")),
            reported(&format!("{GOOD}  quota: {{slices: 2}}\n"), &child("  maxPerPod: {slices: 5}\n")),
            reported(GOOD, &child("  maxConut: 1\n")),
            reported(GOOD, &child("").replace("extends: a", "extends: c")),
            reported(GOOD, &child("").replace("extends: a", "extends: b")),
            reported(deny, &child("")),
            reported(GOOD, &child("").replace("{name: b}", "{name: a}")),
            reported("spec: [", &child("")),
        ]
        .join("\n")
    );
}

/// Damage of the kind that editors and merges leave; the fuzz target has more.
#[test]
fn no_text_makes_the_reader_panic() {
    let text = format!("{GOOD}---\n{NODE}");
    for end in 0..text.len() {
        drop(parse(Path::new("p.yaml"), &text[..end]));
        drop(parse(Path::new("p.yaml"), &text[end..]));
        for noise in ["\t", "---", "\u{feff}", "&a *a", "{", "\0", "- "] {
            drop(parse(Path::new("p.yaml"), &format!("{}{noise}{}", &text[..end], &text[end..])));
        }
    }
}
