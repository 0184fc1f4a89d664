//! Rendered objects as values.

use lockstep_tests::{chart, skip};
use serde_json::Value;

/// Renders the chart. If this machine has no helm, prints one loud line and returns `None`.
///
/// # Panics
/// helm refuses the values.
pub(crate) fn rendered(test: &str, words: &[&str]) -> Option<Vec<Value>> {
    helm(test)?;
    let text = chart::rendered(chart::RELEASE, words).unwrap_or_else(|error| panic!("{error:#}"));
    Some(objects(&text))
}

/// Returns helm's message, if it refuses the values.
pub(crate) fn refused(test: &str, words: &[&str]) -> Option<String> {
    helm(test)?;
    match chart::rendered(chart::RELEASE, words) {
        Ok(_) => panic!("helm takes {words:?}"),
        Err(error) => Some(format!("{error:#}")),
    }
}

fn helm(test: &str) -> Option<()> {
    chart::program_of_the_cluster("helm", &["version"]).map(drop).map_err(|why| skip(test, &format!("{why:#}"))).ok()
}

/// Reads all objects but the CRDs, which a test of lockstep-api compares.
pub(crate) fn objects(yaml: &str) -> Vec<Value> {
    let documents = yaml.split("\n---").filter(|text| !text.contains("\nkind: CustomResourceDefinition"));
    let with_content = documents.filter(|text| text.lines().any(|line| line.starts_with("kind: ")));
    with_content
        .map(|text| lockstep_api::manifest::parse(text).unwrap_or_else(|error| panic!("{error}: {text}")))
        .collect()
}

/// Returns the only object of this kind whose name ends so.
pub(crate) fn only<'a>(objects: &'a [Value], kind: &str, end: &str) -> &'a Value {
    let found: Vec<_> = objects.iter().filter(|object| object["kind"] == kind && name(object).ends_with(end)).collect();
    assert_eq!(found.len(), 1, "{kind} …{end}");
    found[0]
}

/// Returns the kinds of the objects.
pub(crate) fn kinds(objects: &[Value]) -> Vec<&str> {
    objects.iter().map(|object| object["kind"].as_str().expect("a kind")).collect()
}

/// Returns the name of an object.
pub(crate) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("a name")
}
