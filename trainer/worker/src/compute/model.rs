//! The network and the samples that a workload names.

use std::path::Path;

use lockstep_data::{DataError, Dataset, check_global_batch, glyphs, idx};
use lockstep_launch::{DatasetFormat, ModelName, ModelSpec, Workload};
use lockstep_nn::{Network, Shape, models};

use crate::{failure::Failure, storage::retry::warned_of};

/// The classes of the data sets that can be read so far.
const CLASSES: usize = 10;

/// Reads or draws the samples, and checks that they fill the global batch.
pub(crate) fn dataset(workload: &Workload) -> Result<Dataset, Failure> {
    let Workload { dataset, training, .. } = workload;
    let samples = match dataset.format {
        DatasetFormat::Idx => {
            let uri = dataset.uri.as_deref().unwrap_or_default();
            warned_of(uri, || idx::read(path(uri), dataset.evaluation_fraction, CLASSES))
                .map_err(|error| unread(uri, &error))?
        }
        DatasetFormat::Glyphs => glyphs::draw(dataset.samples as usize, training.seed, dataset.evaluation_fraction),
    };
    check_global_batch(samples.train.len() as u64, u64::from(training.global_batch_size)).map_err(Failure::fatal)?;
    Ok(samples)
}

fn unread(uri: &str, error: &DataError) -> Failure {
    let problem = format!("spec.dataset.uri: {uri}: {error}");
    if error.passes() { Failure::retry(problem) } else { Failure::fatal(problem) }
}

/// Returns the network for the samples and the classes of the data set.
pub(crate) fn network(model: &ModelSpec, dataset: &Dataset) -> Result<Network, Failure> {
    let (shape, classes) = (dataset.train.shape(), dataset.train.classes());
    let input = Shape::image(shape.channels, shape.height, shape.width);
    let name = model.name.as_str();
    let network = match model.name {
        ModelName::Mlp if !model.hidden.is_empty() => {
            let hidden: Vec<usize> = model.hidden.iter().map(|width| *width as usize).collect();
            models::mlp_on(input, &hidden, classes)
        }
        _ => match models::named(name) {
            Some(named) => (named.build)(input, classes),
            None => return Err(Failure::fatal(format!("spec.model.name: {name}: the trainer has no such model"))),
        },
    };
    let network = network.map_err(|error| {
        Failure::fatal(format!("spec.model.name: {name} does not fit samples of {input} in {classes} classes: {error}"))
    })?;
    let output = network.shape(network.output());
    if !output.is_flat() {
        return Err(Failure::fatal(format!(
            "spec.model.name: {name} has an output of {output}: it needs a label for each pixel, and the data set has \
             one for each sample"
        )));
    }
    Ok(network)
}

/// Returns the path in a checked `file://` URI.
fn path(uri: &str) -> &Path {
    Path::new(uri.strip_prefix("file://").unwrap_or(uri))
}
