//! CIFAR-10 and CIFAR-100 in their binary version: records of one length, each a label (CIFAR-100:
//! the coarse label, then the fine one, which is the class) and 32×32 pixels, all red ones, then
//! green, then blue. (Krizhevsky, 2009)

mod draw;

use std::{
    fs::{self, File},
    io::{BufWriter, Read, Write},
    path::{Path, PathBuf},
};

pub use self::draw::draw;
use crate::{
    DataError, Dataset, Normalise, Samples, Shape,
    held_out::{check_fraction, held_out},
    look::{check_folder, look},
};

/// Size of each image.
pub const SHAPE: Shape = Shape { channels: 3, height: 32, width: 32 };
/// The most records that a file may have.
pub const MAX_RECORDS: u64 = 1_000_000;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cifar {
    /// 10 classes.
    Ten,
    /// 100 classes in 20 coarse ones.
    Hundred,
}

impl Cifar {
    /// Number of classes.
    #[must_use]
    pub const fn classes(self) -> usize {
        match self {
            Self::Ten => 10,
            Self::Hundred => 100,
        }
    }

    /// Bytes of labels before the pixels.
    const fn label_bytes(self) -> usize {
        match self {
            Self::Ten => 1,
            Self::Hundred => 2,
        }
    }

    const fn record_bytes(self) -> usize {
        self.label_bytes() + SHAPE.bytes()
    }

    const fn format(self) -> &'static str {
        match self {
            Self::Ten => "cifar10",
            Self::Hundred => "cifar100",
        }
    }

    /// The folder that the archive unpacks to.
    const fn usual_folder(self) -> &'static str {
        match self {
            Self::Ten => "cifar-10-batches-bin",
            Self::Hundred => "cifar-100-binary",
        }
    }

    const fn training_files(self) -> &'static [&'static str] {
        match self {
            Self::Ten => {
                &["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"]
            }
            Self::Hundred => &["train.bin"],
        }
    }

    const fn test_file(self) -> &'static str {
        match self {
            Self::Ten => "test_batch.bin",
            Self::Hundred => "test.bin",
        }
    }

    /// A file with the classes' names, one a line.
    const fn names_file(self) -> &'static str {
        match self {
            Self::Ten => "batches.meta.txt",
            Self::Hundred => "fine_label_names.txt",
        }
    }

    /// Mean and standard deviation of each channel over the training pixels, computed from the
    /// published files.
    fn normalise(self) -> Normalise {
        match self {
            Self::Ten => Normalise::new(&[0.4914, 0.4822, 0.4465], &[0.2470, 0.2435, 0.2616]),
            Self::Hundred => Normalise::new(&[0.5071, 0.4865, 0.4409], &[0.2673, 0.2564, 0.2762]),
        }
    }
}

/// Reads the data set in `folder`, or in the folder inside it that the archive unpacks to. Training
/// files may be missing as long as one is there. Without the test file, the last `⌊n ·
/// evaluation_fraction⌋` samples are held out.
///
/// # Errors
/// Any [`DataError`] about files.
pub fn read(folder: &Path, cifar: Cifar, evaluation_fraction: f64) -> Result<Dataset, DataError> {
    check_fraction(evaluation_fraction)?;
    check_folder(folder, "the binary version of CIFAR")?;
    let inside = folder.join(cifar.usual_folder());
    let folder = if look(&inside)?.is_some_and(|found| found.is_dir()) { &inside } else { folder };
    let mut train = Records::default();
    for name in cifar.training_files() {
        train.read(&folder.join(name), cifar)?;
    }
    if train.labels.is_empty() {
        return Err(DataError::NoFiles {
            folder: folder.to_owned(),
            format: cifar.format(),
            looked_for: cifar.training_files().join(", "),
        });
    }
    let mut test = Records::default();
    test.read(&folder.join(cifar.test_file()), cifar)?;
    let names = class_names(&folder.join(cifar.names_file()), cifar)?;
    let samples = |records: Records| {
        let samples = Samples::new(SHAPE, cifar.classes(), records.pixels, records.labels);
        let samples = samples.normalised(cifar.normalise());
        if names.is_empty() { samples } else { samples.named(names.clone()) }
    };
    if test.labels.is_empty() {
        let held_out = held_out(train.labels.len(), evaluation_fraction);
        return Ok(samples(train).split(held_out));
    }
    Ok(Dataset { train: samples(train), evaluation: samples(test) })
}

