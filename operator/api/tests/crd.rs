//! The generated CRDs: they are current on disk, small, documented and bounded, and their rules
//! hold.

use std::{fs, path::Path, sync::LazyLock};

use kube::core::cel::Validator;
use lockstep_api::crds;
use serde_json::{Value, json};

#[allow(dead_code, reason = "another test compares the reader's verdicts")]
mod verdicts;

use verdicts::{Verdict, cases, forbidden_changes};

/// Largest file of a CRD. `kubectl apply` keeps a copy of the object in an annotation of at most
/// 256 KiB, and Helm keeps all objects of a release in one Secret of at most 1 MiB.
const MAX_CRD_BYTES: usize = 200_000;
/// The folders of the files, from the root of the repository.
const FOLDERS: [&str; 2] = ["crds", "charts/lockstep/files/crds"];

fn schema(file: &str) -> Value {
    let (_, text) = crds().into_iter().find(|(name, _)| *name == file).expect("a CRD of this name");
    let mut crd: Value = serde_saphyr::from_str(&text).expect("YAML");
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take()
}

static JOB_SCHEMA: LazyLock<Value> = LazyLock::new(|| schema("trainingjobs.yaml"));

fn job() -> Value {
    json!({
        "apiVersion": "lockstep.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "lenet"},
        "spec": {
            "replicas": 2,
            "managedBy": "lockstep.dev/operator",
            "model": {"name": "lenet5"},
            "dataset": {"format": "idx", "uri": "file:///data/mnist", "evaluationFraction": 0.1, "samples": 10000},
            "training": {"epochs": 5, "seed": 1},
            "communication": {"backend": "auto", "algorithm": "auto", "wire": "f32"},
            "checkpoint": {"uri": "file:///checkpoints", "intervalSeconds": 60, "keepLast": 3},
            "failurePolicy": {"backoffLimit": 3, "startupTimeoutSeconds": 600},
            "schedulingPolicy": {"gang": "none"},
            "cleanPodPolicy": "Running",
            "template": {"spec": {"containers": [{"name": "trainer"}]}},
        },
    })
}

fn benchmark() -> Value {
    let mut job = job();
    let spec = job["spec"].as_object_mut().expect("fields");
    spec.retain(|name, _| !matches!(name.as_str(), "model" | "dataset" | "training" | "checkpoint"));
    spec.insert("benchmark".to_owned(), json!({"collectives": {"minBytes": "1Ki", "maxBytes": "64Mi"}}));
    job
}

fn set(mut job: Value, pointer: &str, value: Value) -> Value {
    let (parent, name) = pointer.rsplit_once('/').expect("a path");
    job.pointer_mut(parent).expect("its parent exists")[name] = value;
    job
}

/// Returns the messages of the rules that the object breaks.
fn broken(job: &Value, old: Option<&Value>) -> Vec<String> {
    match Validator::new().validate(&JOB_SCHEMA, job, old) {
        Ok(()) => Vec::new(),
        Err(errors) => vec![errors.to_string()],
    }
}

#[test]
fn the_files_are_as_generated() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (folder, (name, text)) in FOLDERS.iter().flat_map(|folder| crds().into_iter().map(move |crd| (folder, crd))) {
        let path = root.join(folder).join(name);
        if std::env::var_os("UPDATE").is_some() {
            fs::create_dir_all(path.parent().expect("a folder")).expect("make the folder");
            fs::write(&path, &text).expect("write the CRD");
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(found == text, "{folder}/{name} is stale: UPDATE=1 cargo test -p lockstep-api");
    }
}

#[test]
fn plain_kubectl_apply_can_carry_the_crds() {
    for (name, text) in crds() {
        assert!(text.len() <= MAX_CRD_BYTES, "{name}: {} bytes", text.len());
    }
}

/// Visits the fields of a schema, except those inside the pod template and the conditions, which
/// Kubernetes documents.
fn visit(schema: &Value, path: &str, see: &mut impl FnMut(&str, &Value, bool)) {
    if path.ends_with(".template") || path.ends_with(".conditions") || path.ends_with(".metadata") {
        return;
    }
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let chosen = schema.get("oneOf").is_some();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        see(&path, field, chosen || required.contains(&json!(name)));
        visit(field, &path, see);
    }
    if schema.get("items").is_some() {
        visit(&schema["items"], &format!("{path}[]"), see);
    }
}

