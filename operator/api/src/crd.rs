//! The CRDs: the schemas that the Rust types derive, adapted to Kubernetes.

use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use crate::{TrainingGroup, TrainingJob, rules, rules::Rule, schema::object, template};

/// Greatest number of containers in a template. It lets the API server bound the cost of rules over
/// them.
const MAX_CONTAINERS: u64 = 32;
/// Longest spelling of a size in bytes.
const MAX_SIZE_LENGTH: u64 = 20;

/// The columns of `kubectl get` for a job: name, type and field. It prints the columns in [`WIDE`]
/// only with `-o wide`.
const JOB_COLUMNS: [(&str, &str, &str); 14] = [
    ("Phase", "string", ".status.phase"),
    ("Workers", "string", ".status.display.workers"),
    ("Progress", "string", ".status.display.progress"),
    ("Samples/s", "string", ".status.display.samplesPerSecond"),
    ("Efficiency", "string", ".status.display.efficiency"),
    ("Restarts", "string", ".status.display.restarts"),
    ("Age", "date", ".metadata.creationTimestamp"),
    ("Step", "integer", ".status.progress.step"),
    ("Loss", "string", ".status.display.loss"),
    ("ETA", "string", ".status.display.remaining"),
    ("Parallel", "string", ".status.display.parallel"),
    ("Goodput", "string", ".status.display.goodput"),
    ("Generation", "integer", ".status.membership.generation"),
    ("Reason", "string", ".status.reason"),
];
/// The same for a record.
const GROUP_COLUMNS: [(&str, &str, &str); 4] = [
    ("Generation", "integer", ".status.progress.generation"),
    ("World", "integer", ".status.progress.worldSize"),
    ("Step", "integer", ".status.progress.step"),
    ("Age", "date", ".metadata.creationTimestamp"),
];
/// Columns for which a narrow terminal has no room. A record's columns all fit.
const WIDE: [&str; 7] = ["Step", "Loss", "ETA", "Parallel", "Goodput", "Generation", "Reason"];

/// The CRDs as files: name and YAML text.
#[must_use]
pub fn crds() -> Vec<(&'static str, String)> {
    [("trainingjobs.yaml", training_job()), ("traininggroups.yaml", training_group())]
        .into_iter()
        .map(|(file, crd)| (file, serde_saphyr::to_string(&crd).expect("a CRD has string keys and finite numbers")))
        .collect()
}

/// The schema of a whole `TrainingJob`. It has the parts of a pod that the CRD leaves open.
pub(crate) fn job_schema() -> Value {
    let mut crd = with_whole_pod();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take()
}

fn training_job() -> Value {
    let mut crd = with_whole_pod();
    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    template::open(&mut schema["properties"]["spec"]["properties"]["template"]["properties"]["spec"]);
    crd
}

fn with_whole_pod() -> Value {
    let mut crd = value_of::<TrainingJob>();
    crd["spec"]["versions"][0]["additionalPrinterColumns"] = columns(&JOB_COLUMNS, &WIDE);
    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let spec = &mut schema["properties"]["spec"];
    spec["x-kubernetes-validations"] = validations(&rules::spec_rules());
    for size in [
        "/communication/properties/bucketBytes",
        "/benchmark/properties/collectives/properties/minBytes",
        "/benchmark/properties/collectives/properties/maxBytes",
    ] {
        let size = spec["properties"].pointer_mut(size).and_then(Value::as_object_mut).expect("a field of the spec");
        size.insert("maxLength".to_owned(), MAX_SIZE_LENGTH.into());
        // The API server gives no default to a null that may stay.
        if size.contains_key("default") {
            size.remove("nullable");
        }
    }
    let template = &mut spec["properties"]["template"];
    let description = template["description"].take();
    strip_descriptions(template);
    template["description"] = description;
    template["properties"]["spec"]["properties"]["containers"]["maxItems"] = MAX_CONTAINERS.into();
    template["properties"]["spec"]["properties"]["containers"]["items"]["properties"]["name"]["maxLength"] = 63.into();
    // The derived schema of metadata has no fields, so the API server would drop labels and
    // annotations.
    template["properties"]["metadata"] = json!({
        "type": "object",
        "nullable": true,
        "properties": {
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    });
    let pod_fields = object(&template["properties"]["spec"], "properties").into_iter().flat_map(Map::keys);
    let mut rules = rules::object_rules();
    rules.push(rules::template_rule(pod_fields.map(String::as_str)));
    schema["x-kubernetes-validations"] = validations(&rules);
    crd
}

fn training_group() -> Value {
    let mut crd = value_of::<TrainingGroup>();
    crd["spec"]["versions"][0]["additionalPrinterColumns"] = columns(&GROUP_COLUMNS, &[]);
    crd
}

fn columns(columns: &[(&str, &str, &str)], wide: &[&str]) -> Value {
    let one = |(name, kind, path): &(&str, &str, &str)| {
        let mut column = json!({"name": name, "type": kind, "jsonPath": path});
        if wide.contains(name) {
            column["priority"] = 1.into();
        }
        column
    };
    columns.iter().map(one).collect()
}

fn value_of<K: CustomResourceExt>() -> Value {
    let mut crd = serde_json::to_value(K::crd()).expect("a CRD is JSON");
    adapt(&mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
    crd
}

fn validations(rules: &[Rule]) -> Value {
    let one = |Rule { rule, message, field }: &Rule| {
        let mut validation = json!({"rule": rule, "message": message});
        if let Some(field) = field {
            validation["fieldPath"] = (*field).into();
        }
        validation
    };
    rules.iter().map(one).collect()
}

/// Drops number formats that Kubernetes does not know, shortens single-precision defaults to their
/// shortest decimal form, and joins the lines of descriptions.
fn adapt(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint")) {
                fields.remove("format");
            }
            if let Some(default) = fields.get_mut("default") {
                shorten_numbers(default);
            }
            if let Some(Value::String(text)) = fields.get_mut("description") {
                *text = text.split('\n').collect::<Vec<_>>().join(" ");
            }
            fields.values_mut().for_each(adapt);
        }
        Value::Array(items) => items.iter_mut().for_each(adapt),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn shorten_numbers(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let double = number.as_f64().expect("just asked");
            #[allow(clippy::cast_possible_truncation, reason = "asks whether the number was a single before")]
            let single = double as f32;
            if let (true, Ok(short)) = (f64::from(single) == double, single.to_string().parse::<f64>()) {
                *value = short.into();
            }
        }
        Value::Object(fields) => fields.values_mut().for_each(shorten_numbers),
        Value::Array(items) => items.iter_mut().for_each(shorten_numbers),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Drops the descriptions of Kubernetes' own types. With them the CRD would be too large for
/// `kubectl apply`.
fn strip_descriptions(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    fields.remove("description");
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(strip_descriptions);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(key) {
            strip_descriptions(inner);
        }
    }
}
