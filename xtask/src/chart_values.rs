//! Generates parts of the chart's README from `Chart.yaml` and `values.yaml`, in the form of helm-docs: title, version,
//! requirements, and a table of the values, from each key's `# --` comment and default. Pure.

use std::fmt::Write as _;

use anyhow::{Context as _, bail, ensure};

const CHART: [&str; 2] =
    ["<!-- chart: written by `cargo xtask manifests` from Chart.yaml -->\n", "<!-- end of chart -->\n"];
const VALUES: [&str; 2] =
    ["<!-- values: written by `cargo xtask manifests` from values.yaml -->\n", "<!-- end of values -->\n"];

pub fn readme(readme: &str, chart: &str, values: &str) -> anyhow::Result<String> {
    let with_chart = between(readme, CHART, &header(chart)?)?;
    between(&with_chart, VALUES, &table(values)?)
}

fn between(text: &str, [begin, end]: [&str; 2], content: &str) -> anyhow::Result<String> {
    let missing = || format!("deploy/chart/README.md has no line {begin}, or behind it none {end}");
    let (before, rest) = text.split_once(begin).with_context(missing)?;
    let (_, after) = rest.split_once(end).with_context(missing)?;
    Ok(format!("{before}{begin}{content}{end}{after}"))
}

fn header(chart: &str) -> anyhow::Result<String> {
    let field = |name: &str| {
        let start = format!("{name}: ");
        let found = chart.lines().find_map(|line| line.strip_prefix(&start));
        found
            .map(|text| text.trim_matches('"'))
            .with_context(|| format!("deploy/chart/Chart.yaml has no {name}"))
    };
    Ok(format!(
        "# {}\n\nVersion: `{}` · Type: `{}` · AppVersion: `{}`\n\n{}\n\n## Requirements\n\nKubernetes: `{}`\n",
        field("name")?,
        field("version")?,
        field("type")?,
        field("appVersion")?,
        field("description")?,
        field("kubeVersion")?,
    ))
}

struct Value {
    key: String,
    depth: usize,
    description: String,
    default: String,
    /// The lines of a default that needs several.
    below: Vec<String>,
}

/// A row for each value. A value without a description is an error, because otherwise it would be missing in the
/// README.
fn table(values: &str) -> anyhow::Result<String> {
    let mut table = "\n## Values\n\n| Key | Type | Default | Description |\n|---|---|---|---|\n".to_owned();
    for value in described(values)? {
        let default = value.in_one_line()?;
        let (key, description) = (value.key, value.description.replace('|', "\\|"));
        writeln!(table, "| {key} | {} | `{default}` | {description} |", kind(&default))?;
    }
    table.push('\n');
    Ok(table)
}

fn described(values: &str) -> anyhow::Result<Vec<Value>> {
    let mut found: Vec<Value> = Vec::new();
    let (mut path, mut comment): (Vec<&str>, String) = (Vec::new(), String::new());
    let mut default_may_go_on = false;
    for line in values.lines() {
        let text = line.trim_start();
        let depth = (line.len() - text.len()) / 2;
        if let Some(last) = found
            .last_mut()
            .filter(|last| default_may_go_on && (depth > last.depth || text.starts_with("- ")))
        {
            last.below.push(text.to_owned());
        } else if let Some(said) = text.strip_prefix("# -- ") {
            said.clone_into(&mut comment);
        } else if let (Some(more), false) = (text.strip_prefix("# "), comment.is_empty()) {
            comment = format!("{comment} {more}");
        } else if let Some((key, default)) = text.split_once(':').filter(|_| !text.starts_with('#')) {
            path.truncate(depth);
            path.push(key);
            let (key, default) = (path.join("."), default.trim().to_owned());
            let description = std::mem::take(&mut comment);
            default_may_go_on = !description.is_empty();
            ensure!(default_may_go_on || default.is_empty(), "{key} is not described in values.yaml");
            if default_may_go_on {
                found.push(Value { key, depth, description, default, below: Vec::new() });
            }
        }
    }
    Ok(found)
}

impl Value {
    fn in_one_line(&self) -> anyhow::Result<String> {
        let items = || self.below.iter().map(|line| line.strip_prefix("- "));
        Ok(match self.default.as_str() {
            "" if self.below.is_empty() => bail!("{} has no default in values.yaml", self.key),
            "" if items().all(|item| item.is_some()) => {
                format!("[{}]", items().flatten().collect::<Vec<_>>().join(", "))
            }
            "" => format!("{{{}}}", self.below.join(", ")),
            text if text.starts_with(['"', '[', '{']) || kind(text) != "string" => text.to_owned(),
            text => format!("\"{text}\""),
        })
    }
}

/// The type of a value, as helm-docs names it.
fn kind(default: &str) -> &'static str {
    match default {
        "true" | "false" => "bool",
        _ if default.parse::<i64>().is_ok() => "int",
        _ if default.starts_with('[') => "list",
        _ if default.starts_with('{') => "object",
        _ => "string",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHART_YAML: &str = "name: it\ndescription: What it does\ntype: application\nversion: 0.1.0\nappVersion: 0.1.0\n\
                              kubeVersion: \">=1.33.0-0\"\n";

    #[test]
    fn each_value_has_its_type_its_default_and_its_description() {
        let values = "# Of a.\na:\n  # -- First\n  # line.\n  b: 1\n  # -- More.\n  c:\n    d: 2\n    e: {f: g}\n\
                      \x20 # -- List.\n  t:\n  - {k: v}\n  - {k: w}\n  # -- Last.\n  z: {}\n# -- Top.\nq: false\n\
                      # -- This | that.\nr: some\n";
        let rows = "| a.b | int | `1` | First line. |\n| a.c | object | `{d: 2, e: {f: g}}` | More. |\n\
                    | a.t | list | `[{k: v}, {k: w}]` | List. |\n| a.z | object | `{}` | Last. |\n\
                    | q | bool | `false` | Top. |\n| r | string | `\"some\"` | This \\| that. |\n\n";
        let expected =
            format!("\n## Values\n\n| Key | Type | Default | Description |\n|---|---|---|---|\n{rows}");
        assert_eq!(table(values).unwrap(), expected);
        let ([a, b], [c, d]) = (CHART, VALUES);
        let written = readme(&format!("{a}old\n{b}Between\n{c}old\n{d}After\n"), CHART_YAML, values).unwrap();
        let header = "# it\n\nVersion: `0.1.0` · Type: `application` · AppVersion: `0.1.0`\n\nWhat it does\n\n\
                      ## Requirements\n\nKubernetes: `>=1.33.0-0`\n";
        assert_eq!(written, format!("{a}{header}{b}Between\n{c}{expected}{d}After\n"));
    }

    #[test]
    fn a_missing_description_or_field_is_named() {
        let error = table("a:\n  # -- Is.\n  b: 1\n  c: 2\n").unwrap_err().to_string();
        assert_eq!(error, "a.c is not described in values.yaml");
        let error = table("# -- Is.\nb:\nc:\n").unwrap_err().to_string();
        assert_eq!(error, "b has no default in values.yaml");
        let error = header("name: it\n").unwrap_err().to_string();
        assert_eq!(error, "deploy/chart/Chart.yaml has no version");
        assert!(readme("", CHART_YAML, "").is_err());
    }
}