#[test]
fn every_field_has_a_description_and_states_its_default() {
    for file in ["trainingjobs.yaml", "traininggroups.yaml"] {
        let mut silent = Vec::new();
        visit(&schema(file), "", &mut |path, field, required| {
            let text = field["description"].as_str().unwrap_or_default();
            let of_kubernetes = matches!(path, ".apiVersion" | ".kind" | ".metadata");
            let defaulted = required || !path.starts_with(".spec.") || text.contains("Default: ");
            if !of_kubernetes && (text.is_empty() || !defaulted) {
                silent.push(format!("{path}: {text}"));
            }
        });
        assert!(silent.is_empty(), "{file}:\n{}", silent.join("\n"));
    }
}

#[test]
fn every_text_list_and_number_of_the_spec_is_bounded() {
    let mut unbounded = Vec::new();
    visit(&schema("trainingjobs.yaml")["properties"]["spec"], ".spec", &mut |path, field, _| {
        let bounded = match field["type"].as_str() {
            _ if field.get("enum").is_some() => true,
            Some("string") => field.get("maxLength").is_some(),
            Some("array") => field.get("maxItems").is_some(),
            Some("integer" | "number") => field.get("maximum").is_some(),
            _ => true,
        };
        if !bounded {
            unbounded.push(path.to_owned());
        }
    });
    assert!(unbounded.is_empty(), "{unbounded:?}");
}

/// The texts of the spec that a person makes up. Any other text is one of a few words, which the
/// schema lists.
const FREE_TEXTS: [&str; 7] = [
    ".spec.checkpoint.uri",
    ".spec.communication.interfaces[]",
    ".spec.dataset.cache",
    ".spec.dataset.uri",
    ".spec.managedBy",
    ".spec.model.weights.except[]",
    ".spec.model.weights.uri",
];

#[test]
fn every_choice_of_the_spec_is_an_enumeration() {
    let mut free = Vec::new();
    let mut see = |path: &str, field: &Value| {
        if field["type"] == "string" && field.get("enum").is_none() {
            free.push(path.to_owned());
        }
    };
    visit(&JOB_SCHEMA["properties"]["spec"], ".spec", &mut |path, field, _| {
        see(path, field);
        if field["items"].is_object() {
            see(&format!("{path}[]"), &field["items"]);
        }
    });
    free.sort();
    assert_eq!(free, FREE_TEXTS);
}

/// Fills in the defaults of a schema, as the API server does.
fn fill_in(value: &mut Value, schema: &Value) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let Some(fields) = value.as_object_mut() else { return };
        if let (true, Some(default)) = (fields.get(name).is_none_or(Value::is_null), field.get("default")) {
            fields.insert(name.clone(), default.clone());
        }
        if let Some(inner) = fields.get_mut(name) {
            fill_in(inner, field);
        }
    }
}

/// The verdicts of the whole table are compared with the API server's on a cluster.
#[test]
fn every_rule_about_a_new_job_refuses_a_job_of_the_table_of_verdicts() {
    let refused: String = cases()
        .filter(|(_, _, verdict)| *verdict == Verdict::Refused)
        .filter_map(|(manifest, _, _)| lockstep_api::manifest::parse(&manifest).ok())
        .flat_map(|mut job| {
            fill_in(&mut job, &JOB_SCHEMA);
            broken(&job, None)
        })
        .collect();
    let rules =
        [&JOB_SCHEMA["x-kubernetes-validations"], &JOB_SCHEMA["properties"]["spec"]["x-kubernetes-validations"]];
    let rules: Vec<&Value> = rules.into_iter().flat_map(|rules| rules.as_array().expect("rules")).collect();
    let of_new_jobs = rules.iter().filter(|rule| !rule["rule"].as_str().expect("CEL").contains("oldSelf"));
    let messages: Vec<&str> = of_new_jobs.map(|rule| rule["message"].as_str().expect("a message")).collect();
    assert!(messages.len() > 30, "{messages:?}");
    let untested: Vec<&&str> = messages.iter().filter(|message| !refused.contains(**message)).collect();
    assert!(untested.is_empty(), "{untested:#?}");
}

