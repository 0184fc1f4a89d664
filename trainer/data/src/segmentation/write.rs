//! Samples in memory as pictures and masks in files, for tests and examples.

use std::{fs, path::Path};

use crate::{DataError, Dataset, Shape, npy};

use super::{IMAGES, MASKS, TRAIN};

/// Writes samples with masks as `train/images/NUMBER.npy`, `train/masks/NUMBER.npy`, and the same
/// below `evaluation`.
///
/// # Errors
/// [`DataError::Write`].
///
/// # Panics
/// When the samples have no masks.
pub fn write(folder: &Path, Dataset { train, evaluation }: &Dataset) -> Result<(), DataError> {
    for (part, samples) in [(TRAIN, train), ("evaluation", evaluation)] {
        let Shape { channels, height, width } = samples.shape();
        let [images, masks] = [IMAGES, MASKS].map(|kind| folder.join(part).join(kind));
        for folder in [&images, &masks] {
            fs::create_dir_all(folder).map_err(|source| DataError::Write { path: folder.clone(), source })?;
        }
        let mut interleaved = vec![0; channels * height * width];
        for index in 0..samples.len() {
            for (channel, plane) in samples.image(index).chunks(height * width).enumerate() {
                let places = interleaved.iter_mut().skip(channel).step_by(channels);
                places.zip(plane).for_each(|(place, value)| *place = *value);
            }
            let name = format!("{index:06}.npy");
            npy::write_bytes(&images.join(&name), &[height, width, channels], &interleaved)?;
            npy::write_bytes(&masks.join(&name), &[height, width], samples.mask(index))?;
        }
    }
    Ok(())
}
