//! A class for each pixel: pictures and masks of one name.
//!
//! ```text
//! FOLDER/train/images/NAME.npy    [height, width, channels] or [height, width]; or .png, .jpg
//! FOLDER/train/masks/NAME.npy     [height, width] of classes; or .png, grey or with a palette
//! FOLDER/evaluation/…             the same; or all in one level: the last names are held out
//! ```

mod draw;
mod mask;
mod predicted;
mod write;

use std::{
    fs,
    path::{Path, PathBuf},
};

use self::mask::Mask;
pub use self::{draw::draw, predicted::write_mask, write::write};
use crate::{
    DataError, Dataset, Normalise, Samples, Shape,
    augment::View,
    held_out::{check_fraction, held_out},
    image::{Image, has_end, unlike},
    look::{check_folder, look},
    masks::{Masks, nearest},
    resample::{Scratch, resample},
};

/// The value of pixels that do not count, by the convention of Pascal VOC and Cityscapes.
pub const IGNORED: u8 = 255;

const TRAIN: &str = "train";
const EVALUATION: [&str; 2] = ["evaluation", "val"];
const IMAGES: &str = "images";
const MASKS: &str = "masks";
/// Ends of the names of pictures and of masks, in lower case.
const IMAGE_ENDS: [&str; 4] = ["npy", "png", "jpg", "jpeg"];
const MASK_ENDS: [&str; 2] = ["npy", "png"];

/// How pictures and masks are read.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of classes; the greatest one in a mask and 1 if it is not given.
    pub classes: Option<usize>,
    /// The value of pixels that do not count.
    pub ignored: u8,
    /// The size that all pictures and masks are resized to. Arrays must have its channels. Without,
    /// all must have the size of the first one, and PNG and JPEG files have three channels.
    pub shape: Option<Shape>,
}

/// Reads the data set in `folder` into memory, in the order of the names.
///
/// # Errors
/// Any [`DataError`] about folders, arrays, pictures and masks.
pub fn read(folder: &Path, evaluation_fraction: f64, options: &Options) -> Result<Dataset, DataError> {
    check_fraction(evaluation_fraction)?;
    check_folder(folder, "images and masks")?;
    let is_folder = |name: &str| Ok(look(&folder.join(name))?.is_some_and(|found| found.is_dir()));
    if !is_folder(TRAIN)? {
        let all = Pairs::read(folder, options, None)?;
        let (shape, classes) = (all.shape, all.classes(options));
        let all = all.samples(shape, classes, options);
        let held_out = held_out(all.len(), evaluation_fraction);
        return Ok(all.split(held_out));
    }
    let train = Pairs::read(&folder.join(TRAIN), options, None)?;
    let shape = train.shape;
    let mut evaluation = Pairs { shape, ..Pairs::default() };
    for name in EVALUATION {
        if is_folder(name)? {
            evaluation = Pairs::read(&folder.join(name), options, Some(shape))?;
            break;
        }
    }
    let classes = train.classes(options).max(evaluation.classes(options));
    let train = train.samples(shape, classes, options);
    if evaluation.masks.is_empty() {
        let held_out = held_out(train.len(), evaluation_fraction);
        return Ok(train.split(held_out));
    }
    Ok(Dataset { train, evaluation: evaluation.samples(shape, classes, options) })
}

/// What a part of the data set holds.
struct Pairs {
    shape: Shape,
    pixels: Vec<u8>,
    masks: Vec<u8>,
    greatest: u8,
}

impl Default for Pairs {
    fn default() -> Self {
        let shape = Shape { channels: 0, height: 0, width: 0 };
        Self { shape, pixels: Vec::new(), masks: Vec::new(), greatest: 0 }
    }
}

impl Pairs {
    /// Reads a part, whose samples have `shape` or take their shape from the options or the first
    /// of them.
    fn read(folder: &Path, options: &Options, shape: Option<Shape>) -> Result<Self, DataError> {
        let pairs = paired(folder)?;
        let mut found = Self::default();
        let mut expected = shape.or(options.shape);
        let mut buffers = Buffers::default();
        for (image, mask) in &pairs {
            let image_read = Image::read(image, expected.map(|shape| shape.channels))?;
            let shape = *expected.get_or_insert(image_read.shape());
            found.shape = shape;
            found.add(image, &image_read, mask, options, &mut buffers)?;
        }
        Ok(found)
    }