#[test]
fn a_good_job_breaks_no_rule() {
    assert_eq!(broken(&job(), None), Vec::<String>::new());
    assert_eq!(broken(&job(), Some(&job())), Vec::<String>::new());
    assert_eq!(broken(&benchmark(), None), Vec::<String>::new());
    assert_eq!(broken(&benchmark(), Some(&benchmark())), Vec::<String>::new());
}

#[test]
fn each_rule_refuses_its_own_mistake_and_nothing_else() {
    let long = "a".repeat(51);
    let cases = [
        ("/metadata/name", json!(long), json!("a".repeat(50)), "metadata.name"),
        ("/metadata/name", json!("a.b"), json!("a-b"), "metadata.name"),
        ("/metadata/name", json!("1a"), json!("a1"), "metadata.name"),
        ("/spec/model", json!({"name": "lenet5", "hidden": [3]}), json!({"name": "mlp", "hidden": [3]}), "hidden"),
        ("/spec/dataset", json!({"format": "idx"}), json!({"format": "glyphs"}), "required for format idx"),
        (
            "/spec/dataset",
            json!({"format": "glyphs", "ignoreIndex": 255}),
            json!({"format": "segmentation", "uri": "file:///a", "classes": 4, "ignoreIndex": 255}),
            "spec.dataset.ignoreIndex: only for segmentation",
        ),
        (
            "/spec/model",
            json!({"name": "lenet5", "width": 8}),
            json!({"name": "unet", "width": 8}),
            "spec.model.width: only for model unet",
        ),
        (
            "/spec/dataset",
            json!({"format": "cifar10", "uri": "file:///a", "classes": 10}),
            json!({"format": "idx", "uri": "file:///a", "classes": 47}),
            "spec.dataset.classes: only for idx, tar, npy, segmentation and synthetic",
        ),
        (
            "/spec/dataset",
            json!({"format": "synthetic"}),
            json!({"format": "synthetic", "image": {"channels": 3, "height": 32, "width": 32}}),
            "spec.dataset.image: required for format synthetic",
        ),
        (
            "/spec/dataset",
            json!({"format": "glyphs", "image": {"channels": 3, "height": 32, "width": 32}}),
            json!({"format": "glyphs"}),
            "spec.dataset.image: only for",
        ),
        (
            "/spec/dataset",
            json!({"format": "imagefolder", "uri": "file:///a", "image": {"channels": 4, "height": 32, "width": 32}}),
            json!({"format": "imagefolder", "uri": "file:///a", "image": {"channels": 3, "height": 32, "width": 32}}),
            "spec.dataset.image.channels: 1 (grey) or 3",
        ),
        (
            "/spec/dataset",
            json!({"format": "glyphs", "mean": [0.5]}),
            json!({"format": "glyphs", "mean": [0.5], "std": [0.2]}),
            "spec.dataset.std: as many values as spec.dataset.mean",
        ),
        (
            "/spec/dataset",
            json!({"format": "glyphs", "augment": {"randomResizedCrop": {"scale": [1, 0.5], "ratio": [1, 1]}}}),
            json!({"format": "glyphs", "augment": {"randomResizedCrop": {"scale": [0.5, 1], "ratio": [1, 1]}}}),
            "randomResizedCrop.scale: the least value",
        ),
        (
            "/spec/dataset",
            json!({"format": "glyphs", "augment": {"randomResizedCrop": {"scale": [0.5, 1], "ratio": [2, 1]}}}),
            json!({"format": "glyphs", "augment": {"randomResizedCrop": {"scale": [0.5, 1], "ratio": [1, 2]}}}),
            "randomResizedCrop.ratio: the least value",
        ),
        ("/spec/dataset/uri", json!("s3://Bucket/a"), json!("s3://bucket/a"), "spec.dataset.uri"),
        ("/spec/dataset/uri", json!("http://a.org/b"), json!("https://a.org/b/c.tar.gz"), "spec.dataset.uri"),
        ("/spec/dataset/uri", json!("https://a.org/../b"), json!("http://localhost:8080/b/"), "spec.dataset.uri"),
        ("/spec/dataset/uri", json!("https://u:p@a.org/b"), json!("https://a.org:443/..b"), "spec.dataset.uri"),
        ("/spec/dataset/cache", json!("s3://bucket/a"), json!("file:///a"), "spec.dataset.cache"),
        ("/spec/dataset/uri", json!("file:///a/.."), json!("file:///a/..b"), "spec.dataset.uri"),
        (
            "/spec/training/batchSizeSchedule",
            json!([{"epoch": 3, "globalBatchSize": 128}, {"epoch": 2, "globalBatchSize": 256}]),
            json!([{"epoch": 2, "globalBatchSize": 256}, {"epoch": 3, "globalBatchSize": 128}]),
            "epochs that ascend, each once",
        ),
        (
            "/spec/training/batchSizeSchedule",
            json!([{"epoch": 3, "globalBatchSize": 128}, {"epoch": 3, "globalBatchSize": 256}]),
            json!([]),
            "epochs that ascend, each once",
        ),
        (
            "/spec/training",
            json!({"lossScale": {}}),
            json!({"precision": "f16", "lossScale": {}}),
            "spec.training.lossScale: only with",
        ),
        (
            "/spec/training",
            json!({"precision": "f16", "lossScale": {"constant": 8, "initial": 8}}),
            json!({"precision": "bf16", "lossScale": {"constant": 8}}),
            "spec.training.lossScale.constant",
        ),
        (
            "/spec/model",
            json!({"name": "lenet5", "weights": {"uri": "weights.safetensors"}}),
            json!({"name": "lenet5", "weights": {"uri": "file:///w/lenet5.safetensors", "except": ["fc3.*"]}}),
            "spec.model.weights.uri",
        ),
        ("/spec/checkpoint/uri", json!("file:///"), json!("file:///c"), "spec.checkpoint.uri"),
        ("/spec/checkpoint/uri", json!("file:///../c"), json!("file:///c/d"), "spec.checkpoint.uri"),
        ("/spec/checkpoint/uri", json!("s3://"), json!("s3://models"), "s3://models/lenet"),
        ("/spec/checkpoint/uri", json!("s3://models//"), json!("s3://models/team.a/x=1"), "spec.checkpoint.uri"),
        ("/spec/checkpoint/uri", json!("gs://Models/a"), json!("gs://models_1/a"), "spec.checkpoint.uri"),
        ("/spec/checkpoint/uri", json!("az://models/../a"), json!("az://models/a/b"), "spec.checkpoint.uri"),
        ("/spec/checkpoint/uri", json!("ftp://models/a"), json!("s3://abc/_"), "spec.checkpoint.uri"),
        ("/spec/communication/bucketBytes", json!("2Gi"), json!("1Gi"), "1Ki to 1Gi"),
        ("/spec/communication/bucketBytes", json!(1023), json!(1024), "1Ki to 1Gi"),
        (
            "/spec/communication",
            json!({"algorithm": "ring", "wire": "bf16"}),
            json!({"algorithm": "direct", "wire": "bf16"}),
            "spec.communication.wire",
        ),
        (
            "/spec/communication",
            json!({"algorithm": "canonicalTree", "wire": "bf16"}),
            json!({"algorithm": "canonicalTree", "wire": "f32"}),
            "spec.communication.wire",
        ),
        (
            "/spec/template/spec/containers",
            json!([{"name": "main"}]),
            json!([{"name": "sidecar"}, {"name": "trainer"}]),
            "named trainer",
        ),
    ];
    for (pointer, bad, good, message) in cases {
        let messages = broken(&set(job(), pointer, bad.clone()), None);
        assert!(messages.len() == 1 && messages[0].contains(message), "{pointer} = {bad}: {messages:?}");
        assert_eq!(broken(&set(job(), pointer, good.clone()), None), Vec::<String>::new(), "{pointer} = {good}");
    }
}

