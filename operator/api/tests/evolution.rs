//! The API changes only by additions: what the released CRD takes, the present one takes.

use std::io::Read as _;

use flate2::read::GzDecoder;
use lockstep_api::crds;
use serde_json::{Value, json};

/// The CRD of the last release. A release replaces it.
const RELEASED: &[u8] = include_bytes!("../testdata/released.yaml.gz");
const OPEN: &str = "x-kubernetes-preserve-unknown-fields";

fn released() -> Value {
    let mut text = String::new();
    GzDecoder::new(RELEASED).read_to_string(&mut text).expect("a gzip file of text");
    schema(&text)
}

fn present() -> Value {
    let (_, text) = crds().into_iter().find(|(name, _)| *name == "trainingjobs.yaml").expect("a CRD of this name");
    schema(&text)
}

fn schema(crd: &str) -> Value {
    let mut crd: Value = serde_saphyr::from_str(crd).expect("YAML");
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take()
}

/// Lists what `old` takes and `new` does not.
fn narrowed(old: &Value, new: &Value, path: &str, found: &mut Vec<String>) {
    if old["type"] != new["type"] {
        found.push(format!("{path}: its type was {}, and is {}", old["type"], new["type"]));
        return;
    }
    if new[OPEN] == true {
        return;
    }
    if old[OPEN] == true {
        found.push(format!("{path}: it was open"));
    }
    if let Some(words) = new["enum"].as_array() {
        let known = old["enum"].as_array();
        let gone = known.into_iter().flatten().filter(|word| !words.contains(word));
        found.extend(gone.map(|word| format!("{path}: it does not take {word} any more")));
        if known.is_none() {
            found.push(format!("{path}: it took any value"));
        }
    }
    for (bound, is_tighter) in [
        ("maximum", (|old, new| new < old) as fn(f64, f64) -> bool),
        ("maxLength", |old, new| new < old),
        ("maxItems", |old, new| new < old),
        ("minimum", |old, new| new > old),
        ("minLength", |old, new| new > old),
        ("minItems", |old, new| new > old),
    ] {
        let none = if bound.starts_with("max") { f64::INFINITY } else { f64::NEG_INFINITY };
        let (before, now) = (old[bound].as_f64().unwrap_or(none), new[bound].as_f64().unwrap_or(none));
        if is_tighter(before, now) {
            found.push(format!("{path}: {bound} was {before}, and is {now}"));
        }
    }
    let before = old["required"].as_array().cloned().unwrap_or_default();
    let required = new["required"].as_array().into_iter().flatten();
    found.extend(
        required.filter(|name| !before.contains(name)).map(|name| format!("{path}: {name} was not required before")),
    );
    for (name, field) in old["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match new["properties"].get(name) {
            Some(present) => narrowed(field, present, &path, found),
            None => found.push(format!("{path}: it is gone")),
        }
    }
    for inner in ["items", "additionalProperties"] {
        if old[inner].is_object() {
            narrowed(&old[inner], &new[inner], &format!("{path}[]"), found);
        }
    }
}

fn list(old: &Value, new: &Value) -> Vec<String> {
    let mut found = Vec::new();
    narrowed(old, new, "", &mut found);
    found
}

#[test]
fn what_the_released_crd_takes_the_present_one_takes() {
    let found = list(&released(), &present());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn each_change_that_takes_something_away_is_found() {
    let old = json!({"type": "object", "properties": {
        "wire": {"type": "string", "enum": ["f32", "bf16"]},
        "name": {"type": "string", "maxLength": 9},
        "steps": {"type": "integer", "minimum": 1},
    }});
    let changed = |pointer: &str, value: Value| {
        let mut new = old.clone();
        *new.pointer_mut(pointer).expect("a part of the schema") = value;
        list(&old, &new)
    };
    for (pointer, value, expected) in [
        ("/properties/wire/enum", json!(["f32"]), ".wire: it does not take \"bf16\" any more"),
        ("/properties/name/maxLength", json!(8), ".name: maxLength was 9, and is 8"),
        ("/properties/steps/minimum", json!(2), ".steps: minimum was 1, and is 2"),
        ("/properties/steps/type", json!("string"), ".steps: its type was \"integer\", and is \"string\""),
    ] {
        assert_eq!(changed(pointer, value), [expected]);
    }
    let mut without = old.clone();
    without["properties"].as_object_mut().expect("fields").remove("wire");
    assert_eq!(list(&old, &without), [".wire: it is gone"]);
    let mut required = old.clone();
    required["required"] = json!(["name"]);
    assert_eq!(list(&old, &required), [": \"name\" was not required before"]);
    let mut narrower = old.clone();
    narrower["properties"]["name"]["enum"] = json!(["a"]);
    assert_eq!(list(&old, &narrower), [".name: it took any value"]);
}

#[test]
fn additions_are_no_change_that_takes_something_away() {
    let old = json!({"type": "object", "properties": {"wire": {"type": "string", "enum": ["f32"], "maxLength": 4}}});
    let new = json!({"type": "object", "properties": {
        "wire": {"type": "string", "enum": ["f32", "f16"], "maxLength": 8},
        "topology": {"type": "object", OPEN: true},
    }});
    assert_eq!(list(&old, &new), Vec::<String>::new());
}
