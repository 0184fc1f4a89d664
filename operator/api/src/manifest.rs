//! A manifest as text and as a value, before it is a [`crate::ValidJob`].

use std::sync::LazyLock;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter};
use lockstep_launch::InvalidField;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::{crd, schema};

/// What a manifest may say: the CRD's schema with that of Kubernetes for the metadata.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let mut schema = crd::job_schema();
    schema["properties"]["metadata"] = metadata();
    let required = schema["required"].as_array_mut().expect("spec is required");
    required.extend(["apiVersion", "kind", "metadata"].map(Value::from));
    schema["properties"]["apiVersion"]["enum"] = vec!["lockstep.dev/v1alpha1"].into();
    schema["properties"]["kind"]["enum"] = vec!["TrainingJob"].into();
    schema
});

/// Sets one field, as in `spec.training.epochs=3`. The schema decides whether the text is a number, a text, true or false;
/// lists and objects are written as YAML, an item of a list is named by its number.
///
/// # Errors
/// The field is unknown, or the text is nothing that it takes; the manifest is left as it was.
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
    let mut place = &mut changed;
    for (depth, part) in parts.iter().enumerate() {
        let is_list = schema::at(&SCHEMA, &parts[..depth])?["type"] == "array";
        place = enter(place, part, is_list)
            .map_err(|accepted| InvalidField::new(&parts[..depth].join("."), part, accepted))?;
    }
    *place = value;
    *manifest = changed;
    Ok(())
}

/// Reads YAML (or JSON, which is YAML) of one document.
///
/// # Errors
/// It is neither, or of several documents.
pub fn parse(yaml: &str) -> Result<Value, InvalidField> {
    serde_saphyr::from_str(yaml).map_err(|error| match error.without_snippet() {
        serde_saphyr::Error::MultipleDocuments { .. } => {
            InvalidField::new("manifest", "several YAML documents", "one: put the TrainingJob into a file of its own")
        }
        _ => InvalidField::new("manifest", "not readable", error),
    })
}

/// Everything in the manifest that the schema does not accept.
pub(crate) fn problems(manifest: &Value) -> Vec<InvalidField> {
    schema::problems(manifest, &SCHEMA, "")
}

fn typed(path: &str, text: &str, schema: &Value) -> Result<Value, InvalidField> {
    if schema["type"] == "string" {
        return Ok(text.into());
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return Ok(text.parse::<u64>().map_or_else(|_| text.into(), Value::from));
    }
    serde_saphyr::from_str(text).map_err(|error| InvalidField::new(path, text, error))
}

/// The place of one part of a path, made where it is missing.
fn enter<'a>(place: &'a mut Value, part: &str, is_list: bool) -> Result<&'a mut Value, String> {
    if place.is_null() {
        *place = if is_list { Vec::<Value>::new().into() } else { Map::new().into() };
    }
    match place {
        Value::Object(fields) => Ok(fields.entry(part).or_insert(Value::Null)),
        Value::Array(items) => {
            let length = items.len();
            let item = part.parse::<usize>().ok().and_then(|index| items.get_mut(index));
            item.ok_or_else(|| format!("the list has {length} items, counted from 0"))
        }
        _ => Err("a plain value: it has no fields".to_owned()),
    }
}

fn metadata() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let settings = settings
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .with_transform(OptionalIntOrString);
    let mut schema = settings.into_generator().into_root_schema_for::<ObjectMeta>().to_value();
    schema["required"] = vec!["name"].into();
    schema
}
