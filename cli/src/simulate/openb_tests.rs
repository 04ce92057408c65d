use super::*;

const NODES: &str = "\
sn,cpu_milli,memory_mib,gpu,model
a,16000,65536,2,T4
b,32000,131072,4,A100
";

fn decisions(pods: &str) -> String {
    lines(NODES, pods)
}

fn lines(nodes: &str, pods: &str) -> String {
    crate::output::lines(run(nodes, pods).unwrap())
}

fn nodes_error(nodes: &str) -> String {
    run(nodes, "").unwrap_err().to_string()
}

fn pods_error(line: &str) -> String {
    run(NODES, &format!("1000 1024 1 500 -\n\n{line}\n")).unwrap_err().to_string()
}

#[test]
fn each_pod_gets_a_line_in_the_judges_form() {
    let pods = "\
4000 1024 2 1000 A100
1000 1024 1 600 T4
1000 1024 1 600 T4
1000 1024 1 600 T4|V100

1000 1024 1 400 T4
1000 1024 1 1000 V100
12000 1024 0 0 -
";
    let expected = "\
0 place 1 0,1
1 place 0 0
2 place 0 1
3 reject
4 place 0 0
5 reject
6 place 0 -
";
    assert_eq!(decisions(pods), expected);
}

#[test]
fn pods_with_shares_fill_gpus_completely() {
    let decisions = decisions(&"1000 1024 1 470 -\n".repeat(13));
    assert_eq!(decisions.lines().filter(|line| line.contains("place")).count(), 12, "{decisions}");
    assert!(decisions.ends_with("12 reject\n"));
}

#[test]
fn columns_are_found_by_name_even_with_windows_line_ends() {
    let nodes = "\u{feff}model,x,gpu,memory_mib,cpu_milli\r\nT4,7,1,1024,1000\r\n";
    assert_eq!(lines(nodes, "1000 1024 1 10 T4\r\n"), "0 place 0 0\n");
}

#[test]
fn bad_nodes_are_reported_with_line_and_field() {
    let with = |row: &str| format!("sn,cpu_milli,memory_mib,gpu,model\na,1,1,1,T4\n{row}\n");
    for (nodes, message) in [
        (
            String::new(),
            "nodes: no column \"cpu_milli\" in the first line; a file has cpu_milli, memory_mib, gpu and model",
        ),
        (
            "cpu_milli,memory_mib,model\n".to_owned(),
            "nodes: no column \"gpu\" in the first line; a file has cpu_milli, memory_mib, gpu and model",
        ),
        ("cpu_milli,memory_mib,gpu,model\n1,1,0,\n".to_owned(), "nodes: no node has a GPU"),
        (with("b,1,1,1"), "nodes: line 3: model is missing: write as many fields as the first line has"),
        (with("b,one,1,1,T4"), "nodes: line 3: cpu_milli: \"one\" is no whole number from 0 to 4294967295"),
        (with("b,1,-1,1,T4"), "nodes: line 3: memory_mib: \"-1\" is no whole number from 0 to 4294967295"),
        (with("b,1,1,65,T4"), "nodes: line 3: gpu: \"65\" is no whole number from 0 to 64"),
    ] {
        assert_eq!(nodes_error(&nodes), message);
    }
    let many: Vec<String> = (0..65).map(|model| format!("a,1,1,1,m{model}")).collect();
    let error = nodes_error(&format!("sn,cpu_milli,memory_mib,gpu,model\n{}\n", many.join("\n")));
    assert_eq!(error, "nodes: line 66: model: more than 64 GPU models: split the fleet");
}

#[test]
fn bad_pods_are_reported_with_line_and_field() {
    for (line, message) in [
        (
            "1 1 1 10",
            "pods: line 3: 4 words; write `cpu_milli memory_mib num_gpu gpu_milli gpu_spec`, with - for any model",
        ),
        (
            "1 1 1 10 - 7",
            "pods: line 3: 6 words; write `cpu_milli memory_mib num_gpu gpu_milli gpu_spec`, with - for any model",
        ),
        ("x 1 1 10 -", "pods: line 3: cpu_milli: \"x\" is no whole number from 0 to 4294967295"),
        ("1 1.5 1 10 -", "pods: line 3: memory_mib: \"1.5\" is no whole number from 0 to 4294967295"),
        ("1 1 256 1000 -", "pods: line 3: num_gpu: \"256\" is no whole number from 0 to 255"),
        ("1 1 1 1001 -", "pods: line 3: gpu_milli: \"1001\" is no whole number from 0 to 1000"),
        (
            "1 1 1 0 -",
            "pods: line 3: num_gpu 1, gpu_milli 0: write 1 GPU with 1 to 1000, or several with 1000 each",
        ),
        (
            "1 1 2 500 -",
            "pods: line 3: num_gpu 2, gpu_milli 500: write 1 GPU with 1 to 1000, or several with 1000 each",
        ),
    ] {
        assert_eq!(pods_error(line), message);
    }
}
