//! The samples that a workload names.

use std::{
    env,
    path::{Path, PathBuf},
    process,
    sync::Arc,
};

use lockstep_data::{
    Augment, DataError, Dataset, Normalise, PictureOptions, PictureProblem, PictureReport, ResizedCrop, Shape, arrays,
    cifar::{self, Cifar},
    glyphs, idx, imagefolder, segmentation, shards, synthetic,
};
use lockstep_launch::{AugmentSpec, DataUri, DatasetFormat, DatasetSpec, ImageSpec, Workload};
use lockstep_objects::{FetchError, Fetched, TarFile, fetch};
use tracing::{error, warn};

use crate::{
    compute::recipe::check_batches,
    failure::{Failure, leave},
    membership::last_word,
    storage::retry::warned_of,
};

/// The refusal of a manifest for a trainer that brings its own model and samples.
pub(super) const NOT_BROUGHT: &str =
    "this trainer brings none; name the trainer that does with `lockstep run --trainer`, or in spec.template";
/// Values per pixel of pictures, unless the manifest says.
const COLOUR: usize = 3;
/// The classes of random samples, unless the manifest says.
const SYNTHETIC_CLASSES: u32 = 10;

/// Reads or draws the samples, and checks that they fill the global batch. Problems with pictures
/// that are decoded later are reported then.
pub(crate) fn open(workload: &Workload, report: PictureReport) -> Result<Dataset, Failure> {
    let Workload { dataset, training, .. } = workload;
    let classes = dataset.classes.map(|classes| classes as usize);
    let samples = match dataset.format {
        DatasetFormat::Glyphs => glyphs::draw(dataset.samples as usize, training.seed, dataset.evaluation_fraction),
        DatasetFormat::Synthetic => random(dataset, training.seed)?,
        DatasetFormat::Own => return Err(Failure::fatal(format!("spec.dataset.format: own: {NOT_BROUGHT}"))),
        DatasetFormat::Idx => of_files(dataset, |folder, held_out| idx::read(folder, held_out, classes))?,
        DatasetFormat::Cifar10 => of_files(dataset, |folder, held_out| cifar::read(folder, Cifar::Ten, held_out))?,
        DatasetFormat::Cifar100 => of_files(dataset, |folder, held_out| cifar::read(folder, Cifar::Hundred, held_out))?,
        DatasetFormat::Imagefolder => {
            let options = pictures(dataset, report);
            of_files(dataset, |folder, held_out| imagefolder::read(folder, held_out, &options))?
        }
        DatasetFormat::Tar => {
            let options = pictures(dataset, report);
            of_files(dataset, |folder, held_out| shards::read(folder, held_out, classes, &options))?
        }
        DatasetFormat::Segmentation => {
            let ignored = dataset.ignore_index.unwrap_or(segmentation::IGNORED);
            let options = segmentation::Options { classes, ignored, shape: dataset.image.map(shape) };
            of_files(dataset, |folder, held_out| segmentation::read(folder, held_out, &options))?
        }
        DatasetFormat::Npy => {
            let image = dataset.image.map(shape);
            of_files(dataset, |folder, held_out| arrays::read(folder, held_out, classes, image))?
        }
    };
    if dataset.augment.is_some() && !samples.train.are_bytes() {
        let problem = "spec.dataset.augment: given: only for pictures and samples of bytes; leave it out";
        return Err(Failure::fatal(problem));
    }
    check_class_weights(&training.class_weights, samples.train.classes()).map_err(Failure::fatal)?;
    check_batches(training, samples.train.len() as u64)?;
    let normalise = normalise(dataset, samples.train.shape()).map_err(Failure::fatal)?;
    let augment = dataset.augment.as_ref().map(augment).unwrap_or_default();
    Ok(samples.map(|part| {
        let part = part.augmented(augment.clone()).weighted(training.class_weights.clone());
        match &normalise {
            Some(normalise) => part.normalised(normalise.clone()),
            None => part,
        }
    }))
}

