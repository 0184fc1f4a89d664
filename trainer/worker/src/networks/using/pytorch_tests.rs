//! Models go to PyTorch and come back with the same logits: by recorded files everywhere, and by
//! PyTorch itself where it is installed.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use lockstep_checkpoint::{OwnedTensor, export_model, read_model};
use lockstep_nn::Shape;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{replica::replica, torch_module::python};
use crate::networks::description::ModelDescription;

/// The greatest difference of logits, for each unit of the greatest logit.
const TOLERANCE: f32 = 1e-5;
/// The folder in the user's cache into which the benchmarks install PyTorch.
const TORCH: &str = "lockstep/torch==2.15.0";

/// A model and the samples that it takes.
struct Case {
    name: &'static str,
    description: ModelDescription,
}

fn case(name: &'static str, model: Value, input: Shape, classes: usize) -> Case {
    let mean: Vec<f32> = (0..input.channels).map(|channel| 0.4 + 0.05 * channel as f32).collect();
    let std = vec![0.25; input.channels];
    let description = json!({"model": model, "input": input, "classes": classes, "mean": mean, "std": std});
    Case { name, description: ModelDescription::read(&description.to_string()).expect("a description") }
}

/// A model with every kind of layer that a manifest can list.
fn every_layer() -> Case {
    let conv = |outputs: usize| json!({"conv2d": {"outputs": outputs, "kernel": 3, "padding": 1}});
    let layers = json!([
        {"conv2d": {"name": "stem", "outputs": 8, "kernel": 3, "stride": 2, "padding": 1, "bias": false}},
        {"batchNorm": {}},
        {"relu": {}},
        {"residual": {
            "layers": [conv(8), {"groupNorm": {"groups": 2}}, {"silu": {}}],
            "shortcut": [{"conv2d": {"outputs": 8, "kernel": 1, "groups": 2}}],
        }},
        {"depthwiseConv2d": {"kernel": 3, "padding": 1}},
        {"layerNorm": {}},
        {"gelu": {}},
        {"branches": {"layers": [[{"maxPool": {"kernel": 3, "stride": 1, "padding": 1}}], [conv(4), {"tanh": {}}]]}},
        {"upConvolution": {"outputs": 6, "kernel": 2, "stride": 2}},
        {"conv2d": {"outputs": 6, "kernel": 3, "padding": 2, "dilation": 2}},
        {"sigmoid": {}},
        {"averagePool": {"kernel": 2}},
        {"dropout": {"probability": 0.5}},
        {"flatten": {}},
        {"linear": {"outputs": 12}},
        {"batchNorm": {}},
        {"layerNorm": {}},
        {"linear": {"name": "head", "bias": false}},
    ]);
    case("every_layer", json!({"layers": layers}), Shape::image(3, 8, 10), 5)
}

fn recorded_cases() -> Vec<Case> {
    vec![every_layer(), case("mlp", json!({"name": "mlp", "hidden": [9]}), Shape::image(1, 4, 4), 3)]
}

fn all_cases() -> Vec<Case> {
    let named = |name, input| case(name, json!({"name": name}), input, 7);
    let mut cases = recorded_cases();
    cases.extend([
        named("perceptron", Shape::image(1, 28, 28)),
        named("lenet5", Shape::image(1, 28, 28)),
        named("resnet20", Shape::image(3, 16, 16)),
        named("resnet32", Shape::image(3, 8, 8)),
        named("resnet56", Shape::image(3, 8, 8)),
        named("resnet18", Shape::image(3, 32, 32)),
        named("resnet34", Shape::image(3, 32, 32)),
        named("resnet50", Shape::image(3, 32, 32)),
        named("googlenet", Shape::image(3, 64, 64)),
        named("alexnet", Shape::image(3, 64, 64)),
        named("vgg16", Shape::image(3, 32, 32)),
        named("unet", Shape::image(1, 32, 16)),
    ]);
    cases
}

/// What PyTorch made of samples.
#[derive(Deserialize)]
struct Recorded {
    inputs: Vec<f32>,
    logits: Vec<f32>,
}

fn recorded(folder: &Path, case: &Case) -> Recorded {
    let path = folder.join(case.name).with_extension("json");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("recorded figures")
}

fn module(case: &Case) -> String {
    python(&case.description.network().expect("a network"), &case.description)
}

