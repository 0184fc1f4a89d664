//! Compares a value with a structural schema as strictly as the API server does. The result tells a
//! person what is wrong.

use kube::core::schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter};
use lockstep_launch::{ByteSize, InvalidField};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value};

/// Deepest nesting that is followed. The schema of a pod is not half as deep.
const MAX_DEPTH: usize = 64;
/// Longest value that an error quotes, in characters.
const MAX_QUOTED: usize = 60;

/// The structural schema of a type of Kubernetes.
pub(crate) fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let settings = settings
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .with_transform(OptionalIntOrString);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Returns the schema's object with the given keyword, if there is one.
pub(crate) fn object<'a>(schema: &'a Value, keyword: &str) -> Option<&'a Map<String, Value>> {
    schema.get(keyword)?.as_object()
}

/// Lists everything in `value` that `schema` does not accept. `path` names the value.
pub(crate) fn problems(value: &Value, schema: &Value, path: &str) -> Vec<InvalidField> {
    let mut found = Vec::new();
    walk(value, schema, path, MAX_DEPTH, &mut found);
    found
}

/// Returns the schema of the value at `path` (`spec.training.epochs`) in a value with the given
/// schema.
///
/// # Errors
/// The first part of the path that names no field.
pub(crate) fn at<'a>(schema: &'a Value, path: &[&str]) -> Result<&'a Value, InvalidField> {
    let mut here = schema;
    for (depth, part) in path.iter().enumerate() {
        let parent = path[..depth].join(".");
        here = match (object(here, "properties"), here.get("additionalProperties"), here.get("items")) {
            (Some(properties), _, _) if properties.contains_key(*part) => &properties[*part],
            (_, Some(values @ Value::Object(_)), _) => values,
            (_, _, Some(items)) if part.parse::<usize>().is_ok() => items,
            (_, _, Some(_)) => {
                return Err(InvalidField::new(&parent, part, "a list: write the number of an item, from 0"));
            }
            (Some(properties), _, _) => return Err(unknown(&join(&parent, part), part, properties)),
            (None, _, _) => return Err(InvalidField::new(&parent, part, "a plain value: it has no fields")),
        };
    }
    Ok(here)
}

fn walk(value: &Value, schema: &Value, path: &str, depth: usize, found: &mut Vec<InvalidField>) {
    let mut refuse = |accepted: String| found.push(InvalidField::new(path, quoted(value), accepted));
    if depth == 0 {
        return refuse("less deeply nested".to_owned());
    }
    if value.is_null() {
        // The API server drops a null of a field that may be absent. The check of the parent object
        // has found out whether it may.
        return;
    }
    if schema["x-kubernetes-int-or-string"] == true {
        match value {
            Value::String(text) if schema.get("pattern").is_some() => {
                if let Err(error) = text.parse::<ByteSize>() {
                    refuse(error.to_string());
                }
            }
            Value::String(_) => {}
            Value::Number(number) if number.is_i64() => {}
            _ => refuse("a whole number or a text".to_owned()),
        }
        return;
    }
    if let Some(accepted) = schema["enum"].as_array() {
        if !accepted.contains(value) {
            refuse(format!("one of {}", listed(accepted)));
        }
        return;
    }
    match (schema["type"].as_str(), value) {
        (Some("object"), Value::Object(fields)) => walk_object(fields, schema, path, depth, found),
        (Some("array"), Value::Array(items)) => {
            if !within(items.len() as f64, schema, "minItems", "maxItems") {
                return refuse(range(schema, "minItems", "maxItems", " items"));
            }
            for (index, item) in items.iter().enumerate() {
                walk(item, &schema["items"], &format!("{path}[{index}]"), depth - 1, found);
            }
        }
        (Some("string"), Value::String(text)) => {
            if !within(text.chars().count() as f64, schema, "minLength", "maxLength") {
                refuse(range(schema, "minLength", "maxLength", " characters"));
            }
        }
        // The API server's greatest integers have 64 bits with a sign.
        (Some("integer"), Value::Number(number)) if number.is_i64() => {
            if !within(number.as_f64().unwrap_or(f64::INFINITY), schema, "minimum", "maximum") {
                refuse(format!("a whole number, {}", range(schema, "minimum", "maximum", "")));
            }
        }
        (Some("number"), Value::Number(number)) => {
            if !within(number.as_f64().unwrap_or(f64::INFINITY), schema, "minimum", "maximum") {
                refuse(format!("a number, {}", range(schema, "minimum", "maximum", "")));
            }
        }
        (Some("boolean"), Value::Bool(_)) | (None, _) => {}
        (Some("integer"), _) => refuse(format!("a whole number{}", bounds(schema))),
        (Some("number"), _) => refuse(format!("a number{}", bounds(schema))),
        (Some("string"), _) => refuse("a text; put it in quotes".to_owned()),
        (Some("boolean"), _) => refuse("true or false".to_owned()),
        (Some("array"), _) => refuse("a list".to_owned()),
        (Some(_), _) => refuse(format!("fields: {}", names(object(schema, "properties")))),
    }
}

