//! The dashboard of `deploy/monitoring`, as far as its panels ask Prometheus.

use std::collections::BTreeSet;

use anyhow::Context as _;
use serde::Deserialize;

use crate::cluster::root;

/// The dashboard.
#[derive(Debug, Deserialize)]
pub struct Dashboard {
    /// What a reader can choose.
    pub templating: Templating,
    /// Rows, and what is in them.
    pub panels: Vec<Panel>,
}

/// The variables.
#[derive(Debug, Deserialize)]
pub struct Templating {
    /// In the order in which they stand above the panels.
    pub list: Vec<Variable>,
}

/// A variable.
#[derive(Debug, Deserialize)]
pub struct Variable {
    /// Its name in queries.
    pub name: String,
    /// `datasource` or `query`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `label_values(metric, label)`, for one of the type `query`.
    pub definition: Option<String>,
    /// Where its values come from.
    pub datasource: Option<Source>,
}

/// A reference to a data source.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub struct Source {
    /// The data source, or the variable that chooses it.
    pub uid: String,
}

/// A panel.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Panel {
    /// Its number, of which there is one.
    pub id: u32,
    /// `row`, `stat`, `timeseries` or `table`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its title.
    pub title: String,
    /// Where it lies.
    pub grid_pos: Place,
    /// Whom it asks; absent for a row.
    pub datasource: Option<Source>,
    /// What it asks.
    #[serde(default)]
    pub targets: Vec<Target>,
    /// How values are shown.
    #[serde(default)]
    pub field_config: FieldConfig,
}

/// A place of 24 columns and any number of rows.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Place {
    /// The first column.
    pub x: u32,
    /// The first row.
    pub y: u32,
    /// Columns.
    pub w: u32,
    /// Rows.
    pub h: u32,
}

/// A query of a panel.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Its name within the panel.
    pub ref_id: String,
    /// `PromQL`, with variables.
    pub expr: String,
    /// What a line is called: text with `{{label}}`.
    #[serde(default)]
    pub legend_format: String,
    /// Whom it asks.
    pub datasource: Option<Source>,
}

/// How a panel shows values.
#[derive(Debug, Default, Deserialize)]
pub struct FieldConfig {
    /// For all fields without a rule of their own.
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
    /// Reads the file that is shipped.
    pub fn read() -> anyhow::Result<Self> {
        let path = root().join("deploy/monitoring/kerf.json");
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("failed to read {}", path.display()))
    }

    /// The panels that ask something.
    pub fn asking(&self) -> impl Iterator<Item = &Panel> {
        self.panels.iter().filter(|panel| panel.kind != "row")
    }

    /// A query with every variable at "All".
    #[must_use]
    pub fn for_all(&self, expr: &str) -> String {
        let names = self.templating.list.iter().map(|variable| format!("${}", variable.name));
        names.fold(expr.to_owned(), |expr, name| expr.replace(&name, ".*"))
    }
}

impl Target {
    /// The variables that the query names.
    #[must_use]
    pub fn variables(&self) -> BTreeSet<&str> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let parts = self.expr.split('$').skip(1);
        parts.map(|part| &part[..part.find(|c| !is_name(c)).unwrap_or(part.len())]).collect()
    }
}
