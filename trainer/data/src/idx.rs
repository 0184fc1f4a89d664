//! IDX files as MNIST ships them: `train-images-idx3-ubyte` and its three companions, plain or
//! compressed with gzip. Images may have channels (`idx4`), and labels 16 or 32 bits (`idx1-short`,
//! `idx1-int`).

mod decode;
mod encode;

use std::path::{Path, PathBuf};

pub use self::{
    decode::{MAX_CHANNELS, MAX_PIXEL_BYTES, MAX_SAMPLES, MAX_SIDE},
    encode::write,
};
use crate::{
    DataError, Dataset, MAX_CLASSES, Samples, Shape,
    held_out::{check_fraction, held_out},
    look::{check_folder, look},
};

/// The purpose of a pair of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `train-…`
    Train,
    /// `t10k-…`
    Evaluation,
}

/// The content of a file of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Images,
    Labels,
}

/// The size of a value, as a file's name tells it. Its header decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Byte,
    Short,
    Int,
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

    const fn other(self) -> Self {
        match self {
            Self::Images => Self::Labels,
            Self::Labels => Self::Images,
        }
    }
}

/// Reads the data set in `folder`: its training and its test files, or, where there is only one
/// pair of either name, that pair with its last `⌊n · evaluation_fraction⌋` samples held out.
/// Without a number of classes, the greatest label is the last class.
///
/// # Errors
/// Any [`DataError`] about files.
pub fn read(folder: &Path, evaluation_fraction: f64, classes: Option<usize>) -> Result<Dataset, DataError> {
    check_fraction(evaluation_fraction)?;
    check_folder(folder, "the IDX files")?;
    let pairs = (Pair::find(folder, Part::Train)?, Pair::find(folder, Part::Evaluation)?);
    match pairs {
        (Some(train), Some(evaluation)) => both(&train, &evaluation, classes),
        (Some(pair), None) | (None, Some(pair)) => {
            let raw = pair.read(classes)?;
            let classes = classes.unwrap_or_else(|| raw.classes());
            let held_out = held_out(raw.labels.len(), evaluation_fraction);
            Ok(raw.samples(classes).split(held_out))
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

fn both(train: &Pair, evaluation: &Pair, classes: Option<usize>) -> Result<Dataset, DataError> {
    let parts = [train.read(classes)?, evaluation.read(classes)?];
    let [train_shape, evaluation_shape] = parts.each_ref().map(|part| part.shape);
    if train_shape != evaluation_shape {
        let (train, evaluation) = (train.images.clone(), evaluation.images.clone());
        return Err(DataError::SizesDiffer { train, train_shape, evaluation, evaluation_shape });
    }
    let classes = classes.unwrap_or_else(|| parts.each_ref().map(Raw::classes).into_iter().max().unwrap_or(1));
    let [train, evaluation] = parts.map(|part| part.samples(classes));
    Ok(Dataset { train, evaluation })
}

/// The files of one part.
#[derive(Debug)]
struct Pair {
    images: PathBuf,
    labels: PathBuf,
}

/// Their content.
struct Raw {
    shape: Shape,
    pixels: Vec<u8>,
    labels: Vec<u32>,
}

impl Raw {
    /// Enough classes for all labels.
    fn classes(&self) -> usize {
        self.labels.iter().max().map_or(1, |greatest| *greatest as usize + 1)
    }

    fn samples(self, classes: usize) -> Samples {
        Samples::new(self.shape, classes, self.pixels, self.labels)
    }
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

    /// Labels are below `classes`, or below the most classes there may be.
    fn read(&self, classes: Option<usize>) -> Result<Raw, DataError> {
        let Self { images, labels } = self;
        let (image_count, shape, pixels) = decode::images(images)?;
        let found = decode::labels(labels)?;
        if image_count != found.len() {
            return Err(DataError::CountsDiffer {
                images: images.clone(),
                image_count,
                labels: labels.clone(),
                label_count: found.len(),
            });
        }
        let classes = classes.unwrap_or(MAX_CLASSES);
        if let Some(index) = found.iter().position(|label| !(0..classes as i64).contains(label)) {
            let found = found[index];
            return Err(DataError::LabelOutOfRange { path: labels.clone(), index, found, most: classes - 1 });
        }
        Ok(Raw { shape, pixels, labels: found.into_iter().map(|label| label as u32).collect() })
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

/// The names that a file may have, the usual ones first; `.gz` may follow each.
fn names(part: Part, kind: Kind) -> Vec<String> {
    let variants: &[(usize, Width)] = match kind {
        Kind::Images => &[(3, Width::Byte), (4, Width::Byte)],
        Kind::Labels => &[(1, Width::Byte), (1, Width::Short), (1, Width::Int)],
    };
    variants
        .iter()
        .flat_map(|(dimensions, width)| {
            let usual = name(part, kind, *dimensions, *width);
            let dotted = usual.replace("-idx", ".idx");
            [usual, dotted]
        })
        .collect()
}

fn name(part: Part, kind: Kind, dimensions: usize, width: Width) -> String {
    let width = match width {
        Width::Byte => "ubyte",
        Width::Short => "short",
        Width::Int => "int",
    };
    format!("{}-{}-idx{dimensions}-{width}", part.prefix(), kind.word())
}

#[cfg(test)]
mod tests;