#[test]
fn a_model_of_the_trainers_own_computes_in_f32() {
    let own = |precision: &str| {
        let job = set(job(), "/spec/model", json!({"name": "own"}));
        broken(&set(job, "/spec/training", json!({"precision": precision})), None)
    };
    let messages = own("bf16");
    assert!(messages.len() == 1 && messages[0].contains("spec.training.precision: f32 with"), "{messages:?}");
    assert_eq!(own("f32"), Vec::<String>::new());
}

#[test]
fn a_canonical_tree_takes_as_many_replicas_as_it_has_shards() {
    let canonical = set(job(), "/spec/communication", json!({"algorithm": "canonicalTree", "wire": "f32"}));
    assert_eq!(broken(&set(canonical.clone(), "/spec/replicas", json!(64)), None), Vec::<String>::new());
    let messages = broken(&set(canonical, "/spec/replicas", json!(65)), None);
    assert!(messages.len() == 1 && messages[0].contains("canonicalTree takes up to 64 replicas"), "{messages:?}");
}

#[test]
fn a_canonical_tree_takes_one_device_of_each_worker() {
    let canonical = set(job(), "/spec/communication", json!({"algorithm": "canonicalTree", "wire": "f32"}));
    assert_eq!(broken(&set(job(), "/spec/devicesPerWorker", json!(2)), None), Vec::<String>::new());
    assert_eq!(broken(&set(canonical.clone(), "/spec/devicesPerWorker", json!(1)), None), Vec::<String>::new());
    let messages = broken(&set(canonical, "/spec/devicesPerWorker", json!(2)), None);
    assert!(messages.len() == 1 && messages[0].contains("spec.devicesPerWorker: 1 with"), "{messages:?}");
}

