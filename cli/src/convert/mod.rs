//! `kerf policy convert`: converts other systems' node configuration to node policies with fixed layouts.
//!
//! | module | what it reads |
//! |---|---|
//! | `mig_parted` | NVIDIA mig-parted's configuration, as the MIG manager has it |
//! | `nos` | nos's annotations on Nodes, and its list of geometries |
//! | `device_plugin` | the sharing of NVIDIA's device plugin, and of nos's |

mod device_plugin;
mod mig_parted;
mod nos;

use crate::counted::counted;
use crate::input::{self, Files, InputError};
use crate::output::ObjectFormat;
use anyhow::bail;
use clap::Args as ClapArgs;
use kerf_core::names::PciBusId;
use kerf_core::policy::NodePolicyDocument;
use kerf_core::{keys, nvidia_keys};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  # What nos has written on the cluster's nodes
  kubectl get nodes -o yaml | kerf policy convert -f -

  # The configuration of NVIDIA's MIG manager
  kubectl -n gpu-operator get configmap default-mig-parted-config -o yaml | kerf policy convert -f - > nodes.yaml";

const KNOWN: &str =
    "give mig-parted's (mig-configs), the device plugin's (sharing), or Nodes with nos's annotations";

const GPU_NAMES: &str =
    "write all, or a list of UUIDs or of PCI bus ids, as kerf gpu list prints them on the node";

/// What to convert.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    files: Files,
    /// The form. JSON is one object, which for several policies is a List.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = ObjectFormat::Yaml)]
    output: ObjectFormat,
}

#[derive(Debug, Default)]
struct Converted {
    documents: Vec<NodePolicyDocument>,
    /// The field from which each policy was made, by the policy's name.
    fields: BTreeMap<String, String>,
    /// What has no equivalent in kerf, with the field and the remedy.
    problems: Vec<String>,
}

/// Prints the policies. Parts that cannot be converted go to standard error, so that standard output can be applied.
/// They make the command fail.
pub fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
    let mut converted = Converted::default();
    let mut problems = Vec::new();
    for file in args.files.paths() {
        read(file, &mut converted)?;
        problems
            .extend(converted.problems.drain(..).map(|problem| format!("{}: {problem}", input::place(file))));
    }
    write!(out, "{}", text(&converted.documents, args.output)?)?;
    for problem in &problems {
        eprintln!("{problem}");
    }
    if !problems.is_empty() {
        let were = if problems.len() == 1 { "was" } else { "were" };
        bail!("{} {were} not converted", counted(problems.len(), "part"));
    }
    Ok(())
}

fn text(documents: &[NodePolicyDocument], format: ObjectFormat) -> anyhow::Result<String> {
    match (format, documents) {
        (ObjectFormat::Yaml, _) => {
            let with_comment =
                |document| Ok(format!("{}{}", comment(document), ObjectFormat::Yaml.render(document)?));
            Ok(documents.iter().map(with_comment).collect::<anyhow::Result<Vec<_>>>()?.join("---\n"))
        }
        (ObjectFormat::Json, []) => Ok(String::new()),
        (ObjectFormat::Json, [document]) => format.render(document),
        (ObjectFormat::Json, _) => {
            format.render(&json!({"apiVersion": "v1", "kind": "List", "items": documents}))
        }
    }
}

/// The comment warns the admin, because the source may not have named all nodes that it applied to.
fn comment(document: &NodePolicyDocument) -> &'static str {
    let nodes = &document.spec.nodes;
    if nodes.is_all() {
        "# For all nodes: where only some had this configuration, name them in spec.match.\n"
    } else if nodes.labels.contains_key(nvidia_keys::CONFIG) {
        "# For nodes with the label: label those too that had this configuration as the default.\n"
    } else {
        ""
    }
}

fn read(path: &Path, converted: &mut Converted) -> Result<(), InputError> {
    let documents = input::documents(path)?;
    if documents.iter().all(Value::is_null) {
        let place = input::place(path);
        return Err(InputError::Bad(format!("{place}: there is nothing in it; {KNOWN}")));
    }
    for (number, document) in documents.iter().enumerate() {
        let field = if documents.len() == 1 { String::new() } else { format!("document {}", number + 1) };
        converted.take(document, None, &field);
    }
    Ok(())
}