/// Returns a report that logs problems, and ends this process with a fatal one: the thread that
/// meets it has no other way out of a step.
pub(crate) fn ending_at(ending: &Path) -> PictureReport {
    let ending = ending.to_owned();
    Arc::new(move |problem| match problem {
        PictureProblem::Skipped { place, reason, found, most } => {
            warn!(place, reason, found, most, "corrupt picture skipped");
        }
        PictureProblem::Fatal(error) => {
            let failure = failure(&error);
            error!(exit = %failure.exit(), "{failure}");
            leave(&ending, &failure.ending());
            if let Failure::Fatal(message) = &failure {
                last_word::fatal(message);
            }
            process::exit(failure.exit().code().into());
        }
    })
}

fn failure(error: &DataError) -> Failure {
    if error.passes() { Failure::retry(error) } else { Failure::fatal(error) }
}

fn pictures(dataset: &DatasetSpec, report: PictureReport) -> PictureOptions {
    let DatasetSpec { image, max_corrupt, decoding_threads, .. } = dataset;
    PictureOptions {
        channels: image.map_or(COLOUR, |image| image.channels as usize),
        size: image.map(|image| (image.height as usize, image.width as usize)),
        max_corrupt: *max_corrupt as usize,
        threads: *decoding_threads as usize,
        report,
    }
}

fn of_files(
    dataset: &DatasetSpec,
    read: impl Fn(&Path, f64) -> Result<Dataset, DataError>,
) -> Result<Dataset, Failure> {
    let uri = dataset.uri.as_deref().unwrap_or_default();
    let failed = |problem: String, passes: bool| {
        let problem = format!("spec.dataset.uri: {uri}: {problem}");
        if passes { Failure::retry(problem) } else { Failure::fatal(problem) }
    };
    let (folder, contents) = match dataset.place() {
        Some(place) if place.is_remote() => {
            let Fetched { folder, digest } =
                fetched(dataset, &place).map_err(|error| failed(error.to_string(), error.is_passing()))?;
            (folder, Some(digest))
        }
        Some(DataUri::Folder(folder)) => (folder, None),
        Some(_) | None => (PathBuf::from(uri), None),
    };
    let samples = warned_of(uri, || read(&folder, dataset.evaluation_fraction));
    let samples = samples.map_err(|error| failed(error.to_string(), error.passes()))?;
    Ok(match contents {
        Some(digest) => samples.map(|part| part.with_contents(digest)),
        None => samples,
    })
}

/// Fetches what the cache lacks of a data set that lies elsewhere.
fn fetched(dataset: &DatasetSpec, place: &DataUri) -> Result<Fetched, FetchError> {
    // An archive of the format tar is read where it lies.
    let tar = if dataset.format == DatasetFormat::Tar { TarFile::Kept } else { TarFile::Unpacked };
    let cache = dataset.cache_folder().map_or_else(default_cache, Path::to_owned);
    fetch(place, tar, &cache)
}

/// Returns the cache of a process that runs by itself: the user's. The operator names that of a
/// pod.
fn default_cache() -> PathBuf {
    let user = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let user = user.or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    match user.filter(|folder| folder.is_absolute()) {
        Some(folder) => folder.join("lockstep/data"),
        None => env::temp_dir().join("lockstep-data"),
    }
}

fn random(dataset: &DatasetSpec, seed: u64) -> Result<Dataset, Failure> {
    let Some(image) = dataset.image else {
        return Err(Failure::fatal("spec.dataset.image: missing: required for format synthetic"));
    };
    let classes = dataset.classes.unwrap_or(SYNTHETIC_CLASSES) as usize;
    Ok(synthetic::draw(shape(image), classes, dataset.samples as usize, seed, dataset.evaluation_fraction))
}

fn shape(ImageSpec { channels, height, width }: ImageSpec) -> Shape {
    Shape { channels: channels as usize, height: height as usize, width: width as usize }
}

/// Checks that each class has a weight, or none has. The error names the field.
fn check_class_weights(weights: &[f32], classes: usize) -> Result<(), String> {
    if [0, classes].contains(&weights.len()) {
        return Ok(());
    }
    let accepted = format!("{classes}, one for each class of the data set, or none");
    Err(format!("spec.training.classWeights: {} values: {accepted}", weights.len()))
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
        open(&serde_json::from_value(workload).expect("a workload"), Arc::new(|_| {}))
            .map_err(|failure| failure.to_string())
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
