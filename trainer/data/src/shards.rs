//! Tar archives of pictures by the names of WebDataset: the files of a sample follow one another
//! and have one name up to its first dot, such as `0007.jpg` and `0007.cls`. The label is a number
//! in the `.cls` file. Nothing is unpacked: each picture is read where it lies.

mod index;
mod write;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use self::index::{Member, members};
pub use self::write::write;
use crate::{
    DataError, Dataset, MAX_CLASSES, PictureOptions, Samples, Shape,
    held_out::{check_fraction, held_out},
    look::{check_folder, look},
    picture,
    pictures::{Files, Pictures, Place, read_part},
};

/// Beginnings of the names of folders or archives that are for evaluation.
const EVALUATION: [&str; 2] = ["evaluation", "val"];
const TRAIN: &str = "train";

/// Reads the names of the files in the archives of `folder`: those in its folders `train` and
/// `evaluation` or `val`, or those beside one another, where a name that begins with `evaluation`
/// or `val` is for evaluation. Without any of these, the last `⌊n · evaluation_fraction⌋` of each
/// class's n samples are held out. Without a number of classes, the greatest label is the last
/// class.
///
/// # Errors
/// Any [`DataError`] about archives.
pub fn read(
    folder: &Path,
    evaluation_fraction: f64,
    classes: Option<usize>,
    options: &PictureOptions,
) -> Result<Dataset, DataError> {
    check_fraction(evaluation_fraction)?;
    check_folder(folder, "the tar archives")?;
    let [train, evaluation] = archives(folder)?;
    let [train, evaluation] = [Listed::read(folder, train, classes)?, Listed::read(folder, evaluation, classes)?];
    if train.labels.is_empty() {
        let looked_for = "train/NAME.tar, NAME.tar with KEY.jpg and KEY.cls inside".to_owned();
        return Err(DataError::NoFiles { folder: folder.to_owned(), format: "tar", looked_for });
    }
    let classes = classes.unwrap_or_else(|| {
        train.labels.iter().chain(&evaluation.labels).max().map_or(1, |greatest| *greatest as usize + 1)
    });
    let parts = if evaluation.labels.is_empty() { train.split(evaluation_fraction) } else { [train, evaluation] };
    let (height, width) = match options.size {
        Some(size) => size,
        None => parts[0].first_size(folder)?,
    };
    let shape = Shape { channels: options.channels, height, width };
    let [train, evaluation] = parts.map(|part| part.samples(folder, shape, classes, options));
    Ok(Dataset { train, evaluation })
}

/// The archives for training and for evaluation, below the folder, in the order of their names.
fn archives(folder: &Path) -> Result<[Vec<PathBuf>; 2], DataError> {
    let is_folder = |name: &str| Ok(look(&folder.join(name))?.is_some_and(|found| found.is_dir()));
    if !is_folder(TRAIN)? {
        let all = listed(folder, Path::new(""))?;
        let is_for_evaluation = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            EVALUATION.iter().any(|start| name.starts_with(start))
        };
        let (evaluation, train) = all.into_iter().partition(is_for_evaluation);
        return Ok([train, evaluation]);
    }
    let train = listed(folder, Path::new(TRAIN))?;
    for name in EVALUATION {
        if is_folder(name)? {
            return Ok([train, listed(folder, Path::new(name))?]);
        }
    }
    Ok([train, Vec::new()])
}

fn listed(folder: &Path, part: &Path) -> Result<Vec<PathBuf>, DataError> {
    let outer = folder.join(part);
    let entries = fs::read_dir(&outer).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.map_err(|source| DataError::Read { path: outer, source })?;
    let mut found: Vec<PathBuf> = entries
        .into_iter()
        .map(|entry| part.join(entry.file_name()))
        .filter(|path| path.extension().is_some_and(|end| end == "tar"))
        .collect();
    found.sort();
    Ok(found)
}

/// The samples of one part.
#[derive(Default)]
struct Listed {
    files: Files,
    places: Vec<Place>,
    labels: Vec<u32>,
    /// What tells the samples from others: names, lengths and labels.
    marks: Vec<[u8; 32]>,
}

impl Listed {
    fn read(folder: &Path, files: Vec<PathBuf>, classes: Option<usize>) -> Result<Self, DataError> {
        let mut listed = Self::default();
        let most = classes.unwrap_or(MAX_CLASSES) - 1;
        for (file, path) in files.iter().enumerate() {
            let path = folder.join(path);
            let (stamp, members) = members(&path)?;
            listed.files.stamps.push(stamp);
            for Member { key, start, bytes, label } in members {
                if label > most as u64 {
                    return Err(DataError::MemberLabel { path, key, found: label.to_string(), most });
                }
                let mark = [key.as_bytes(), &bytes.to_le_bytes(), &label.to_le_bytes()].concat();
                listed.marks.push(*blake3::hash(&mark).as_bytes());
                listed.places.push(Place { file: file as u32, part: Some((start, bytes)) });
                listed.labels.push(label as u32);
            }
        }
        listed.files.paths = files;
        Ok(listed)
    }

    /// Holds the last samples of each class out.
    fn split(self, evaluation_fraction: f64) -> [Self; 2] {
        let mut left: BTreeMap<u32, usize> = BTreeMap::new();
        self.labels.iter().for_each(|label| *left.entry(*label).or_default() += 1);
        left.values_mut().for_each(|count| *count -= held_out(*count, evaluation_fraction));
        let mut parts = [(); 2].map(|()| Self { files: self.files.clone(), ..Self::default() });
        for ((place, label), mark) in self.places.into_iter().zip(self.labels).zip(self.marks) {
            let kept = left.entry(label).or_default();
            let part = &mut parts[usize::from(*kept == 0)];
            *kept = kept.saturating_sub(1);
            part.places.push(place);
            part.labels.push(label);
            part.marks.push(mark);
        }
        parts
    }

    fn first_size(&self, folder: &Path) -> Result<(usize, usize), DataError> {
        let place = &self.places[0];
        let path = folder.join(&self.files.paths[place.file as usize]);
        let mut encoded = Vec::new();
        match read_part(&path, place.part, &mut encoded) {
            Ok(()) => picture::size(&encoded).map_err(|reason| DataError::Undecodable { path, reason }),
            Err(source) => Err(DataError::Read { path, source }),
        }
    }

    fn samples(self, folder: &Path, shape: Shape, classes: usize, options: &PictureOptions) -> Samples {
        let mut hash = blake3::Hasher::new_derive_key("lockstep tar shards v1");
        self.marks.iter().for_each(|mark| _ = hash.update(mark));
        let fingerprint = *hash.finalize().as_bytes();
        let pictures = Pictures::new(folder.to_owned(), self.files, self.places, fingerprint, options.clone());
        Samples::pictures(shape, classes, self.labels, pictures)
    }
}

#[cfg(test)]
mod tests;
