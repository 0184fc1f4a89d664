//! The samples that a workload names.

use std::path::Path;

use lockstep_data::{
    Augment, DataError, Dataset, Normalise, ResizedCrop, Shape,
    cifar::{self, Cifar},
    glyphs, idx, synthetic,
};
use lockstep_launch::{AugmentSpec, DatasetFormat, DatasetSpec, Workload};

use crate::{compute::recipe::check_batches, failure::Failure, storage::retry::warned_of};

/// The refusal of a manifest for a trainer that brings its own model and samples.
pub(super) const NOT_BROUGHT: &str =
    "this trainer brings none; name the trainer that does with `lockstep run --trainer`, or in spec.template";
/// The classes of random samples, unless the manifest says.
const SYNTHETIC_CLASSES: u32 = 10;

/// Reads or draws the samples, and checks that they fill the global batch.
pub(crate) fn open(workload: &Workload) -> Result<Dataset, Failure> {
    let Workload { dataset, training, .. } = workload;
    let samples = match dataset.format {
        DatasetFormat::Glyphs => glyphs::draw(dataset.samples as usize, training.seed, dataset.evaluation_fraction),
        DatasetFormat::Synthetic => random(dataset, training.seed)?,
        DatasetFormat::Own => return Err(Failure::fatal(format!("spec.dataset.format: own: {NOT_BROUGHT}"))),
        DatasetFormat::Idx => of_files(dataset, |folder, held_out| {
            idx::read(folder, held_out, dataset.classes.map(|classes| classes as usize))
        })?,
        DatasetFormat::Cifar10 => of_files(dataset, |folder, held_out| cifar::read(folder, Cifar::Ten, held_out))?,
        DatasetFormat::Cifar100 => of_files(dataset, |folder, held_out| cifar::read(folder, Cifar::Hundred, held_out))?,
    };
    check_batches(training, samples.train.len() as u64)?;
    let normalise = normalise(dataset, samples.train.shape()).map_err(Failure::fatal)?;
    let augment = dataset.augment.as_ref().map(augment).unwrap_or_default();
    Ok(samples.map(|part| {
        let part = part.augmented(augment.clone());
        match &normalise {
            Some(normalise) => part.normalised(normalise.clone()),
            None => part,
        }
    }))
}

fn of_files(
    dataset: &DatasetSpec,
    read: impl Fn(&Path, f64) -> Result<Dataset, DataError>,
) -> Result<Dataset, Failure> {
    let uri = dataset.uri.as_deref().unwrap_or_default();
    let folder = Path::new(uri.strip_prefix("file://").unwrap_or(uri));
    warned_of(uri, || read(folder, dataset.evaluation_fraction)).map_err(|error| {
        let problem = format!("spec.dataset.uri: {uri}: {error}");
        if error.passes() { Failure::retry(problem) } else { Failure::fatal(problem) }
    })
}

fn random(dataset: &DatasetSpec, seed: u64) -> Result<Dataset, Failure> {
    let Some(image) = dataset.image else {
        return Err(Failure::fatal("spec.dataset.image: missing: required for format synthetic"));
    };
    let [channels, height, width] = [image.channels, image.height, image.width].map(|size| size as usize);
    let shape = Shape { channels, height, width };
    let classes = dataset.classes.unwrap_or(SYNTHETIC_CLASSES) as usize;
    Ok(synthetic::draw(shape, classes, dataset.samples as usize, seed, dataset.evaluation_fraction))
}

/// Returns the moments that the manifest gives. The error names the field.
fn normalise(dataset: &DatasetSpec, shape: Shape) -> Result<Option<Normalise>, String> {
    let DatasetSpec { mean, std, .. } = dataset;
    for (field, given) in [("mean", mean.len()), ("std", std.len())] {
        if ![0, shape.channels].contains(&given) {
            let accepted = format!("{}, one for each channel of the samples, or none", shape.channels);
            return Err(format!("spec.dataset.{field}: {given} values: {accepted}"));
        }
    }
    Ok((!mean.is_empty()).then(|| Normalise::new(mean, std)))
}

fn augment(spec: &AugmentSpec) -> Augment {
    let AugmentSpec { random_resized_crop, random_crop, random_horizontal_flip } = spec;
    Augment {
        random_resized_crop: random_resized_crop.map(|crop| ResizedCrop { scale: crop.scale, ratio: crop.ratio }),
        random_crop_padding: random_crop.map_or(0, |crop| crop.padding),
        random_horizontal_flip: *random_horizontal_flip,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn opened(dataset: Value) -> Result<Dataset, String> {
        let workload = json!({
            "model": {"name": "mlp"},
            "dataset": dataset,
            "training": {"globalBatchSize": 8},
            "communication": {},
            "checkpoint": {"uri": "file:///checkpoints"},
        });
        open(&serde_json::from_value(workload).expect("a workload")).map_err(|failure| failure.to_string())
    }

    #[test]
    fn random_samples_have_the_shape_and_the_classes_of_the_manifest() {
        let image = json!({"channels": 16, "height": 32, "width": 24});
        let samples = opened(json!({"format": "synthetic", "image": image, "classes": 300, "samples": 1000}));
        let Dataset { train, evaluation } = samples.expect("drawn");
        assert_eq!((train.len(), evaluation.len(), train.classes()), (900, 100, 300));
        assert_eq!(train.shape(), Shape { channels: 16, height: 32, width: 24 });
    }

    #[test]
    fn moments_of_the_manifest_have_a_value_for_each_channel() {
        let glyphs = |mean: Value, std: Value| json!({"format": "glyphs", "samples": 20, "mean": mean, "std": std});
        let samples = opened(glyphs(json!([0.5]), json!([0.25]))).expect("drawn");
        assert_eq!(samples.train.normalise(), &Normalise::new(&[0.5], &[0.25]));
        let error = opened(glyphs(json!([0.5, 0.5, 0.5]), json!([1, 1, 1]))).expect_err("grey");
        assert_eq!(error, "spec.dataset.mean: 3 values: 1, one for each channel of the samples, or none");
    }

    #[test]
    fn a_folder_that_is_missing_is_named_with_the_field() {
        let error = opened(json!({"format": "cifar10", "uri": "file:///nowhere"})).expect_err("missing");
        assert!(error.starts_with("spec.dataset.uri: file:///nowhere: ") && error.contains("CIFAR"), "{error}");
    }
}
