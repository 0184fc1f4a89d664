//! The Grafana boards of the chart, and their queries.

use std::fs;

use anyhow::Context as _;
use serde_json::Value;

use crate::root;

/// A query of a board.
#[derive(Clone, Debug)]
pub struct Query {
    /// The title of its panel, or the name of its annotation or variable.
    pub of: String,
    /// Grafana's name for the unit of its values; none for annotations and variables.
    pub unit: Option<String>,
    /// The text that Grafana shows beside a series.
    pub legend: String,
    /// The query, with Grafana's variables.
    pub text: String,
}

impl Query {
    /// Returns true if Grafana asks for names, which is no PromQL.
    #[must_use]
    pub fn asks_for_names(&self) -> bool {
        self.text.starts_with("label_values(")
    }

    /// Returns the query with values in for its variables.
    #[must_use]
    pub fn filled(&self, values: &[(&str, &str)]) -> String {
        values.iter().fold(self.text.clone(), |text, (name, value)| text.replace(&format!("${name}"), value))
    }
}

/// Returns the smallest and the greatest value that the unit of a query allows.
#[must_use]
pub fn range(query: &Query) -> (f64, f64) {
    match query.unit.as_deref() {
        // Its baseline is measured while other programs may take turns on the cores.
        Some("percentunit") if query.legend.starts_with("scaling") => (0.0, 2.0),
        Some("percentunit") => (0.0, 1.01),
        // Clocks of processes are read at different moments.
        Some("s") => (-2.0, 1e6),
        Some(_) | None => (0.0, f64::MAX),
    }
}

/// Reads a board: job, fleet or operator.
///
/// # Errors
/// There is no such file, or it is no JSON.
pub fn board(name: &str) -> anyhow::Result<Value> {
    let path = root().join(format!("charts/lockstep/files/dashboards/{name}.json"));
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// Returns all queries of a board.
#[must_use]
pub fn queries(board: &Value) -> Vec<Query> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for panel in list(&board["panels"]) {
        for target in list(&panel["targets"]) {
            found.push(Query {
                of: text(&panel["title"]),
                unit: panel["fieldConfig"]["defaults"]["unit"].as_str().map(str::to_owned),
                legend: text(&target["legendFormat"]),
                text: text(&target["expr"]),
            });
        }
    }
    let plain =
        |of: &Value, query: &Value| Query { of: text(of), unit: None, legend: String::new(), text: text(query) };
    let marks = list(&board["annotations"]["list"]);
    found.extend(marks.iter().map(|mark| plain(&mark["name"], &mark["target"]["expr"])));
    let variables = list(&board["templating"]["list"]);
    let asked = variables.iter().filter(|variable| variable["type"] == "query");
    found.extend(asked.map(|variable| plain(&variable["name"], &variable["query"]["query"])));
    found
}
