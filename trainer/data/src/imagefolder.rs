//! A folder of pictures, as torchvision's `ImageFolder` takes it: a folder for each class, whose
//! name is the class's name. Either `train/CLASS/…` with `evaluation/CLASS/…` (or `val/CLASS/…`)
//! beside it, or `CLASS/…` alone.

mod list;
mod write;

use std::{collections::BTreeMap, path::Path};

use self::list::{ClassFolder, class_folders};
pub use self::write::write;
use crate::{
    DataError, Dataset, MAX_CLASSES, PictureOptions, Samples, Shape,
    held_out::{check_fraction, held_out},
    look::{check_folder, look},
    picture,
    pictures::{Files, Pictures, Place, read_part},
};

/// The most pictures of a data set.
pub const MAX_PICTURES: usize = 100_000_000;
/// The folders in which pictures for evaluation may lie, the usual one first.
const EVALUATION: [&str; 2] = ["evaluation", "val"];
const TRAIN: &str = "train";

/// Reads the names of the pictures in `folder`. Classes are in the order of their names. Without
/// pictures for evaluation, the last `⌊n · evaluation_fraction⌋` of each class's n pictures, in the
/// order of their names, are held out.
///
/// # Errors
/// Any [`DataError`] about folders; the first picture is read as well, to learn its size.
pub fn read(folder: &Path, evaluation_fraction: f64, options: &PictureOptions) -> Result<Dataset, DataError> {
    check_fraction(evaluation_fraction)?;
    check_folder(folder, "the folders of the classes")?;
    let is_folder = |name: &str| Ok(look(&folder.join(name))?.is_some_and(|found| found.is_dir()));
    if !is_folder(TRAIN)? {
        let classes = class_folders(folder, "")?;
        return split(folder, classes, evaluation_fraction, options);
    }
    let classes = class_folders(folder, TRAIN)?;
    for name in EVALUATION {
        if is_folder(name)? {
            let evaluation = class_folders(folder, name)?;
            return both(folder, classes, evaluation, options);
        }
    }
    split(folder, classes, evaluation_fraction, options)
}

/// Holds the last pictures of each class out.
fn split(
    folder: &Path,
    mut classes: Vec<ClassFolder>,
    evaluation_fraction: f64,
    options: &PictureOptions,
) -> Result<Dataset, DataError> {
    let names = checked(folder, &classes)?;
    let evaluation: Vec<ClassFolder> = classes
        .iter_mut()
        .map(|class| {
            let kept = class.pictures.len() - held_out(class.pictures.len(), evaluation_fraction);
            ClassFolder { name: class.name.clone(), pictures: class.pictures.split_off(kept), ..class.clone() }
        })
        .collect();
    dataset(folder, &names, [classes, evaluation], options)
}

/// Takes the classes of the training pictures for both.
fn both(
    folder: &Path,
    train: Vec<ClassFolder>,
    evaluation: Vec<ClassFolder>,
    options: &PictureOptions,
) -> Result<Dataset, DataError> {
    let names = checked(folder, &train)?;
    if let Some(class) = evaluation.iter().find(|class| !names.contains(&class.name)) {
        return Err(DataError::UnknownClass { folder: class.folder.clone(), known: names.join(", ") });
    }
    dataset(folder, &names, [train, evaluation], options)
}

/// Returns the names of the training classes, each of which has pictures.
fn checked(folder: &Path, classes: &[ClassFolder]) -> Result<Vec<String>, DataError> {
    if classes.is_empty() {
        return Err(DataError::NoFiles {
            folder: folder.to_owned(),
            format: "imagefolder",
            looked_for: "train/CLASS/PICTURE, CLASS/PICTURE".to_owned(),
        });
    }
    if let Some(class) = classes.iter().find(|class| class.pictures.is_empty()) {
        return Err(DataError::EmptyClass { folder: class.folder.clone() });
    }
    if classes.len() > MAX_CLASSES {
        let (folder, found) = (folder.to_owned(), classes.len());
        return Err(DataError::TooManyClasses { folder, found, most: MAX_CLASSES });
    }
    Ok(classes.iter().map(|class| class.name.clone()).collect())
}

fn dataset(
    folder: &Path,
    names: &[String],
    parts: [Vec<ClassFolder>; 2],
    options: &PictureOptions,
) -> Result<Dataset, DataError> {
    let Some(first) = parts[0].iter().flat_map(|class| &class.pictures).next() else {
        return Err(DataError::EmptyClass { folder: folder.to_owned() });
    };
    let (height, width) = match options.size {
        Some(size) => size,
        None => size_of(&folder.join(&first.path))?,
    };
    let shape = Shape { channels: options.channels, height, width };
    let numbers: BTreeMap<&str, u32> =
        names.iter().enumerate().map(|(number, name)| (name.as_str(), number as u32)).collect();
    let [train, evaluation] = parts.map(|classes| {
        let (mut files, mut stamps, mut labels) = (Vec::new(), Vec::new(), Vec::new());
        let mut hash = blake3::Hasher::new_derive_key("lockstep image folder v1");
        for class in classes {
            for picture in class.pictures {
                labels.push(numbers[class.name.as_str()]);
                hash.update(picture.path.as_os_str().as_encoded_bytes()).update(&[0]);
                hash.update(&picture.stamp.bytes.to_le_bytes());
                stamps.push(picture.stamp);
                files.push(picture.path);
            }
        }
        let places = (0..files.len() as u32).map(|file| Place { file, part: None }).collect();
        let fingerprint = *hash.finalize().as_bytes();
        let pictures =
            Pictures::new(folder.to_owned(), Files { paths: files, stamps }, places, fingerprint, options.clone());
        Samples::pictures(shape, names.len(), labels, pictures).named(names.to_vec())
    });
    Ok(Dataset { train, evaluation })
}

fn size_of(path: &Path) -> Result<(usize, usize), DataError> {
    let mut encoded = Vec::new();
    read_part(path, None, &mut encoded).map_err(|source| DataError::Read { path: path.to_owned(), source })?;
    picture::size(&encoded).map_err(|reason| DataError::Undecodable { path: path.to_owned(), reason })
}

#[cfg(test)]
mod tests;