#[test]
fn each_rule_of_a_benchmark_refuses_its_own_mistake_and_nothing_else() {
    let cases = [
        ("/spec/replicas", json!(1), json!(2), "spec.replicas: 2 or more"),
        ("/spec/benchmark/collectives/minBytes", json!("3"), json!(4), "collectives.minBytes: 4 to 1Gi"),
        ("/spec/benchmark/collectives/maxBytes", json!("2Gi"), json!("1Gi"), "collectives.maxBytes: 4 to 1Gi"),
        ("/spec/benchmark/collectives/minBytes", json!("65Mi"), json!("64Mi"), "minBytes: no more than maxBytes"),
    ];
    for (pointer, bad, good, message) in cases {
        let messages = broken(&set(benchmark(), pointer, bad.clone()), None);
        assert!(messages.len() == 1 && messages[0].contains(message), "{pointer} = {bad}: {messages:?}");
        assert_eq!(broken(&set(benchmark(), pointer, good.clone()), None), Vec::<String>::new(), "{pointer} = {good}");
    }
}

#[test]
fn a_field_with_a_default_may_not_stay_null() {
    let mut nullable = Vec::new();
    visit(&schema("trainingjobs.yaml")["properties"]["spec"], ".spec", &mut |path, field, _| {
        if field.get("default").is_some() && field["nullable"] == true {
            nullable.push(path.to_owned());
        }
    });
    assert_eq!(nullable, Vec::<String>::new());
}

#[test]
fn a_job_trains_or_measures_but_not_both() {
    for field in ["model", "dataset", "training", "checkpoint"] {
        let both = set(benchmark(), &format!("/spec/{field}"), job()["spec"][field].clone());
        let messages = broken(&both, None);
        assert!(
            messages.len() == 1 && messages[0].contains(&format!("spec.{field}: a benchmark trains nothing")),
            "{messages:?}"
        );
    }
    for field in ["model", "dataset", "checkpoint"] {
        let mut neither = job();
        neither["spec"].as_object_mut().expect("fields").remove(field);
        let messages = broken(&neither, None);
        assert!(
            messages.len() == 1 && messages[0].contains(&format!("spec.{field}: required to train")),
            "{messages:?}"
        );
    }
    let mut without_training = job();
    without_training["spec"].as_object_mut().expect("fields").remove("training");
    assert_eq!(broken(&without_training, None), Vec::<String>::new());
}

#[test]
fn replicas_lie_between_the_elastic_bounds() {
    let with = |replicas: u32, min: u32, max: u32| {
        let job = set(job(), "/spec/replicas", json!(replicas));
        broken(&set(job, "/spec/elastic", json!({"minReplicas": min, "maxReplicas": max})), None)
    };
    assert_eq!(with(2, 1, 4), Vec::<String>::new());
    assert!(with(2, 3, 4)[0].contains("spec.elastic.minReplicas: 1 to spec.replicas"), "{:?}", with(2, 3, 4));
    assert!(with(5, 1, 4)[0].contains("spec.elastic.maxReplicas: spec.replicas to 1000"), "{:?}", with(5, 1, 4));
}