    fn add(
        &mut self,
        path: &Path,
        image: &Image,
        mask_path: &Path,
        options: &Options,
        buffers: &mut Buffers,
    ) -> Result<(), DataError> {
        let (own, shape) = (image.shape(), self.shape);
        if own.channels != shape.channels || (options.shape.is_none() && own != shape) {
            let expected = format!("{shape} as the others, or set spec.dataset.image, to which all are resized");
            return Err(unlike(path, own, expected));
        }
        let mask = Mask::read(mask_path)?;
        if (mask.height, mask.width) != (own.height, own.width) {
            let expected = format!("{}×{} as its picture", own.height, own.width);
            return Err(unlike(mask_path, format_args!("{}×{}", mask.height, mask.width), expected));
        }
        let most = options.classes.map_or(usize::from(u8::MAX), |classes| classes - 1);
        for (at, class) in mask.classes.iter().enumerate().filter(|(_, class)| **class != options.ignored) {
            if usize::from(*class) > most {
                let (path, at) = (mask_path.to_owned(), (at / mask.width, at % mask.width));
                let (found, ignored) = (*class, options.ignored);
                return Err(DataError::PixelOutOfRange { path, at, found, most, ignored });
            }
            self.greatest = self.greatest.max(*class);
        }
        let view = View::centred((own.height, own.width), shape);
        let Buffers { sample, scratch } = buffers;
        sample.resize(shape.bytes(), 0);
        resample(image.as_picture(), &view, shape, sample, scratch);
        self.pixels.extend_from_slice(sample);
        let masks = &mut self.masks;
        nearest(&mask.classes, (own.height, own.width), &view, shape, options.ignored, |class| masks.push(class));
        Ok(())
    }

    fn classes(&self, options: &Options) -> usize {
        options.classes.unwrap_or(usize::from(self.greatest) + 1)
    }

    fn samples(self, shape: Shape, classes: usize, options: &Options) -> Samples {
        let masks = Masks::new(self.masks, (shape.height, shape.width), options.ignored);
        Samples::masked(shape, classes, self.pixels, masks).normalised(Normalise::by_default(shape.channels))
    }
}

/// The memory that one sample after the other uses.
#[derive(Default)]
struct Buffers {
    sample: Vec<u8>,
    scratch: Scratch,
}

/// Pairs the pictures of a part with their masks, in the order of their names.
fn paired(folder: &Path) -> Result<Vec<(PathBuf, PathBuf)>, DataError> {
    let images = listed(&folder.join(IMAGES), &IMAGE_ENDS)?;
    let masks = listed(&folder.join(MASKS), &MASK_ENDS)?;
    let half = |present: &Path, other: &str, ends: &[&str]| {
        let stem = present.file_stem().unwrap_or_default().to_string_lossy();
        let looked_for = ends.iter().map(|end| format!("{other}/{stem}.{end}")).collect::<Vec<_>>().join(", ");
        DataError::HalfMasked { present: present.to_owned(), looked_for }
    };
    let mut pairs = Vec::with_capacity(images.len());
    for image in &images {
        let own = |mask: &&PathBuf| mask.file_stem() == image.file_stem();
        let at = masks.binary_search_by(|mask| mask.file_stem().cmp(&image.file_stem()));
        let mask = at.ok().and_then(|at| masks.get(at)).filter(own);
        pairs.push((image.clone(), mask.ok_or_else(|| half(image, MASKS, &MASK_ENDS))?.clone()));
    }
    let is_lonely = |mask: &&PathBuf| {
        let at = pairs.binary_search_by(|(_, own)| own.file_stem().cmp(&mask.file_stem()));
        at.ok().and_then(|at| pairs.get(at)).is_none_or(|(_, own)| own != *mask)
    };
    if let Some(mask) = masks.iter().find(is_lonely) {
        return Err(half(mask, IMAGES, &IMAGE_ENDS));
    }
    if pairs.is_empty() {
        let looked_for = format!("{IMAGES}/NAME.npy (or .png, .jpg) and {MASKS}/NAME.npy (or .png)");
        return Err(DataError::NoFiles { folder: folder.to_owned(), format: "segmentation", looked_for });
    }
    Ok(pairs)
}

/// The files in a folder whose names end like these, in the order of their names without the ends.
fn listed(folder: &Path, ends: &[&str]) -> Result<Vec<PathBuf>, DataError> {
    check_folder(folder, "images and masks, in folders of these names")?;
    let failed = |source| DataError::Read { path: folder.to_owned(), source };
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(failed)?;
    let mut files: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).filter(|path| has_end(path, ends)).collect();
    files.sort_by(|one, other| one.file_stem().cmp(&other.file_stem()));
    Ok(files)
}

#[cfg(test)]
mod tests;
