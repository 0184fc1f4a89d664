//! Samples in memory as a folder of pictures, for tests and examples.

use std::{
    fs,
    io::{self, Cursor},
    path::{Path, PathBuf},
};

use image::{ExtendedColorType, ImageEncoder, ImageError, codecs::jpeg::JpegEncoder, codecs::png::PngEncoder};

use crate::{
    DataError, Dataset, Samples, Shape,
    augment::{Region, View},
    random::Random,
    resample::{Picture, Scratch, resample},
};

const QUALITY: u8 = 90;
/// Keeps the draws of sizes apart from all others.
const SIZES: u64 = 0x517E5;

/// Writes colour samples as `train/CLASS/NUMBER.jpg` and `evaluation/CLASS/NUMBER.jpg`, each third
/// as a PNG. Pictures have one to two times the rows and columns of the samples, at random. The
/// same samples give the same bytes. Returns the files for training and for evaluation, each with
/// its label.
///
/// # Errors
/// [`DataError::Write`].
///
/// # Panics
/// When the samples have other than 3 channels, or a class has no name.
pub fn write(
    folder: &Path,
    dataset: &Dataset,
    class_names: &[&str],
    seed: u64,
) -> Result<[Vec<(PathBuf, u32)>; 2], DataError> {
    let Dataset { train, evaluation } = dataset;
    assert_eq!((train.shape().channels, train.classes()), (3, class_names.len()), "colour samples with names");
    let mut files = [Vec::new(), Vec::new()];
    for ((part, samples), files) in [("train", train), ("evaluation", evaluation)].into_iter().zip(&mut files) {
        for name in class_names {
            let folder = folder.join(part).join(name);
            fs::create_dir_all(&folder).map_err(|source| DataError::Write { path: folder, source })?;
        }
        for index in 0..samples.len() {
            let mut random = Random::keyed(seed ^ SIZES, index as u64);
            let is_png = random.one_in(3);
            let end = if is_png { "png" } else { "jpg" };
            let name = class_names[samples.label(index) as usize];
            let path = folder.join(part).join(name).join(format!("{index:06}.{end}"));
            let encoded = encoded(samples, index, is_png, &mut random).map_err(io::Error::other);
            let written = encoded.and_then(|encoded| fs::write(&path, encoded));
            written.map_err(|source| DataError::Write { path: path.clone(), source })?;
            files.push((path, samples.label(index)));
        }
    }
    Ok(files)
}

fn encoded(samples: &Samples, index: usize, is_png: bool, random: &mut Random) -> Result<Vec<u8>, ImageError> {
    let from = samples.shape();
    let Shape { height, width, .. } = from;
    let larger = |side: usize, random: &mut Random| side + random.below(side as u32 + 1) as usize;
    let to = Shape { channels: 1, height: larger(height, random), width: larger(width, random) };
    let view = View { region: Region { top: 0, left: 0, height, width }, shift: (0, 0), mirrored: false };
    let mut pixels = vec![0; 3 * to.bytes()];
    let (mut plane, mut scratch) = (vec![0; to.bytes()], Scratch::default());
    for (channel, source) in samples.image(index).chunks(height * width).enumerate() {
        resample(Picture { pixels: source, height, width, channels: 1 }, &view, to, &mut plane, &mut scratch);
        pixels.iter_mut().skip(channel).step_by(3).zip(&plane).for_each(|(pixel, value)| *pixel = *value);
    }
    let mut encoded = Cursor::new(Vec::new());
    let (columns, rows, color) = (to.width as u32, to.height as u32, ExtendedColorType::Rgb8);
    if is_png {
        PngEncoder::new(&mut encoded).write_image(&pixels, columns, rows, color)?;
    } else {
        JpegEncoder::new_with_quality(&mut encoded, QUALITY).write_image(&pixels, columns, rows, color)?;
    }
    Ok(encoded.into_inner())
}
