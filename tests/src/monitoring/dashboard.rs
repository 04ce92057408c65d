//! The dashboard of `deploy/monitoring`: the parts that concern its queries.

use std::collections::BTreeSet;

use anyhow::Context as _;
use serde::Deserialize;

use crate::cluster::root;

#[derive(Debug, Deserialize)]
pub struct Dashboard {
    /// The variables that a reader can choose.
    pub templating: Templating,
    /// Rows, and the panels in them.
    pub panels: Vec<Panel>,
}

#[derive(Debug, Deserialize)]
pub struct Templating {
    /// The variables in the order in which they are shown above the panels.
    pub list: Vec<Variable>,
}

#[derive(Debug, Deserialize)]
pub struct Variable {
    pub name: String,
    /// Its type: `datasource` or `query`.
    #[serde(rename = "type")]
    pub kind: String,
    /// For the type `query`: `label_values(metric, label)`.
    pub definition: Option<String>,
    /// The data source of its values.
    pub datasource: Option<Source>,
}

/// A reference to a data source.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub struct Source {
    /// The data source, or the variable that chooses it.
    pub uid: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Panel {
    /// Its number, which is unique in the dashboard.
    pub id: u32,
    /// Its type: `row`, `stat`, `timeseries` or `table`.
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub grid_pos: Place,
    /// The data source that it queries; `None` for a row.
    pub datasource: Option<Source>,
    #[serde(default)]
    pub targets: Vec<Target>,
    #[serde(default)]
    pub field_config: FieldConfig,
}

/// A position and size on a grid of 24 columns and any number of rows.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Place {
    pub x: u32,
    pub y: u32,
    /// The width in columns of the grid.
    pub w: u32,
    /// The height in rows of the grid.
    pub h: u32,
}

/// A query of a panel.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Its name within the panel.
    pub ref_id: String,
    /// A `PromQL` expression with variables of the dashboard.
    pub expr: String,
    /// The name of a line: text with `{{label}}`.
    #[serde(default)]
    pub legend_format: String,
    pub datasource: Option<Source>,
}

/// How a panel shows values.
#[derive(Debug, Default, Deserialize)]
pub struct FieldConfig {
    /// The display of all fields without an override.
    #[serde(default)]
    pub defaults: Field,
}

/// How a field is shown.
#[derive(Debug, Default, Deserialize)]
pub struct Field {
    /// Grafana's name of the unit.
    pub unit: Option<String>,
}

impl Dashboard {
    /// Reads the dashboard's file that is shipped.
    pub fn read() -> anyhow::Result<Self> {
        let path = root().join("deploy/monitoring/kerf.json");
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("failed to read {}", path.display()))
    }

    /// The panels with queries, which are all but rows.
    pub fn asking(&self) -> impl Iterator<Item = &Panel> {
        self.panels.iter().filter(|panel| panel.kind != "row")
    }

    /// The query with every variable set to "All".
    #[must_use]
    pub fn for_all(&self, expr: &str) -> String {
        let names = self.templating.list.iter().map(|variable| format!("${}", variable.name));
        names.fold(expr.to_owned(), |expr, name| expr.replace(&name, ".*"))
    }
}

impl Target {
    /// The variables in the query.
    #[must_use]
    pub fn variables(&self) -> BTreeSet<&str> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let parts = self.expr.split('$').skip(1);
        parts.map(|part| &part[..part.find(|c| !is_name(c)).unwrap_or(part.len())]).collect()
    }
}