fn walk_object(fields: &Map<String, Value>, schema: &Value, path: &str, depth: usize, found: &mut Vec<InvalidField>) {
    let none = Map::new();
    let properties = object(schema, "properties").unwrap_or(&none);
    let open = schema["x-kubernetes-preserve-unknown-fields"] == true;
    for (name, value) in fields {
        let path = join(path, name);
        match (properties.get(name), schema.get("additionalProperties")) {
            (Some(inner), _) => walk(value, inner, &path, depth - 1, found),
            (None, Some(inner)) => walk(value, inner, &path, depth - 1, found),
            (None, None) if open => {}
            (None, None) => found.push(unknown(&path, name, properties)),
        }
    }
    let given = |name: &str| fields.get(name).is_some_and(|value| !value.is_null());
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !given(name) {
            found.push(InvalidField::new(&join(path, name), "missing", accepted_by(&properties[name])));
        }
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let names: Vec<_> =
            choices.iter().flat_map(|choice| choice["required"].as_array().into_iter().flatten()).cloned().collect();
        if names.iter().filter_map(Value::as_str).filter(|name| given(name)).count() != 1 {
            found.push(InvalidField::new(path, quoted_fields(fields), format!("exactly one of {}", listed(&names))));
        }
    }
}

fn unknown(path: &str, name: &str, known: &Map<String, Value>) -> InvalidField {
    let accepted = match nearest(name, known.keys().map(String::as_str)) {
        Some(meant) => format!("no such field; did you mean `{meant}`?"),
        None => format!("no such field; known are {}", names(Some(known))),
    };
    InvalidField::new(path, "unknown", accepted)
}

/// Returns the known name that `typed` most likely means.
fn nearest<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = typed.chars().count() / 3 + 1;
    known
        .map(|name| (distance(&typed.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, name)| name)
}

/// Counts the single-character insertions, deletions and substitutions that turn `a` into `b`
/// (Levenshtein, 1966).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

fn within(size: f64, schema: &Value, least: &str, most: &str) -> bool {
    schema[least].as_f64().is_none_or(|least| size >= least) && schema[most].as_f64().is_none_or(|most| size <= most)
}

fn bounds(schema: &Value) -> String {
    match range(schema, "minimum", "maximum", "") {
        range if range.is_empty() => range,
        range => format!(", {range}"),
    }
}

fn range(schema: &Value, least: &str, most: &str, unit: &str) -> String {
    match (schema.get(least).map(plain), schema.get(most).map(plain)) {
        (Some(least), Some(most)) => format!("{least} to {most}{unit}"),
        (Some(least), None) => format!("at least {least}{unit}"),
        (None, Some(most)) => format!("at most {most}{unit}"),
        (None, None) => String::new(),
    }
}

/// Writes a bound as a person does: 1 rather than 1.0.
fn plain(bound: &Value) -> String {
    bound.as_f64().map_or_else(|| bound.to_string(), |number| number.to_string())
}

/// Describes the values that a missing field accepts.
fn accepted_by(schema: &Value) -> String {
    match (schema["enum"].as_array(), schema["type"].as_str()) {
        (Some(accepted), _) => format!("required: one of {}", listed(accepted)),
        (None, Some("integer")) => format!("required: a whole number{}", bounds(schema)),
        (None, Some("number")) => format!("required: a number{}", bounds(schema)),
        (None, Some("string")) => "required: a text".to_owned(),
        (None, Some("array")) => "required: a list".to_owned(),
        (None, Some("object")) => format!("required, with fields: {}", names(object(schema, "properties"))),
        (None, _) => "required".to_owned(),
    }
}

fn listed(values: &[Value]) -> String {
    values
        .iter()
        .filter(|value| !value.is_null())
        .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        .collect::<Vec<_>>()
        .join(", ")
}

fn names(properties: Option<&Map<String, Value>>) -> String {
    properties.map_or_else(String::new, |known| known.keys().map(String::as_str).collect::<Vec<_>>().join(", "))
}

fn quoted_fields(fields: &Map<String, Value>) -> String {
    if fields.is_empty() { "none".to_owned() } else { names(Some(fields)) }
}

fn quoted(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), |text| format!("\"{text}\""));
    match text.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