/// Reads weights and returns the greatest difference of the logits from PyTorch's, for each unit.
/// Exports the weights anew to `back`.
fn difference(case: &Case, weights: &Path, recorded: &Recorded, back: Option<&Path>) -> f32 {
    let read = read_model(weights).unwrap_or_else(|error| panic!("{}: {error}", weights.display()));
    let network = case.description.network().expect("a network");
    let mut replica = replica(network, read.tensors, 2).unwrap_or_else(|problem| panic!("{}: {problem}", case.name));
    let logits = replica.predict(&recorded.inputs);
    assert_eq!(logits.len(), recorded.logits.len(), "{}", case.name);
    if let Some(back) = back {
        let tensor = |tensor: lockstep_nn::StateTensor| OwnedTensor {
            name: tensor.name,
            shape: tensor.shape,
            values: tensor.values,
        };
        let tensors: Vec<OwnedTensor> = replica.weights().into_iter().map(tensor).collect();
        let borrowed: Vec<_> = tensors.iter().map(OwnedTensor::borrowed).collect();
        export_model(back, &borrowed, &BTreeMap::from([("format".to_owned(), "pt".to_owned())])).expect("exported");
    }
    let greatest = recorded.logits.iter().fold(1.0_f32, |greatest, logit| greatest.max(logit.abs()));
    let differences = logits.iter().zip(&recorded.logits).map(|(own, other)| (own - other).abs());
    differences.fold(0.0, f32::max) / greatest
}

fn recorded_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded")
}

#[test]
fn weights_that_pytorch_wrote_give_the_logits_that_pytorch_computed() {
    let folder = recorded_folder();
    for case in recorded_cases() {
        let path = folder.join(case.name).with_extension("safetensors");
        let found = difference(&case, &path, &recorded(&folder, &case), None);
        assert!(found <= TOLERANCE, "{}: {found}", case.name);
    }
}

#[test]
fn weights_of_other_types_give_the_logits_of_their_precision() {
    let (folder, case) = (recorded_folder(), recorded_cases().remove(1));
    let recorded = recorded(&folder, &case);
    for (dtype, tolerance) in [("f64", TOLERANCE), ("f16", 2e-3), ("bf16", 2e-2)] {
        let path = folder.join(format!("{}.{dtype}.safetensors", case.name));
        let found = difference(&case, &path, &recorded, None);
        assert!(found <= tolerance, "{dtype}: {found}");
    }
}

#[test]
fn the_exported_weights_have_the_names_and_layouts_that_pytorch_wrote() {
    let (folder, out) = (recorded_folder(), tempfile::tempdir().expect("a folder"));
    for case in recorded_cases() {
        let path = folder.join(case.name).with_extension("safetensors");
        let back = out.path().join("back.safetensors");
        difference(&case, &path, &recorded(&folder, &case), Some(&back));
        assert_eq!(read_model(&back).expect("ours").tensors, read_model(&path).expect("PyTorch's").tensors);
    }
}

/// The logits were recorded with this text. After a change of it run with UPDATE=1, and then
/// record.py.
#[test]
fn the_module_is_the_one_whose_logits_are_recorded() {
    let folder = recorded_folder();
    for case in recorded_cases() {
        let path = folder.join(case.name).with_extension("py");
        if env::var_os("UPDATE").is_some() {
            prepare(&folder, &case);
        }
        assert_eq!(fs::read_to_string(path).unwrap_or_default(), module(&case), "{}", case.name);
    }
}

/// Writes the module of a model, and the shape of its samples, for record.py.
fn prepare(folder: &Path, case: &Case) {
    let path = folder.join(case.name);
    fs::write(path.with_extension("py"), module(case)).expect("written");
    let Shape { channels, height, width } = case.description.input;
    fs::write(path.with_extension("json"), json!({"shape": [channels, height, width]}).to_string()).expect("written");
}

/// Returns a Python with PyTorch, if one is installed.
fn pytorch() -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let cache = cache.or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    Some(cache.join(TORCH).join("bin/python")).filter(|python| python.is_file())
}

#[test]
fn every_model_goes_to_pytorch_and_back_with_the_same_logits() {
    let Some(python) = pytorch() else {
        eprintln!("SKIPPED: no PyTorch in ~/.cache/{TORCH}, which `cargo xtask bench nn` installs");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let run = |arguments: &[&str]| {
        let script = recorded_folder().join("record.py");
        let output = Command::new(&python).arg(script).args(arguments).arg(folder.path()).output().expect("Python");
        let (said, problem) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{arguments:?}: {said}{problem}");
        said.into_owned()
    };
    let cases = all_cases();
    cases.iter().for_each(|case| prepare(folder.path(), case));
    run(&[]);
    for case in &cases {
        let weights = folder.path().join(case.name).with_extension("safetensors");
        let found = difference(case, &weights, &recorded(folder.path(), case), Some(&weights));
        println!("{}: {found:.1e}", case.name);
        assert!(found <= TOLERANCE, "{}: {found}", case.name);
    }
    let said = run(&["--check"]);
    assert_eq!(said.lines().count(), cases.len(), "{said}");
}
