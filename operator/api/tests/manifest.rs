//! Manifests: refusals with their words, and the jobs that valid manifests become.

#[allow(dead_code, reason = "other tests compare changes of a job")]
mod verdicts;

use lockstep_api::{ValidJob, manifest::set};
use lockstep_launch::{Benchmark, ByteSize, Collectives, ModelName, Task, Workload};
use serde_json::{Value, json};

use verdicts::{Verdict, cases};

const GOOD: &str = "
apiVersion: lockstep.dev/v1alpha1
kind: TrainingJob
metadata: {name: lenet, namespace: team, labels: {a.b/c: d}}
spec:
  replicas: 2
  model: {name: lenet5}
  dataset: {format: idx, uri: file:///data/mnist}
  training: {epochs: 3, optimizer: {sgd: {weightDecay: 5.0e-5}}, schedule: {baseLearningRate: 1}}
  checkpoint: {uri: file:///checkpoints}
  template:
    spec:
      containers:
      - name: trainer
        resources: {limits: {cpu: 2, memory: 1Gi}}
        volumeMounts: [{name: data, mountPath: /data}, {name: checkpoints, mountPath: /checkpoints}]
      - {name: sidecar, image: x, volumeMounts: [{name: data, mountPath: /elsewhere}]}
";

fn good() -> Value {
    serde_saphyr::from_str(GOOD).expect("YAML")
}

const BENCHMARK: &str = "
apiVersion: lockstep.dev/v1alpha1
kind: TrainingJob
metadata: {name: collectives}
spec:
  replicas: 4
  benchmark: {collectives: {minBytes: 4Ki}}
  communication: {backend: tcp}
";

fn workload(job: &ValidJob) -> &Workload {
    match &job.task {
        Task::Train(workload) => workload,
        Task::Benchmark { .. } => panic!("{job:?} trains"),
    }
}

fn problems(manifest: &str) -> Vec<String> {
    ValidJob::from_manifest(manifest).expect_err("refused").iter().map(ToString::to_string).collect()
}

#[test]
fn a_field_that_is_left_out_has_its_default() {
    let job = ValidJob::from_manifest(GOOD).expect("valid");
    assert_eq!((job.name.as_str(), job.namespace.as_str(), job.uid.as_deref()), ("lenet", "team", None));
    assert_eq!(job.replicas.get(), 2);
    assert_eq!(workload(&job).model.name, Some(ModelName::Lenet5));
    assert_eq!(workload(&job).training.epochs, 3);
    assert_eq!(workload(&job).training.global_batch_size, 64);
    assert_eq!(workload(&job).communication.bucket_bytes, None);
    assert_eq!(job.failure_policy.backoff_limit, 3);
    assert_eq!(job.failure_policy.startup_timeout_seconds, 600);
    assert_eq!(job.managed_by, "lockstep.dev/operator");
}

#[test]
fn a_benchmark_needs_no_model_data_set_and_checkpoint() {
    let task = ValidJob::from_manifest(BENCHMARK).expect("valid").task;
    let expected = Collectives { min_bytes: ByteSize::bytes(4096), ..Collectives::default() };
    let Task::Benchmark { benchmark: Benchmark::Collectives(found), communication } = task else { panic!("{task:?}") };
    assert_eq!((found.max_bytes, found.repetitions), (ByteSize::mebibytes(64), 20));
    assert_eq!(found, expected);
    assert_eq!(serde_json::to_value(&communication).expect("JSON")["backend"], "tcp");
}

#[test]
fn each_mistake_in_a_benchmark_is_reported_with_field_value_and_accepted_values() {
    let of_training = "  model: {name: mlp}\n  dataset: {format: glyphs}\n  training: {epochs: 1}\n  \
                       checkpoint: {uri: 'file:///c'}\n  communication:";
    let cases = [
        ("  communication:", of_training, "spec.model: given: a benchmark trains nothing: leave it out"),
        ("  communication:", of_training, "spec.dataset: given: a benchmark trains nothing: leave it out"),
        ("  communication:", of_training, "spec.training: given: a benchmark trains nothing: leave it out"),
        ("  communication:", of_training, "spec.checkpoint: given: a benchmark trains nothing: leave it out"),
        ("  benchmark: {collectives: {minBytes: 4Ki}}", "", "spec.model: missing: required to train"),
        ("  benchmark: {collectives: {minBytes: 4Ki}}", "", "spec.dataset: missing: required to train"),
        ("replicas: 4", "replicas: 1", "spec.replicas: 1: 2 or more for a benchmark"),
        ("minBytes: 4Ki", "minBytes: 128Mi", "spec.benchmark.collectives.minBytes: 128Mi: no more than maxBytes, 64Mi"),
        ("minBytes: 4Ki", "minBytes: 2", "spec.benchmark.collectives.minBytes: 2: 4 to 1Gi"),
        ("minBytes: 4Ki", "maxBytes: 2Gi", "spec.benchmark.collectives.maxBytes: 2Gi: 4 to 1Gi"),
        ("minBytes: 4Ki", "minBytes: 4KB", "spec.benchmark.collectives.minBytes: \"4KB\": `4KB` is not a size"),
        ("minBytes: 4Ki", "minByte: 4Ki", "did you mean `minBytes`?"),
        ("minBytes: 4Ki", "repetitions: 0", "spec.benchmark.collectives.repetitions: 0: a whole number, 1 to 1000"),
        ("{collectives: {minBytes: 4Ki}}", "{}", "spec.benchmark: none: exactly one of collectives"),
    ];
    for (from, to, message) in cases {
        assert!(BENCHMARK.contains(from), "{from}");
        let found = problems(&BENCHMARK.replacen(from, to, 1));
        assert!(found.iter().any(|line| line.contains(message)), "{message}: {found:?}");
    }
}

#[test]
fn only_mounts_of_the_trainer_count() {
    let mounts = ValidJob::from_manifest(GOOD).expect("valid").volume_mounts();
    assert_eq!(mounts, ["/data", "/checkpoints"].map(std::path::PathBuf::from));
}

#[test]
fn a_manifest_without_template_is_valid() {
    let mut manifest = good();
    manifest["spec"].as_object_mut().expect("fields").remove("template");
    assert!(ValidJob::from_value(manifest).expect("valid").volume_mounts().is_empty());
}

#[test]
fn each_mistake_is_reported_with_field_value_and_accepted_values() {
    let cases = [
        ("epochs: 3", "epoch: 3", "spec.training.epoch: unknown: no such field; did you mean `epochs`?"),
        ("epochs: 3", "epochs: three", "spec.training.epochs: \"three\": a whole number, 1 to 1000000"),
        ("epochs: 3", "epochs: 0", "spec.training.epochs: 0: a whole number, 1 to 1000000"),
        ("epochs: 3", "epochs: 2.5", "spec.training.epochs: 2.5: a whole number, 1 to 1000000"),
        ("epochs: 3", "epochs: -1", "spec.training.epochs: -1: a whole number, 1 to 1000000"),
        ("epochs: 3", "epochs: 3, precision: f64", "spec.training.precision: \"f64\": one of f32, bf16, f16"),
        ("epochs: 3", "epochs: 3, lossScale: {}", "spec.training.lossScale: given in f32: only with"),
        (
            "epochs: 3",
            "epochs: 3, precision: f16, lossScale: {constant: 8, initial: 8}",
            "spec.training.lossScale.constant: 8: without initial and growthInterval",
        ),
        (
            "model: {name: lenet5}\n  dataset: {format: idx, uri: file:///data/mnist}\n  training: {",
            "model: {name: own}\n  dataset: {format: own}\n  training: {precision: bf16, ",
            "spec.training.precision: bf16: f32 with spec.model.name own",
        ),
        ("replicas: 2", "replicas: 1001", "spec.replicas: 1001: a whole number, 1 to 1000"),
        ("name: lenet5", "name: lenet6", "spec.model.name: \"lenet6\": one of perceptron, mlp, mlp25m, lenet5"),
        (
            "model: {name: lenet5}",
            "model: {}",
            "spec.model.name: missing: the name of a model, or spec.model.layers in its place",
        ),
        ("name: lenet,", "name: Lenet,", "metadata.name: \"Lenet\": a lower-case letter"),
        ("name: lenet,", "nam: lenet,", "metadata.name: missing: required: a text"),
        ("kind: TrainingJob", "kind: Job", "kind: \"Job\": one of TrainingJob"),
        ("v1alpha1", "v1", "apiVersion: \"lockstep.dev/v1\": one of lockstep.dev/v1alpha1"),
        ("uri: file:///data/mnist", "uri: s3://a", "spec.dataset.uri: s3://a: file:///FOLDER"),
        (", uri: file:///data/mnist", "", "spec.dataset.uri: missing: required for format idx"),
        ("sgd: {", "adam: {", "spec.training.optimizer.adam: unknown: no such field"),
        (
            "  checkpoint: {",
            "  communication: {algorithm: torus, wire: f16}\n  checkpoint: {",
            "spec.communication.wire: f16: f32 if communication.algorithm is named",
        ),
        ("- name: trainer", "- name: main", "spec.template.spec.containers: main, sidecar: one must be named trainer"),
        ("mountPath: /data}", "mountpath: /data}", "did you mean `mountPath`?"),
        ("weightDecay: 5.0e-5", "weightDecay: [1]", "spec.training.optimizer.sgd.weightDecay: [1]: a number, 0 to 1"),
        (
            "  checkpoint: {uri: file:///checkpoints}",
            "",
            "spec.checkpoint: missing: required to train; to measure instead",
        ),
        (
            "replicas: 2",
            "replicas: 2\n  elastic: {minReplicas: 3, maxReplicas: 4}",
            "spec.elastic.minReplicas: 3: 1 to spec.replicas, which is 2",
        ),
        (
            "replicas: 2",
            "replicas: 2\n  elastic: {minReplicas: 1, maxReplicas: 1}",
            "spec.elastic.maxReplicas: 1: spec.replicas to 1000; spec.replicas is 2",
        ),
        (
            "memory: 1Gi",
            "memory: 128MB",
            "spec.template.spec.containers[0].resources.limits.memory: \"128MB\": a quantity, such as 500m, 2, 128Mi",
        ),
    ];
    for (from, to, message) in cases {
        assert!(GOOD.contains(from), "{from}");
        let found = problems(&GOOD.replacen(from, to, 1));
        assert!(found.iter().any(|line| line.contains(message)), "{to}: {found:?}");
    }
}

#[test]
fn a_canonical_tree_of_more_replicas_than_shards_is_refused() {
    let canonical = |replicas: &str| {
        let tree = GOOD.replacen("  checkpoint: {", "  communication: {algorithm: canonicalTree}\n  checkpoint: {", 1);
        problems(&tree.replacen("replicas: 2", replicas, 1))
    };
    let found = canonical("replicas: 65");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("spec.communication.algorithm: canonicalTree: canonicalTree takes up to 64"),
        "{found:?}"
    );
}

#[test]
fn a_canonical_tree_over_devices_is_refused() {
    let tree = GOOD.replacen("  checkpoint: {", "  communication: {algorithm: canonicalTree}\n  checkpoint: {", 1);
    let devices =
        |number| problems(&tree.replacen("replicas: 2", &format!("replicas: 2\n  devicesPerWorker: {number}"), 1));
    assert_eq!(
        devices(2),
        ["spec.devicesPerWorker: 2: 1 with spec.communication.algorithm canonicalTree; leave one of them out"]
    );
    assert_eq!(devices(65).len(), 1, "{:?}", devices(65));
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let manifest = GOOD.replace("epochs: 3", "epochs: 0, sed: 1").replace("replicas: 2", "replica: 2");
    assert_eq!(problems(&manifest).len(), 3);
}

#[test]
fn a_text_that_is_no_manifest_is_refused() {
    for text in ["", "a: [", "- 1", "a: 1\na: 2", "\u{0}", "--- 1\n--- 2"] {
        assert!(!problems(text).is_empty(), "{text:?}");
    }
}

#[test]
fn a_bucket_is_a_number_or_a_text() {
    for (value, bytes) in [(json!(4096), 4096), (json!("4Ki"), 4096)] {
        let mut manifest = good();
        manifest["spec"]["communication"] = json!({"bucketBytes": value});
        assert_eq!(
            ValidJob::from_value(manifest).expect("valid").task.communication().bucket_bytes,
            Some(ByteSize::bytes(bytes))
        );
    }
    for value in [json!("4KB"), json!(1.5), json!(true), json!("2Gi")] {
        let mut manifest = good();
        manifest["spec"]["communication"] = json!({"bucketBytes": value});
        let found = ValidJob::from_value(manifest).expect_err("refused");
        assert_eq!(found[0].field, "spec.communication.bucketBytes", "{value}");
    }
}

#[test]
fn set_takes_the_type_from_the_schema() {
    let mut manifest = good();
    let cases = [
        ("spec.training.epochs=7", "/spec/training/epochs", json!(7)),
        ("spec.training.schedule.baseLearningRate=1e-3", "/spec/training/schedule/baseLearningRate", json!(1e-3)),
        ("spec.communication.bucketBytes=64Ki", "/spec/communication/bucketBytes", json!("64Ki")),
        ("spec.communication.bucketBytes=4096", "/spec/communication/bucketBytes", json!(4096)),
        ("spec.dataset.uri=file:///a=b", "/spec/dataset/uri", json!("file:///a=b")),
        ("metadata.name=123", "/metadata/name", json!("123")),
        ("spec.template.spec.hostNetwork=true", "/spec/template/spec/hostNetwork", json!(true)),
        ("spec.template.spec.containers.1.image=y", "/spec/template/spec/containers/1/image", json!("y")),
        ("spec.template.spec.nodeSelector.disk=1", "/spec/template/spec/nodeSelector/disk", json!("1")),
        ("spec.model.hidden=[3, 4]", "/spec/model/hidden", json!([3, 4])),
    ];
    for (assignment, pointer, value) in cases {
        set(&mut manifest, assignment).unwrap_or_else(|error| panic!("{assignment}: {error}"));
        assert_eq!(manifest.pointer(pointer), Some(&value), "{assignment}");
    }
}

#[test]
fn set_refuses_a_value_that_the_field_does_not_take_and_changes_nothing() {
    let cases = [
        ("spec.training.epoch=7", "did you mean `epochs`?"),
        ("spec.training.epochs", "FIELD=VALUE"),
        ("spec.training.epochs=many", "a whole number, 1 to 1000000"),
        ("spec.training.epochs=0", "a whole number, 1 to 1000000"),
        ("spec.model.name=resnet", "resnet34, resnet50, unet"),
        ("spec.training.epochs.x=1", "a plain value"),
        ("spec.template.spec.containers.7.image=y", "the list has 2 items"),
        ("spec.template.spec.containers.name=y", "write the number of an item"),
    ];
    for (assignment, message) in cases {
        let mut manifest = good();
        let error = set(&mut manifest, assignment).expect_err(assignment).to_string();
        assert!(error.contains(message), "{assignment}: {error}");
        assert_eq!(manifest, good(), "{assignment}");
    }
}

#[test]
fn quantities_are_spelled_as_kubernetes_reads_them() {
    let of = |quantity: &str| {
        let manifest = GOOD.replacen("cpu: 2", &format!("cpu: {quantity}"), 1);
        ValidJob::from_manifest(&manifest).map_or_else(|wrong| wrong, |_| Vec::new())
    };
    for good in ["2", "'2'", "'0.5'", "'.5'", "'1.'", "500m", "128Mi", "'+4Gi'", "'1e3'", "'12E-2'", "3E"] {
        assert!(of(good).is_empty(), "{good}: {:?}", of(good));
    }
    for bad in ["128MB", "12x", "''", "m", "'.'", "'1.2.3'", "'1 Gi'", "'1e'", "'2e3k'", "mi"] {
        assert_eq!(of(bad).len(), 1, "{bad}: {:?}", of(bad));
    }
}

#[test]
fn a_file_of_several_objects_is_refused_with_advice() {
    let two = format!("apiVersion: v1\nkind: Secret\n---\n{GOOD}");
    assert_eq!(problems(&two), ["manifest: several YAML documents: one: put the TrainingJob into a file of its own"]);
}

#[test]
fn a_manifest_gets_the_same_verdict_as_from_the_api_server() {
    let differ: Vec<_> = cases()
        .filter_map(|(manifest, change, verdict)| {
            let found = ValidJob::from_manifest(&manifest);
            (found.is_ok() != (verdict == Verdict::Taken))
                .then(|| format!("{change:?}: not {verdict:?}: {:?}", found.err()))
        })
        .collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

#[test]
fn a_problem_of_the_yaml_is_one_line_with_its_position() {
    let cases = [
        ("a: [", "line 1"),
        ("a: 1\na: 2", "line 2"),
        ("a: 'b\n", "line 2"),
        ("a: *b\n", "line 1"),
        ("a:\n\t- b\n", "line 2"),
        ("a: .inf", "line 1"),
    ];
    for (text, place) in cases {
        let found = problems(text);
        let [line] = &found[..] else { panic!("{text:?}: {found:?}") };
        assert!(line.starts_with("manifest: ") && line.contains(place), "{text:?}: {line}");
        for of_the_library in ["Option", "Policy", "policy", "\n"] {
            assert!(!line.contains(of_the_library), "{text:?}: {line}");
        }
    }
}

#[test]
fn a_generated_name_is_known_by_its_beginning() {
    let name = |name: &str| ValidJob::from_manifest(&GOOD.replacen("name: lenet,", name, 1)).expect("valid").name;
    assert_eq!(name("generateName: lenet-,"), "lenet");
    assert_eq!(name("generateName: lenet-, name: mnist,"), "mnist");
}
