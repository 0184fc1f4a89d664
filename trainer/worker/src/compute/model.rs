//! The network and the samples that a workload names.

use std::path::Path;

use lockstep_data::{DataError, Dataset, check_global_batch, glyphs, idx};
use lockstep_launch::{DatasetFormat, ModelName, ModelSpec, Workload};
use lockstep_nn::{Network, models};

use crate::{failure::Failure, storage::retry::warned_of};

/// The hidden widths of an mlp that names none.
const DEFAULT_HIDDEN: [usize; 1] = [128];
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

/// Returns the network for samples of this shape.
pub(crate) fn network(model: &ModelSpec, dataset: &Dataset) -> Result<Network, Failure> {
    let shape = dataset.train.shape();
    let network = match model.name {
        ModelName::Lenet5 => models::lenet5(),
        ModelName::Mlp => {
            let named: Vec<usize> = model.hidden.iter().map(|width| *width as usize).collect();
            let hidden = if named.is_empty() { &DEFAULT_HIDDEN[..] } else { &named };
            models::mlp(shape.bytes(), hidden, dataset.train.classes())
        }
        ModelName::Mlp25m => models::mlp25m(),
    };
    if network.input().elements() != shape.bytes() || network.classes() != dataset.train.classes() {
        return Err(Failure::fatal(format!(
            "spec.model.name: this model takes images of {} pixels in {} classes, the data set has {} pixels ({} × {} × {}) in {}",
            network.input().elements(),
            network.classes(),
            shape.bytes(),
            shape.channels,
            shape.height,
            shape.width,
            dataset.train.classes(),
        )));
    }
    Ok(network)
}

/// Returns the path in a checked `file://` URI.
fn path(uri: &str) -> &Path {
    Path::new(uri.strip_prefix("file://").unwrap_or(uri))
}
