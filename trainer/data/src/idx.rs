//! IDX files as MNIST ships them: `train-images-idx3-ubyte` and its three companions, plain or
//! compressed with gzip.

mod decode;
mod encode;

use std::{
    fs::{self, Metadata},
    io,
    path::{Path, PathBuf},
};

use crate::{DataError, Dataset, Samples, Shape, samples::held_out};

pub use self::{
    decode::{MAX_PIXEL_BYTES, MAX_SAMPLES, MAX_SIDE},
    encode::write,
};

/// The greatest share of the samples that may be held out.
pub const MAX_EVALUATION_FRACTION: f64 = 0.9;

/// What a pair of files is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `train-…`
    Train,
    /// `t10k-…`
    Evaluation,
}

/// What a file of a pair holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Images,
    Labels,
}

impl Part {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Evaluation => "t10k",
        }
    }
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::Images => "images",
            Self::Labels => "labels",
        }
    }

    const fn dimensions(self) -> usize {
        match self {
            Self::Images => 3,
            Self::Labels => 1,
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Images => Self::Labels,
            Self::Labels => Self::Images,
        }
    }
}

/// Reads the data set in `folder`: its training and its test files, or, where there is only one
/// pair of either name, that pair with its last `⌊n · evaluation_fraction⌋` samples held out.
/// Labels must be below `classes`.
///
/// # Errors
/// Any [`DataError`] about files.
pub fn read(folder: &Path, evaluation_fraction: f64, classes: usize) -> Result<Dataset, DataError> {
    if !(0.0..=MAX_EVALUATION_FRACTION).contains(&evaluation_fraction) {
        return Err(DataError::EvaluationFraction { found: evaluation_fraction, most: MAX_EVALUATION_FRACTION });
    }
    if !look(folder)?.is_some_and(|found| found.is_dir()) {
        return Err(DataError::FolderMissing { folder: folder.to_owned() });
    }
    let pairs = (Pair::find(folder, Part::Train)?, Pair::find(folder, Part::Evaluation)?);
    match pairs {
        (Some(train), Some(evaluation)) => {
            let dataset = Dataset { train: train.read(classes)?, evaluation: evaluation.read(classes)? };
            let sizes = [&dataset.train, &dataset.evaluation].map(|part| (part.shape().height, part.shape().width));
            if sizes[0] != sizes[1] {
                return Err(DataError::SizesDiffer {
                    train: train.images,
                    train_size: sizes[0],
                    evaluation: evaluation.images,
                    evaluation_size: sizes[1],
                });
            }
            Ok(dataset)
        }
        (Some(pair), None) | (None, Some(pair)) => {
            let samples = pair.read(classes)?;
            let held_out = held_out(samples.len(), evaluation_fraction);
            Ok(samples.split(held_out))
        }
        (None, None) => {
            let names = [Part::Train, Part::Evaluation]
                .into_iter()
                .flat_map(|part| [Kind::Images, Kind::Labels].map(|kind| names(part, kind).join(", ")));
            let looked_for = names.collect::<Vec<_>>().join(", ");
            Err(DataError::NoPair { folder: folder.to_owned(), looked_for })
        }
    }
}

/// The files of one part.
#[derive(Debug)]
struct Pair {
    images: PathBuf,
    labels: PathBuf,
}

impl Pair {
    fn find(folder: &Path, part: Part) -> Result<Option<Self>, DataError> {
        let half = |present: PathBuf, kind: Kind| {
            Err(DataError::HalfPair { present, looked_for: names(part, kind.other()).join(", ") })
        };
        match (find(folder, part, Kind::Images)?, find(folder, part, Kind::Labels)?) {
            (Some(images), Some(labels)) => Ok(Some(Self { images, labels })),
            (Some(images), None) => half(images, Kind::Images),
            (None, Some(labels)) => half(labels, Kind::Labels),
            (None, None) => Ok(None),
        }
    }

    fn read(&self, classes: usize) -> Result<Samples, DataError> {
        let Self { images, labels } = self;
        let ([image_count, height, width], pixels) = decode::images(images)?;
        let ([label_count], classes_of) = decode::labels(labels)?;
        if image_count != label_count {
            return Err(DataError::CountsDiffer {
                images: images.clone(),
                image_count,
                labels: labels.clone(),
                label_count,
            });
        }
        if let Some(index) = classes_of.iter().position(|label| usize::from(*label) >= classes) {
            let found = classes_of[index];
            return Err(DataError::LabelOutOfRange { path: labels.clone(), index, found, most: classes - 1 });
        }
        Ok(Samples::new(Shape { channels: 1, height, width }, classes, pixels, classes_of))
    }
}

fn find(folder: &Path, part: Part, kind: Kind) -> Result<Option<PathBuf>, DataError> {
    for name in names(part, kind).into_iter().flat_map(|name| [format!("{name}.gz"), name]) {
        let path = folder.join(name);
        if look(&path)?.is_some_and(|found| found.is_file()) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// What lies at a path, if anything: storage that cannot be asked says nothing of that.
fn look(path: &Path) -> Result<Option<Metadata>, DataError> {
    match fs::metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(DataError::Read { path: path.to_owned(), source }),
    }
}

/// The names that a file may have, the usual one first; `.gz` may follow each.
fn names(part: Part, kind: Kind) -> [String; 2] {
    ["-", "."].map(|mark| format!("{}-{}{mark}idx{}-ubyte", part.prefix(), kind.word(), kind.dimensions()))
}

#[cfg(test)]
mod tests;