/// The names of the classes; empty without the file, or if it names another number.
fn class_names(path: &Path, cifar: Cifar) -> Result<Vec<String>, DataError> {
    /// Longer than any list of a hundred names.
    const MOST_BYTES: u64 = 1 << 16;
    if look(path)?.is_none() {
        return Ok(Vec::new());
    }
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut text));
    read.map_err(|source| DataError::Read { path: path.to_owned(), source })?;
    let text = String::from_utf8_lossy(&text);
    let names: Vec<String> = text.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    Ok(if names.len() == cifar.classes() { names } else { Vec::new() })
}

#[derive(Default)]
struct Records {
    pixels: Vec<u8>,
    labels: Vec<u32>,
}

impl Records {
    /// Adds the records of a file, if it is there.
    fn read(&mut self, path: &Path, cifar: Cifar) -> Result<(), DataError> {
        let Some(found) = look(path)?.filter(|found| found.is_file()) else { return Ok(()) };
        let (record, bytes) = (cifar.record_bytes() as u64, found.len());
        if bytes == 0 || !bytes.is_multiple_of(record) || bytes / record > MAX_RECORDS {
            return Err(DataError::NoRecords { path: path.to_owned(), found: bytes, record, most: MAX_RECORDS });
        }
        let failed = |source| DataError::Read { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        self.pixels.reserve_exact((bytes / record) as usize * SHAPE.bytes());
        let mut one = vec![0; cifar.record_bytes()];
        for index in 0..(bytes / record) as usize {
            file.read_exact(&mut one).map_err(failed)?;
            let (labels, pixels) = one.split_at(cifar.label_bytes());
            let label = labels[labels.len() - 1];
            if usize::from(label) >= cifar.classes() {
                let (path, most) = (path.to_owned(), cifar.classes() - 1);
                return Err(DataError::LabelOutOfRange { path, index, found: label.into(), most });
            }
            self.labels.push(label.into());
            self.pixels.extend_from_slice(pixels);
        }
        Ok(())
    }
}

/// Writes a data set as the files of the format into `folder`, which is made where it is missing:
/// the training samples in as many files as the format has, and the test file.
///
/// # Errors
/// [`DataError::Write`].
///
/// # Panics
/// When the samples have another shape or other classes.
pub fn write(folder: &Path, cifar: Cifar, dataset: &Dataset) -> Result<(), DataError> {
    let Dataset { train, evaluation } = dataset;
    assert_eq!((train.shape(), train.classes()), (SHAPE, cifar.classes()), "samples of {cifar:?}");
    fs::create_dir_all(folder).map_err(|source| DataError::Write { path: folder.to_owned(), source })?;
    let names = cifar.training_files();
    let each = train.len().div_ceil(names.len()).max(1);
    for (at, name) in names.iter().enumerate() {
        let run = (at * each).min(train.len())..((at + 1) * each).min(train.len());
        write_file(folder.join(name), cifar, train, run)?;
    }
    write_file(folder.join(cifar.test_file()), cifar, evaluation, 0..evaluation.len())
}

fn write_file(path: PathBuf, cifar: Cifar, samples: &Samples, run: std::ops::Range<usize>) -> Result<(), DataError> {
    if run.is_empty() {
        return Ok(());
    }
    let write = || {
        let mut file = BufWriter::new(File::create(&path)?);
        for index in run {
            let label = samples.label(index) as u8;
            match cifar {
                Cifar::Ten => file.write_all(&[label])?,
                // Five fine labels are a coarse one.
                Cifar::Hundred => file.write_all(&[label / 5, label])?,
            }
            file.write_all(samples.image(index))?;
        }
        file.flush()
    };
    write().map_err(|source| DataError::Write { path: path.clone(), source })
}

#[cfg(test)]
mod tests;