#[test]
fn replicas_can_change_only_within_the_elastic_bounds() {
    let of = |replicas: u32, elastic: bool| {
        let job = set(job(), "/spec/replicas", json!(replicas));
        let bounds = json!({"minReplicas": 1, "maxReplicas": 4});
        if elastic { set(job, "/spec/elastic", bounds) } else { job }
    };
    assert_eq!(broken(&of(4, true), Some(&of(2, true))), Vec::<String>::new());
    assert!(broken(&of(5, true), Some(&of(2, true)))[0].contains("spec.elastic.maxReplicas: spec.replicas to 1000"));
    let messages = broken(&of(3, false), Some(&of(2, false)));
    assert!(
        messages.len() == 1 && messages[0].contains("spec.replicas: can change only if spec.elastic gives"),
        "{messages:?}"
    );
}

#[test]
fn a_job_can_be_suspended_and_resumed() {
    let suspended = |value: bool| set(job(), "/spec/suspend", json!(value));
    for (before, after) in [(job(), suspended(true)), (suspended(true), suspended(false)), (suspended(false), job())] {
        assert_eq!(broken(&after, Some(&before)), Vec::<String>::new());
    }
}

/// Returns a suspended job with this status.
fn resting(status: Value) -> Value {
    let job = set(job(), "/spec/template", json!({"spec": {"containers": [{"name": "trainer", "image": "a"}]}}));
    set(set(job, "/spec/suspend", json!(true)), "/status", status)
}

#[test]
fn scheduling_fields_can_change_while_a_job_is_suspended_and_has_not_started() {
    let changes = [
        ("/spec/template/spec/nodeSelector", json!({"pool": "spot"})),
        ("/spec/template/spec/tolerations", json!([{"key": "spot", "operator": "Exists"}])),
        ("/spec/template/spec/affinity", json!({"nodeAffinity": {}})),
        ("/spec/template/spec/schedulingGates", json!([{"name": "kueue.x-k8s.io/topology"}])),
        ("/spec/template/metadata", json!({"labels": {"a": "b"}, "annotations": {"c": "d"}})),
    ];
    for (pointer, value) in changes {
        for status in [json!({}), json!({"phase": "Suspended"})] {
            let before = resting(status);
            let after = set(before.clone(), pointer, value.clone());
            assert_eq!(broken(&after, Some(&before)), Vec::<String>::new(), "{pointer}");
            // A queue system sets the field together with the admission.
            let admitted = set(after, "/spec/suspend", json!(false));
            assert_eq!(broken(&admitted, Some(&before)), Vec::<String>::new(), "{pointer} with suspend: false");
        }
        let started = resting(json!({"startTime": "2026-11-28T06:00:00Z"}));
        let running = set(resting(json!({})), "/spec/suspend", json!(false));
        for before in [started, running] {
            let messages = broken(&set(before.clone(), pointer, value.clone()), Some(&before));
            assert!(
                messages.len() == 1 && messages[0].contains("spec.template: cannot change"),
                "{pointer}: {messages:?}"
            );
        }
    }
}

#[test]
fn the_content_of_a_suspended_jobs_pods_cannot_change() {
    let before = resting(json!({}));
    for (pointer, value) in [
        ("/spec/template/spec/containers", json!([{"name": "trainer", "image": "b"}])),
        ("/spec/template/spec/hostNetwork", json!(true)),
        ("/spec/template/spec/volumes", json!([{"name": "v", "emptyDir": {}}])),
        ("/spec/template/spec/containers/0/livenessProbe", json!({"periodSeconds": 3})),
    ] {
        let messages = broken(&set(before.clone(), pointer, value), Some(&before));
        assert!(
            messages.len() == 1 && messages[0].contains("metadata and affinity, nodeSelector"),
            "{pointer}: {messages:?}"
        );
    }
}

/// Replicas, suspend and the template have rules of their own.
#[test]
fn no_other_field_of_the_spec_can_change_be_added_or_be_taken_away() {
    let changes = forbidden_changes();
    let fields = &schema("trainingjobs.yaml")["properties"]["spec"]["properties"];
    assert_eq!(fields.as_object().expect("fields").len(), changes.len() + 2, "a field of the spec without a case here");
    for (field, value) in changes {
        let changed = set(job(), &format!("/spec/{field}"), value);
        let messages = broken(&changed, Some(&job()));
        assert!(
            messages.len() == 1 && messages[0].contains(&format!("spec.{field}: cannot change")),
            "{field}: {messages:?}"
        );
    }
    let mut without = job();
    without["spec"].as_object_mut().expect("fields").remove("template");
    assert!(broken(&without, Some(&job()))[0].contains("spec.template: cannot change"));
}
