//! The table of the chart's values in its README, made of `values.yaml`: of each key's `# --` comment and default. Pure.

use std::fmt::Write as _;

use anyhow::{Context as _, ensure};

/// Around the table.
const BEGIN: &str = "<!-- values: written by `cargo xtask manifests` from values.yaml -->\n";
const END: &str = "<!-- end of values -->\n";

/// The README with the table of these values.
pub fn readme(readme: &str, values: &str) -> anyhow::Result<String> {
    let (before, rest) =
        readme.split_once(BEGIN).context("deploy/chart/README.md has no place for the values")?;
    let (_, after) = rest.split_once(END).context("deploy/chart/README.md has no end of the values")?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", table(values)?))
}

/// Fails on a value that is not described.
fn table(values: &str) -> anyhow::Result<String> {
    let mut table = "\n| value | default | |\n|---|---|---|\n".to_owned();
    let mut path: Vec<&str> = Vec::new();
    let mut comment = String::new();
    // What is below a key that is described is its default.
    let mut below: Option<usize> = None;
    for line in values.lines() {
        let text = line.trim_start();
        let depth = (line.len() - text.len()) / 2;
        if below.is_some_and(|described| depth > described || text.starts_with("- ")) {
            continue;
        }
        if let Some(said) = text.strip_prefix("# -- ") {
            said.clone_into(&mut comment);
        } else if let (Some(more), false) = (text.strip_prefix("# "), comment.is_empty()) {
            comment = format!("{comment} {more}");
        } else if let Some((key, default)) = text.split_once(':').filter(|_| !text.starts_with('#')) {
            path.truncate(depth);
            path.push(key);
            let (default, described) = (default.trim(), std::mem::take(&mut comment));
            below = (!described.is_empty()).then_some(depth);
            ensure!(
                below.is_some() || default.is_empty(),
                "{} is not described in values.yaml",
                path.join(".")
            );
            if below.is_some() {
                let shown =
                    if default.is_empty() { "see values.yaml".to_owned() } else { format!("`{default}`") };
                writeln!(table, "| `{}` | {shown} | {} |", path.join("."), described.replace('|', "\\|"))?;
            }
        }
    }
    table.push('\n');
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_stands_with_its_default_and_what_it_is_for() {
        let values = "# Of a.\na:\n  # -- First\n  # line.\n  b: 1\n  # -- More.\n  c:\n    d: 2\n    e: {f: g}\n\
                      \x20 # -- List.\n  t:\n  - {k: v}\n  # -- Last.\n  z: {}\n# -- Top.\nq: false\n";
        let expected = "\n| value | default | |\n|---|---|---|\n| `a.b` | `1` | First line. |\n| `a.c` | see values.yaml | More. |\n\
                        | `a.t` | see values.yaml | List. |\n| `a.z` | `{}` | Last. |\n| `q` | `false` | Top. |\n\n";
        assert_eq!(table(values).unwrap(), expected);
        let written = readme(&format!("Before\n{BEGIN}old\n{END}After\n"), values).unwrap();
        assert_eq!(written, format!("Before\n{BEGIN}{expected}{END}After\n"));
    }

    #[test]
    fn a_value_that_is_not_described_is_named() {
        let error = table("a:\n  # -- Is.\n  b: 1\n  c: 2\n").unwrap_err().to_string();
        assert_eq!(error, "a.c is not described in values.yaml");
    }
}