impl Converted {
    /// Converts a document. `field` is its place in another document, and `key` its key in a `ConfigMap`.
    fn take(&mut self, document: &Value, key: Option<&str>, field: &str) {
        let kind = document["kind"].as_str().unwrap_or_default();
        if let Some(items) = document["items"].as_array() {
            for item in items {
                self.take(item, key, field);
            }
        } else if kind == "ConfigMap" {
            self.config_map(document);
        } else if kind == "Node" {
            nos::node(document, self);
        } else if let Some(configurations) = document["mig-configs"].as_object() {
            mig_parted::configurations(configurations, field, self);
        } else if document["sharing"].is_object() {
            device_plugin::sharing(&document["sharing"], key, field, self);
        } else if nos::is_geometries(document) {
            self.problem(
                field,
                "these are geometries that GPUs can be cut to",
                "leave them out: kerf reads them of the driver",
            );
        } else {
            self.problem(field, "this is no configuration that is known", KNOWN);
        }
    }

    fn config_map(&mut self, map: &Value) {
        let name = map["metadata"]["name"].as_str().unwrap_or_default();
        for (key, text) in map["data"].as_object().into_iter().flatten() {
            let field = format!("ConfigMap {name}: data[{key}]");
            match serde_saphyr::from_str::<Value>(text.as_str().unwrap_or_default()) {
                Ok(document) => self.take(&document, Some(key), &field),
                Err(error) => self.problem(&field, &format!("it cannot be parsed ({error})"), "correct it"),
            }
        }
    }

    fn problem(&mut self, field: &str, what: &str, remedy: &str) {
        let place = if field.is_empty() { String::new() } else { format!("{field}: ") };
        self.problems.push(format!("{place}{what}; {remedy}"));
    }

    /// Adds a policy with this name for matching nodes, with these rules for GPUs. Two keys may lead to the same name.
    /// The second is a problem then, because only one policy of a name can exist.
    fn policy(&mut self, name: &str, field: &str, matched: &Value, rules: &[Value]) {
        let document = json!({
            "apiVersion": keys::API_VERSION, "kind": "GpuNodePolicy", "metadata": {"name": name},
            "spec": {"match": matched, "gpus": rules},
        });
        match serde_json::from_value::<NodePolicyDocument>(document) {
            Err(error) => self.problem(field, &error.to_string(), "correct it and convert again"),
            Ok(document) => match document.problems().into_iter().next() {
                Some(problem) => self.problem(field, &problem.to_string(), "correct it and convert again"),
                None => self.take_once(name, field, document),
            },
        }
    }

    fn take_once(&mut self, name: &str, field: &str, document: NodePolicyDocument) {
        if let Some(first) = self.fields.get(name) {
            let what = format!("its policy would be called {name}, as that of {first} is");
            let remedy = "give one of the two another name, in its nodes' label too, or leave one out";
            return self.problem(field, &what, remedy);
        }
        self.fields.insert(name.to_owned(), field.to_owned());
        self.documents.push(document);
    }
}

/// The GPUs that a list of NVIDIA's programs names: `all`, UUIDs or PCI bus ids. Indexes are rejected, because another
/// GPU may have the number after a boot.
fn select_gpus(devices: &Value, field: &str, into: &mut Converted) -> Option<Value> {
    let items = match devices {
        Value::String(all) if all == "all" => return Some(json!({})),
        Value::Array(items) if !items.is_empty() => {
            items.iter().map(|item| item.as_str().unwrap_or_default())
        }
        other => {
            into.problem(field, &format!("{other} names no GPUs"), GPU_NAMES);
            return None;
        }
    };
    if items.clone().all(|item| item.starts_with("GPU-")) {
        return Some(json!({"uuids": devices}));
    }
    if items.clone().all(|item| item.parse::<PciBusId>().is_ok()) {
        return Some(json!({"pciBusIds": devices}));
    }
    let what =
        "it names neither UUIDs alone nor PCI bus ids alone, and an index may be another GPU's after a boot";
    into.problem(field, what, GPU_NAMES);
    None
}

fn mig_rule(select: &Value, layout: &[Value]) -> Value {
    let mut rule = json!({"select": select, "kinds": ["mig"], "modeChange": "with-reset"});
    if !layout.is_empty() {
        rule["layout"] = json!(layout);
    }
    rule
}

#[cfg(test)]
mod tests;
