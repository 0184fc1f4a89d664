//! A manifest as text and as a value, before it becomes a [`crate::ValidJob`].

use std::sync::LazyLock;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_launch::InvalidField;
use serde_json::{Map, Number, Value};
use serde_saphyr::{Options, UserMessageFormatter};

use crate::{crd, schema};

/// The schema of a manifest: the CRD's, with Kubernetes' own for the metadata.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let mut schema = crd::job_schema();
    schema["properties"]["metadata"] = schema::schema_of::<ObjectMeta>();
    let required = schema["required"].as_array_mut().expect("spec is required");
    required.extend(["apiVersion", "kind", "metadata"].map(Value::from));
    schema["properties"]["apiVersion"]["enum"] = vec!["lockstep.dev/v1alpha1"].into();
    schema["properties"]["kind"]["enum"] = vec!["TrainingJob"].into();
    schema
});

/// Sets one field, as in `spec.training.epochs=3`. The schema decides whether the text is a number,
/// a text, true or false. Lists and objects are written as YAML. A number names an item of a list.
///
/// # Errors
/// The field is unknown, or it does not take the text. Then the manifest stays as it was.
pub fn set(manifest: &mut Value, assignment: &str) -> Result<(), InvalidField> {
    let example = "FIELD=VALUE, such as spec.training.epochs=3";
    let (path, text) = assignment.split_once('=').ok_or_else(|| InvalidField::new(assignment, "no value", example))?;
    let parts: Vec<&str> = path.split('.').collect();
    let schema = schema::at(&SCHEMA, &parts)?;
    let value = typed(path, text, schema)?;
    if let Some(problem) = schema::problems(&value, schema, path).into_iter().next() {
        return Err(problem);
    }
    let mut changed = manifest.clone();
    let mut target = &mut changed;
    for (depth, part) in parts.iter().enumerate() {
        let is_list = schema::at(&SCHEMA, &parts[..depth])?["type"] == "array";
        target = enter(target, part, is_list)
            .map_err(|accepted| InvalidField::new(&parts[..depth].join("."), part, accepted))?;
    }
    *target = value;
    *manifest = changed;
    Ok(())
}

/// Reads YAML as kubectl reads it. JSON is YAML too. Documents without content do not count, and
/// scalars are those of YAML 1.1.
///
/// # Errors
/// The text is no YAML, or it does not have exactly one document with content.
pub fn parse(yaml: &str) -> Result<Value, InvalidField> {
    let text = yaml.trim_start_matches('\u{feff}');
    let documents = read(text).map_err(|problem| InvalidField::new("manifest", problem, "YAML or JSON"))?;
    match <[Value; 1]>::try_from(documents) {
        Ok([document]) => Ok(document),
        Err(none) if none.is_empty() => Err(InvalidField::new("manifest", "empty", "a TrainingJob as YAML or JSON")),
        Err(_) => Err(InvalidField::new(
            "manifest",
            "several YAML documents",
            "one: put the TrainingJob into a file of its own",
        )),
    }
}

/// Reads every document that is not null.
fn read(yaml: &str) -> Result<Vec<Value>, String> {
    let documents =
        serde_saphyr::from_multiple_with_options::<Value>(yaml, options()).map_err(|error| one_line(&error))?;
    Ok(documents.into_iter().map(with_whole_numbers).collect())
}

fn options() -> Options {
    serde_saphyr::options! { legacy_octal_numbers: true }
}

/// Writes the problem and its position on one line.
fn one_line(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().render_with_formatter(&UserMessageFormatter);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Converts numbers as JSON does on its way to the API server: `1.0` and `7e2` arrive as 1 and 700.
fn with_whole_numbers(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::Number(whole(&number).map_or(number, Number::from)),
        Value::Array(items) => items.into_iter().map(with_whole_numbers).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, with_whole_numbers(value))).collect(),
        plain => plain,
    }
}

/// Returns the number as an integer if it has no fraction and 64 bits hold it.
#[allow(clippy::cast_possible_truncation, reason = "the bounds are those of the type")]
fn whole(number: &Number) -> Option<i64> {
    let float = number.as_f64().filter(|_| number.is_f64())?;
    let bound = -(i64::MIN as f64);
    (float.fract() == 0.0 && (-bound..bound).contains(&float)).then_some(float as i64)
}

/// Lists everything in the manifest that the schema does not accept.
pub(crate) fn problems(manifest: &Value) -> Vec<InvalidField> {
    let mut found = schema::problems(manifest, &SCHEMA, "");
    let gives = |name: &str| manifest["metadata"][name].as_str().is_some_and(|text| !text.is_empty());
    if manifest["metadata"].is_object() && !gives("name") && !gives("generateName") {
        found.push(InvalidField::new("metadata.name", "missing", "required: a text, or metadata.generateName"));
    }
    found
}

fn typed(path: &str, text: &str, schema: &Value) -> Result<Value, InvalidField> {
    if schema["type"] == "string" {
        return Ok(text.into());
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return Ok(text.parse::<u64>().map_or_else(|_| text.into(), Value::from));
    }
    let value = serde_saphyr::from_str_with_options(text, options());
    value.map(with_whole_numbers).map_err(|error| InvalidField::new(path, text, one_line(&error)))
}

/// Returns the value at one part of a path. A missing value is made.
fn enter<'a>(value: &'a mut Value, part: &str, is_list: bool) -> Result<&'a mut Value, String> {
    if value.is_null() {
        *value = if is_list { Vec::<Value>::new().into() } else { Map::new().into() };
    }
    match value {
        Value::Object(fields) => Ok(fields.entry(part).or_insert(Value::Null)),
        Value::Array(items) => {
            let length = items.len();
            let item = part.parse::<usize>().ok().and_then(|index| items.get_mut(index));
            item.ok_or_else(|| format!("the list has {length} items, counted from 0"))
        }
        _ => Err("a plain value: it has no fields".to_owned()),
    }
}
