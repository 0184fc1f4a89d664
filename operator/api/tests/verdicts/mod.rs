//! A table of manifests with the API server's verdict. One test compares this crate's reader with
//! the table, another one the API server of a cluster.

/// The manifest that each row changes.
const MANIFEST: &str = "
apiVersion: lockstep.dev/v1alpha1
kind: TrainingJob
metadata: {name: lenet}
spec:
  replicas: 2
  model: {name: lenet5}
  dataset: {format: glyphs, samples: 700}
  training: {epochs: 1, seed: 1}
  checkpoint: {uri: file:///checkpoints}
  template:
    metadata: {labels: {team: vision}}
    spec:
      hostNetwork: false
      containers: [{name: trainer, resources: {limits: {cpu: 1}}}]
";

/// The part of the manifest that a benchmark has not.
const REPLICAS_AND_TRAINING: &str = "replicas: 2
  model: {name: lenet5}
  dataset: {format: glyphs, samples: 700}
  training: {epochs: 1, seed: 1}
  checkpoint: {uri: file:///checkpoints}
";
const DATASET: &str = "{format: glyphs, samples: 700}";
const MODEL_AND_TRAINING: &str = "model: {name: lenet5}
  dataset: {format: glyphs, samples: 700}
  training: {epochs: 1, seed: 1}";

/// The API server's answer: it creates the object or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Taken,
    Refused,
}

use Verdict::{Refused, Taken};

/// The text that is replaced, its replacement and the verdict. An empty text appends to the
/// manifest.
const CASES: &[(&str, &str, Verdict)] = &[
    ("", "", Taken),
    // Documents.
    ("", "---\n", Taken),
    ("", "---\n# That was all.\n", Taken),
    ("", "--- # That was all.\n", Taken),
    ("", "---\nnull\n", Taken),
    ("", "...\n", Taken),
    ("apiVersion: l", "# A comment.\n---\napiVersion: l", Taken),
    ("apiVersion: l", "# A comment.\n---\n---\napiVersion: l", Taken),
    ("\napiVersion: l", "\u{feff}apiVersion: l", Taken),
    ("", "  nothing: [\n", Refused),
    ("", "\tspec: {}\n", Refused),
    // Names.
    ("name: lenet}", "generateName: lenet-}", Taken),
    ("name: lenet}", "name: '', generateName: lenet-}", Taken),
    ("name: lenet}", "generateName: ''}", Refused),
    ("name: lenet}", "generateName: Lenet-}", Refused),
    ("name: lenet}", "generateName: 9-}", Refused),
    ("name: lenet}", "generateName: a123456789a123456789a123456789a123456789a1234}", Taken),
    ("name: lenet}", "generateName: a123456789a123456789a123456789a123456789a12345}", Refused),
    ("name: lenet}", "name: a123456789a123456789a123456789a123456789a123456789}", Taken),
    ("name: lenet}", "name: a123456789a123456789a123456789a123456789a123456789a}", Refused),
    ("metadata: {name: lenet}", "metadata: {}", Refused),
    ("name: lenet}", "name: lenet, labels: {a.b/c: d}}", Taken),
    ("name: lenet}", "name: lenet, labels: {a.b/c: 'd e'}}", Refused),
    ("name: lenet}", "name: lenet, labels: {a b: c}}", Refused),
    ("name: lenet}", "name: lenet, labels: {a: 1}}", Refused),
    ("name: lenet}", "name: lenet, annotations: {a b: c}}", Refused),
    ("name: lenet}", "name: lenet, annotations: {a.b/c: d e}}", Taken),
    ("name: lenet}", "name: lenet, label: {}}", Refused),
    // Numbers.
    ("epochs: 1,", "epochs: 1.0,", Taken),
    ("epochs: 1,", "epochs: +1,", Taken),
    ("epochs: 1,", "epochs: 0x10,", Taken),
    ("epochs: 1,", "epochs: 0b11,", Taken),
    ("epochs: 1,", "epochs: 0o17,", Taken),
    ("epochs: 1,", "epochs: 010,", Taken),
    ("epochs: 1,", "epochs: 1_000,", Taken),
    ("epochs: 1,", "epochs: 1.5,", Refused),
    ("epochs: 1,", "epochs: '1',", Refused),
    ("epochs: 1,", "epochs: 1e7,", Refused),
    ("epochs: 1,", "epochs: 1:30,", Refused),
    ("epochs: 1,", "epochs: .inf,", Refused),
    ("epochs: 1,", "epochs: 2021-01-01,", Refused),
    ("epochs: 1,", "epochs: null,", Taken),
    ("epochs: 1,", "epochs: ~,", Taken),
    ("samples: 700", "samples: 7e2", Taken),
    ("samples: 700", "samples: 7E+2", Taken),
    ("samples: 700", "samples: 7e-2", Refused),
    ("seed: 1}", "seed: 9007199254740991}", Taken),
    ("seed: 1}", "seed: 9007199254740992}", Refused),
    ("seed: 1}", "seed: 1e15}", Taken),
    ("seed: 1}", "seed: 1e19}", Refused),
    ("seed: 1}", "seed: 18446744073709551615}", Refused),
    ("replicas: 2", "replicas: 2.0", Taken),
    ("epochs: 1,", "epochs: 1, schedule: {baseLearningRate: 1},", Taken),
    ("epochs: 1,", "epochs: 1, schedule: {baseLearningRate: 1e-2},", Taken),
    ("cpu: 1}", "cpu: 1.0}", Taken),
    ("cpu: 1}", "cpu: 1.5}", Refused),
    ("cpu: 1}", "cpu: 500m}", Taken),
    ("  template:", "  communication: {bucketBytes: 1048576.0}\n  template:", Taken),
    ("  template:", "  communication: {bucketBytes: 1Mi}\n  template:", Taken),
    ("  template:", "  communication: {bucketBytes: 1.5Mi}\n  template:", Refused),
    // Words.
    ("hostNetwork: false", "hostNetwork: yes", Taken),
    ("hostNetwork: false", "hostNetwork: Off", Taken),
    ("hostNetwork: false", "hostNetwork: 'true'", Refused),
    ("hostNetwork: false", "hostNetwork: 1", Refused),
    ("team: vision", "team: on", Refused),
    ("team: vision", "team: 'on'", Taken),
    ("team: vision", "team: null", Taken),
    ("team: vision", "team: 2021-01-01", Taken),
    ("team: vision", "1: vision", Taken),
    // Structure. No row has a key twice. `validate` and the API server refuse such YAML, but
    // kubectl sends only the last value.
    ("epochs: 1,", "epoch: 1,", Refused),
    ("training: {epochs: 1, seed: 1}", "training:", Taken),
    ("training: {epochs: 1, seed: 1}", "training: {}", Taken),
    ("training: {epochs: 1, seed: 1}", "training: []", Refused),
    ("model: {name: lenet5}", "model: {name: mlp, hidden: [3, null]}", Refused),
    ("model: {name: lenet5}", "model: {name: mlp, hidden: [3, 4.0]}", Taken),
    ("model: {name: lenet5}", "model: {name: mlp, hidden: []}", Taken),
    ("model: {name: lenet5}", "model: {name: lenet5, hidden: []}", Taken),
    ("model: {name: lenet5}", "model: {name: lenet5, hidden: [3]}", Refused),
    ("model: {name: lenet5}", "model: {name: null}", Refused),
    ("model: {name: lenet5}", "model: {name: resnet20}", Taken),
    ("model: {name: lenet5}", "model: {name: lenet5, layers: []}", Taken),
    ("model: {name: lenet5}", "model: {name: lenet5, layers: [{flatten: {}}]}", Refused),
    ("model: {name: lenet5}", "model: {layers: [{flatten: {}}, {linear: {outputs: 10}}]}", Taken),
    ("model: {name: lenet5}", "model: {layers: [{residual: {layers: [{relu: {}}]}}]}", Taken),
    ("model: {name: lenet5}", "model: {layers: [relu]}", Refused),
    ("model: {name: lenet5}", "model: {}", Refused),
    ("epochs: 1,", "epochs: 1, optimizer: {lars: {eta: 0.01, biases: skip}},", Taken),
    ("epochs: 1,", "epochs: 1, optimizer: {lars: {biases: none}},", Refused),
    ("epochs: 1,", "epochs: 1, optimizer: {sgd: {}, lars: {}},", Refused),
    ("epochs: 1,", "epochs: 1, schedule: {decay: step, decayEpochs: [0.5]},", Taken),
    ("epochs: 1,", "epochs: 1, batchSizeSchedule: [{epoch: 1, globalBatchSize: 128}],", Taken),
    ("epochs: 1,", "epochs: 1, batchSizeSchedule: [{epoch: 0, globalBatchSize: 128}],", Refused),
    ("epochs: 1,", "epochs: 1, batchSizeSchedule: [{epoch: 1}],", Refused),
    ("epochs: 1,", "epochs: 1, precision: bf16,", Taken),
    ("epochs: 1,", "epochs: 1, precision: fp16,", Refused),
    ("epochs: 1,", "epochs: 1, precision: f16, lossScale: {},", Taken),
    ("epochs: 1,", "epochs: 1, precision: f16, lossScale: {constant: 128},", Taken),
    ("epochs: 1,", "epochs: 1, precision: f16, lossScale: {constant: 0.5},", Refused),
    ("epochs: 1,", "epochs: 1, lossScale: {constant: 128},", Refused),
    ("epochs: 1,", "epochs: 1, onNonFinite: skip,", Taken),
    ("epochs: 1,", "epochs: 1, onNonFinite: ignore,", Refused),
    (
        "epochs: 1,",
        "epochs: 1, batchSizeSchedule: [{epoch: 1, globalBatchSize: 128}, {epoch: 3, globalBatchSize: 256}],",
        Taken,
    ),
    (
        "epochs: 1,",
        "epochs: 1, batchSizeSchedule: [{epoch: 3, globalBatchSize: 128}, {epoch: 1, globalBatchSize: 256}],",
        Refused,
    ),
    (
        "epochs: 1,",
        "epochs: 1, batchSizeSchedule: [{epoch: 3, globalBatchSize: 128}, {epoch: 3, globalBatchSize: 256}],",
        Refused,
    ),
    ("epochs: 1,", "epochs: 1, schedule: {decay: step},", Refused),
    ("epochs: 1,", "epochs: 1, schedule: {decayEpochs: [0.5]},", Refused),
    ("  template:", "  schedulingPolicy: {gang: volcano}\n  template:", Taken),
    ("  template:", "  schedulingPolicy: {}\n  template:", Taken),
    ("  template:", "  schedulingPolicy: {gang: yunikorn}\n  template:", Refused),
    ("  template:", "  schedulingPolicy: {queue: team}\n  template:", Refused),
    ("  template:", "  failurePolicy: {podTerminatingTimeoutSeconds: 30}\n  template:", Taken),
    ("  template:", "  failurePolicy: {podTerminatingTimeoutSeconds: 0}\n  template:", Refused),
    // Rules, each with a job that it refuses.
    ("model: {name: lenet5}", "model: {name: lenet5, width: 8}", Refused),
    ("model: {name: lenet5}", "model: {name: lenet5, weights: {uri: weights.safetensors}}", Refused),
    ("model: {name: lenet5}", "model: {name: lenet5, weights: {uri: file:///w/lenet5.safetensors}}", Taken),
    (
        MODEL_AND_TRAINING,
        "model: {name: own}\n  dataset: {format: own}\n  training: {epochs: 1, precision: bf16}",
        Refused,
    ),
    (MODEL_AND_TRAINING, "model: {name: own}\n  dataset: {format: own}\n  training: {epochs: 1}", Taken),
    ("epochs: 1,", "epochs: 1, precision: f16, lossScale: {constant: 8, initial: 8},", Refused),
    ("uri: file:///checkpoints", "uri: checkpoints", Refused),
    ("uri: file:///checkpoints", "uri: file:///a/../b", Refused),
    ("uri: file:///checkpoints", "uri: s3://models/a", Taken),
    ("  template:", "  communication: {bucketBytes: 2Gi}\n  template:", Refused),
    ("  template:", "  communication: {algorithm: ring, wire: bf16}\n  template:", Refused),
    ("  template:", "  communication: {algorithm: direct, wire: bf16}\n  template:", Taken),
    ("  template:", "  communication: {interfaces: [10.20.0.0/99]}\n  template:", Refused),
    ("  template:", "  communication: {interfaces: [eth1, 10.20.0.0/16]}\n  template:", Taken),
    ("  template:", "  elastic: {minReplicas: 3, maxReplicas: 4}\n  template:", Refused),
    ("  template:", "  elastic: {minReplicas: 1, maxReplicas: 1}\n  template:", Refused),
    ("  template:", "  elastic: {minReplicas: 1, maxReplicas: 4}\n  template:", Taken),
    ("replicas: 2", "replicas: 65\n  communication: {algorithm: canonicalTree}", Refused),
    ("replicas: 2", "replicas: 64\n  communication: {algorithm: canonicalTree}", Taken),
    ("replicas: 2", "replicas: 2\n  devicesPerWorker: 2\n  communication: {algorithm: canonicalTree}", Refused),
    ("replicas: 2", "replicas: 2\n  devicesPerWorker: 2", Taken),
    ("name: trainer", "name: main", Refused),
    (REPLICAS_AND_TRAINING, "replicas: 2\n  benchmark: {collectives: {minBytes: 4Ki, maxBytes: 1Mi}}\n", Taken),
    (REPLICAS_AND_TRAINING, "replicas: 1\n  benchmark: {collectives: {}}\n", Refused),
    (REPLICAS_AND_TRAINING, "replicas: 2\n  benchmark: {collectives: {minBytes: 3}}\n", Refused),
    (REPLICAS_AND_TRAINING, "replicas: 2\n  benchmark: {collectives: {maxBytes: 2Gi}}\n", Refused),
    (REPLICAS_AND_TRAINING, "replicas: 2\n  benchmark: {collectives: {minBytes: 2Mi, maxBytes: 1Mi}}\n", Refused),
    (REPLICAS_AND_TRAINING, "replicas: 2\n", Refused),
    ("replicas: 2", "replicas: 2\n  devicesPerWorker: 1\n  benchmark: {collectives: {}}", Refused),
    (DATASET, "{format: idx}", Refused),
    (DATASET, "{format: idx, uri: 'http://a.org/b'}", Refused),
    (DATASET, "{format: idx, uri: 's3://bucket/mnist', cache: 'file:///cache', classes: 47}", Taken),
    (DATASET, "{format: idx, uri: 's3://bucket/mnist', cache: 's3://bucket/a'}", Refused),
    (DATASET, "{format: cifar10, uri: 'file:///a', classes: 10}", Refused),
    (DATASET, "{format: synthetic}", Refused),
    (DATASET, "{format: synthetic, image: {channels: 3, height: 32, width: 32}}", Taken),
    (DATASET, "{format: glyphs, image: {channels: 3, height: 32, width: 32}}", Refused),
    (DATASET, "{format: tar, uri: 'file:///a', image: {channels: 4, height: 32, width: 32}}", Refused),
    (DATASET, "{format: glyphs, ignoreIndex: 255}", Refused),
    (DATASET, "{format: glyphs, mean: [0.5]}", Refused),
    (DATASET, "{format: glyphs, mean: [0.5], std: [0.2]}", Taken),
    (DATASET, "{format: glyphs, augment: {randomResizedCrop: {scale: [1, 0.5], ratio: [1, 1]}}}", Refused),
    (DATASET, "{format: glyphs, augment: {randomResizedCrop: {scale: [0.5, 1], ratio: [2, 1]}}}", Refused),
    ("replicas: 2", "<<: {replicas: 3}", Taken),
    ("model: {name: lenet5}", "model: &model {name: lenet5}", Taken),
    ("spec:\n", "status: {phase: Running}\nspec:\n", Taken),
    ("spec:\n", "state: {phase: Running}\nspec:\n", Refused),
];

/// Returns each manifest with its change and the verdict.
pub(crate) fn cases() -> impl Iterator<Item = (String, &'static str, Verdict)> {
    CASES.iter().map(|(from, to, verdict)| {
        assert!(MANIFEST.contains(from), "{from}");
        let manifest = if from.is_empty() { format!("{MANIFEST}{to}") } else { MANIFEST.replacen(from, to, 1) };
        (manifest, *to, *verdict)
    })
}

/// Changes of a job that the API server refuses, by the field of the spec.
pub(crate) fn forbidden_changes() -> [(&'static str, serde_json::Value); 15] {
    use serde_json::json;
    [
        ("devicesPerWorker", json!(2)),
        ("elastic", json!({"minReplicas": 1, "maxReplicas": 4})),
        ("managedBy", json!("kueue")),
        ("benchmark", json!({"collectives": {}})),
        ("model", json!({"name": "mlp"})),
        ("dataset", json!({"format": "glyphs", "samples": 9})),
        ("training", json!({"epochs": 6, "seed": 1})),
        ("communication", json!({"backend": "tcp", "algorithm": "auto", "wire": "f32", "bucketBytes": "2Mi"})),
        ("checkpoint", json!({"uri": "file:///other", "intervalSeconds": 60, "keepLast": 3})),
        ("failurePolicy", json!({"backoffLimit": 4, "startupTimeoutSeconds": 600})),
        ("schedulingPolicy", json!({"gang": "volcano"})),
        ("activeDeadlineSeconds", json!(60)),
        ("cleanPodPolicy", json!("All")),
        ("ttlSecondsAfterFinished", json!(60)),
        ("template", json!({"spec": {"containers": [{"name": "trainer", "image": "other"}]}})),
    ]
}
