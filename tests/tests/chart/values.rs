//! values.yaml and values.schema.json say the same, and every value is explained.

use std::{collections::BTreeSet, fs, mem};

use lockstep_tests::root;
use serde_json::{Map, Value};

fn read(file: &str) -> String {
    fs::read_to_string(root().join("charts/lockstep").join(file)).expect("a file of the chart")
}

fn schema() -> Value {
    serde_json::from_str(&read("values.schema.json")).expect("JSON")
}

#[test]
fn each_value_has_a_comment() {
    let text = read("values.yaml");
    let lines: Vec<&str> = text.lines().collect();
    let depth = |line: &str| line.len() - line.trim_start().len();
    let mut without = Vec::new();
    // Below a value with a comment of its own there is nothing more to explain.
    let mut explained: Option<usize> = None;
    for (number, line) in lines.iter().enumerate() {
        let word = line.trim_start();
        if word.is_empty() || word.starts_with('#') {
            continue;
        }
        if explained.is_some_and(|above| depth(line) > above) {
            continue;
        }
        let above = number.checked_sub(1).map_or("", |number| lines[number].trim_start());
        explained = above.starts_with("# -- ").then_some(depth(line)).or_else(|| {
            // A comment of two lines.
            let before = number.checked_sub(2).map_or("", |number| lines[number].trim_start());
            (above.starts_with('#') && before.starts_with("# -- ")).then_some(depth(line))
        });
        let opens = word.ends_with(':');
        if explained.is_none() && !opens {
            without.push(word);
        }
    }
    assert!(without.is_empty(), "values.yaml does not explain {without:?}");
}

#[test]
fn the_schema_knows_exactly_the_values_that_exist() {
    let values = lockstep_api::manifest::parse(&read("values.yaml")).expect("YAML");
    let schema = schema();
    compare(&values, &schema, &schema, "");
}

/// Compares the keys of an object of values with those of its schema.
fn compare(values: &Value, schema: &Value, whole: &Value, path: &str) {
    let schema = followed(schema, whole);
    let (Some(values), Some(known)) = (values.as_object(), schema["properties"].as_object()) else { return };
    for (key, value) in values {
        let Some(of_key) = known.get(key) else { panic!("values.schema.json lacks {path}{key}") };
        compare(value, of_key, whole, &format!("{path}{key}."));
    }
    // `global` is the parent chart's, and Kubernetes' own types are not spelled out.
    let spelled_out = !["podSecurityContext.", "securityContext.", "affinity.", "resources."].contains(&path);
    let missing: Vec<_> = known.keys().filter(|key| !values.contains_key(*key) && *key != "global").collect();
    assert!(!spelled_out || missing.is_empty(), "values.yaml lacks {path}{missing:?}");
}

#[test]
fn the_schema_describes_each_value_as_its_comment_does() {
    let schema = schema();
    let comments = comments(&read("values.yaml"));
    assert!(comments.len() > 60, "{comments:?}");
    for (path, comment) in comments {
        let found = path.iter().fold(&schema, |at, key| &followed(at, &schema)["properties"][key.as_str()]);
        assert_eq!(found["description"], *comment, "values.schema.json: {path:?}");
    }
}

/// Returns the comment right above each key, by the key's path.
fn comments(values: &str) -> Vec<(Vec<String>, String)> {
    let mut found = Vec::new();
    let mut path: Vec<(usize, String)> = Vec::new();
    let mut comment = String::new();
    for line in values.lines() {
        let word = line.trim_start();
        if let Some(text) = word.strip_prefix('#') {
            let first = text.strip_prefix(" -- ");
            comment = first.map_or_else(|| format!("{comment} {}", text.trim()).trim().to_owned(), str::to_owned);
            continue;
        }
        let above = mem::take(&mut comment);
        let Some((key, _)) = word.split_once(':') else { continue };
        let depth = line.len() - word.len();
        path.retain(|(of_parent, _)| *of_parent < depth);
        path.push((depth, key.to_owned()));
        if !above.is_empty() {
            found.push((path.iter().map(|(_, key)| key.clone()).collect(), above));
        }
    }
    found
}

#[test]
fn the_schema_refuses_unknown_keys_everywhere() {
    let schema = schema();
    let mut open = BTreeSet::new();
    visit(&schema, "", &mut open);
    assert!(open.is_empty(), "unknown keys pass in {open:?}");
}

fn visit(schema: &Value, path: &str, open: &mut BTreeSet<String>) {
    let Some(fields) = schema.as_object() else { return };
    if fields.contains_key("properties") && !closed(fields) {
        open.insert(path.to_owned());
    }
    for (key, below) in fields {
        visit(below, &format!("{path}/{key}"), open);
    }
}

fn closed(fields: &Map<String, Value>) -> bool {
    fields.get("additionalProperties") == Some(&Value::Bool(false))
}

fn followed<'a>(schema: &'a Value, whole: &'a Value) -> &'a Value {
    let Some(to) = schema["$ref"].as_str() else { return schema };
    whole.pointer(to.trim_start_matches('#')).unwrap_or_else(|| panic!("{to} leads nowhere"))
}
