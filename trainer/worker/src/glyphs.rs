//! `lockstep-trainer glyphs`: data sets that need no download.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::ValueEnum;
use lockstep_data::{
    DataError,
    cifar::{self, Cifar},
    glyphs, idx, imagefolder, segmentation, shards,
};
use tracing::error;

/// Arguments of `lockstep-trainer glyphs`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The number of glyphs, for training and evaluation together.
    #[arg(long, default_value_t = 10_000)]
    samples: u32,
    /// The seed of the drawing.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The files to write. The formats of colour images hold out a sixth of them as their test
    /// files.
    #[arg(long, value_enum, default_value_t = Format::Idx)]
    format: Format,
    /// The folder for the files.
    #[arg(long)]
    output: PathBuf,
}

/// The formats that glyphs can be written in.
#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A pair of IDX files. A job splits them by `dataset.evaluationFraction`.
    Idx,
    /// CIFAR-10's binary version: the digits in colours.
    Cifar10,
    /// CIFAR-100's binary version: the digits in ten colours, each a class.
    Cifar100,
    /// A folder of JPEG and PNG pictures of many sizes: the digits in colours.
    Imagefolder,
    /// The same pictures in tar archives.
    Tar,
    /// No digits, but fields seen from above in 16 bands, with a class for each pixel.
    Segmentation,
}

/// The share of CIFAR's images that test: 10,000 of 60,000.
const TESTING: f64 = 1.0 / 6.0;

/// The names of the classes.
const DIGITS: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

/// Samples of an archive.
const SHARD: usize = 500;

/// Draws glyphs and writes them.
pub(crate) fn write(arguments: &Arguments) -> ExitCode {
    match written(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            error!(%problem, "glyphs not written");
            ExitCode::FAILURE
        }
    }
}

fn written(arguments: &Arguments) -> Result<(), DataError> {
    let Arguments { samples, seed, format, output } = arguments;
    let (samples, seed) = (*samples as usize, *seed);
    let in_colours = |cifar| cifar::write(output, cifar, &cifar::draw(cifar, samples, seed, TESTING));
    match format {
        Format::Idx => idx::write(output, idx::Part::Train, &glyphs::draw(samples, seed, 0.0).train),
        Format::Cifar10 => in_colours(Cifar::Ten),
        Format::Cifar100 => in_colours(Cifar::Hundred),
        Format::Imagefolder => pictures(output, samples, seed).map(drop),
        Format::Segmentation => segmentation::write(output, &segmentation::draw(samples, seed, TESTING)),
        Format::Tar => {
            let folder = output.join("pictures");
            let [train, evaluation] = pictures(&folder, samples, seed)?;
            shards::write(&output.join("train"), "train", &train, SHARD)?;
            shards::write(&output.join("evaluation"), "evaluation", &evaluation, SHARD)?;
            fs::remove_dir_all(&folder).map_err(|source| DataError::Write { path: folder, source })
        }
    }
}

/// Writes coloured digits as pictures, and returns those for training and those for evaluation.
fn pictures(folder: &Path, samples: usize, seed: u64) -> Result<[Vec<(PathBuf, u32)>; 2], DataError> {
    imagefolder::write(folder, &cifar::draw(Cifar::Ten, samples, seed, TESTING), &DIGITS, seed)
}
