//! NumPy's arrays in files: `x_train.npy` with the samples and `y_train.npy` with their labels, and
//! for evaluation `x_test.npy` and `y_test.npy`.
//!
//! Samples are N × features, N × rows × columns, or N × rows × columns × channels. Bytes are pixels
//! from 0 to 255; f16, f32 and f64 are values as they are. Labels are integers.

mod array;

use std::path::{Path, PathBuf};

use self::array::{Values, labels, samples};
pub use crate::npy::header::{MAX_HEADER_BYTES, MAX_SIDE};
use crate::{
    DataError, Dataset, MAX_CLASSES, Normalise, Samples, Shape,
    held_out::{check_fraction, held_out},
    look::{check_folder, look},
};

/// The most samples of a file.
pub const MAX_SAMPLES: usize = 1 << 31;

/// Reads the data set in `folder`. Without test files, the last `⌊n · evaluation_fraction⌋` samples
/// are held out. Without a number of classes, the greatest label is the last class. `image` says
/// which shape the samples have where it fits: then they may also be N × channels × rows × columns,
/// or N × features.
///
/// # Errors
/// Any [`DataError`] about files.
pub fn read(
    folder: &Path,
    evaluation_fraction: f64,
    classes: Option<usize>,
    image: Option<Shape>,
) -> Result<Dataset, DataError> {
    check_fraction(evaluation_fraction)?;
    check_folder(folder, "x_train.npy and y_train.npy")?;
    let Some(train) = Pair::find(folder, "train")? else {
        let looked_for = "x_train.npy, y_train.npy, x_test.npy, y_test.npy".to_owned();
        return Err(DataError::NoFiles { folder: folder.to_owned(), format: "npy", looked_for });
    };
    let test = Pair::find(folder, "test")?;
    let most = classes.unwrap_or(MAX_CLASSES);
    let train_part = train.read(most, image)?;
    let Some(test) = test else {
        let held_out = held_out(train_part.labels.len(), evaluation_fraction);
        let classes = classes.unwrap_or_else(|| train_part.classes());
        return Ok(train_part.samples(classes).split(held_out));
    };
    let test_part = test.read(most, image)?;
    if train_part.shape != test_part.shape {
        return Err(DataError::SizesDiffer {
            train: train.samples,
            train_shape: train_part.shape,
            evaluation: test.samples,
            evaluation_shape: test_part.shape,
        });
    }
    if train_part.values.are_bytes() != test_part.values.are_bytes() {
        let reason = format!("bytes and other values cannot be mixed with {}", train.samples.display());
        return Err(DataError::NoArray { path: test.samples, reason });
    }
    let classes = classes.unwrap_or_else(|| train_part.classes().max(test_part.classes()));
    Ok(Dataset { train: train_part.samples(classes), evaluation: test_part.samples(classes) })
}

/// The files of one part.
struct Pair {
    samples: PathBuf,
    labels: PathBuf,
}

/// Their content.
struct Raw {
    shape: Shape,
    values: Values,
    labels: Vec<u32>,
}

impl Pair {
    fn find(folder: &Path, part: &str) -> Result<Option<Self>, DataError> {
        let [samples, labels] = ["x", "y"].map(|letter| folder.join(format!("{letter}_{part}.npy")));
        let is_there = |path: &Path| Ok(look(path)?.is_some_and(|found| found.is_file()));
        match (is_there(&samples)?, is_there(&labels)?) {
            (true, true) => Ok(Some(Self { samples, labels })),
            (true, false) => Err(half(samples, &labels)),
            (false, true) => Err(half(labels, &samples)),
            (false, false) => Ok(None),
        }
    }

    fn read(&self, classes: usize, image: Option<Shape>) -> Result<Raw, DataError> {
        let (count, shape, values) = samples(&self.samples, image)?;
        let labels = labels(&self.labels, classes)?;
        if count != labels.len() {
            return Err(DataError::CountsDiffer {
                images: self.samples.clone(),
                image_count: count,
                labels: self.labels.clone(),
                label_count: labels.len(),
            });
        }
        Ok(Raw { shape, values, labels })
    }
}

fn half(present: PathBuf, missing: &Path) -> DataError {
    let looked_for = missing.file_name().unwrap_or_default().to_string_lossy().into_owned();
    DataError::NoPartner { present, looked_for }
}

impl Raw {
    /// Enough classes for all labels.
    fn classes(&self) -> usize {
        self.labels.iter().max().map_or(1, |greatest| *greatest as usize + 1)
    }

    fn samples(self, classes: usize) -> Samples {
        let Self { shape, values, labels } = self;
        match values {
            Values::Bytes(pixels) => Samples::new(shape, classes, pixels, labels),
            Values::Floats(values) => {
                let as_they_are = Normalise::new(&vec![0.0; shape.channels], &vec![1.0; shape.channels]);
                Samples::values(shape, classes, values, labels).normalised(as_they_are)
            }
        }
    }
}

#[cfg(test)]
mod tests;
