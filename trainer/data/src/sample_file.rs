//! A picture that belongs to no data set, as a sample.

use std::{fs, path::Path};

use crate::{
    DataError, Normalise, Shape,
    augment::View,
    image::Image,
    resample::{Scratch, resample},
};

/// A file as a sample.
#[derive(Debug, PartialEq)]
pub struct SampleFile {
    /// Normalised: channel × row × column.
    pub values: Vec<f32>,
    /// Rows and columns of the picture itself.
    pub size: (usize, usize),
}

/// Reads a JPEG or PNG file, or a NumPy array of bytes (`[height, width, channels]`), as a sample
/// of this shape, in the way of an evaluation: the greatest part in the middle that has the
/// sample's proportions, resized and normalised. `normalise` has a mean and a deviation for each
/// channel.
///
/// # Errors
/// In words, why the file is no such picture.
pub fn read_sample(path: &Path, shape: Shape, normalise: &Normalise) -> Result<SampleFile, String> {
    // Opening a pipe would wait for its writer.
    let found = fs::metadata(path).map_err(|error| error.to_string())?;
    if !found.is_file() {
        return Err("it is no file; name JPEG, PNG or .npy files".to_owned());
    }
    let image = Image::read(path, Some(shape.channels)).map_err(without_path)?;
    let Shape { channels, height, width } = image.shape();
    if channels != shape.channels {
        return Err(format!("it has {channels} channels, and the model takes {}", shape.channels));
    }
    let mut sample = vec![0; shape.bytes()];
    let view = View::centred((height, width), shape);
    resample(image.as_picture(), &view, shape, &mut sample, &mut Scratch::default());
    let channels = sample.chunks(shape.height * shape.width).zip(normalise.levels());
    let values = channels.flat_map(|(pixels, levels)| pixels.iter().map(move |pixel| levels[usize::from(*pixel)]));
    Ok(SampleFile { values: values.collect(), size: (height, width) })
}

/// The caller names the file.
fn without_path(error: DataError) -> String {
    match error {
        DataError::Read { source, .. } => source.to_string(),
        DataError::NoArray { reason, .. } => reason,
        DataError::Unlike { found, .. } => found,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        Evaluation, PictureOptions,
        cifar::{self, Cifar},
        imagefolder, npy, picture,
    };

    #[test]
    fn a_file_becomes_the_sample_that_an_evaluation_takes() {
        let folder = tempfile::tempdir().expect("a folder");
        let digits = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
        let drawn = cifar::draw(Cifar::Ten, 60, 1, 0.2);
        let [_, mut files] = imagefolder::write(folder.path(), &drawn, &digits, 1).expect("written");
        files.sort();
        let options = PictureOptions {
            channels: 3,
            size: Some((12, 20)),
            max_corrupt: 0,
            threads: 1,
            report: Arc::new(|problem| panic!("{problem:?}")),
        };
        let samples = imagefolder::read(folder.path(), 0.0, &options).expect("read").evaluation;
        let mut evaluation = Evaluation::new(&samples, 0..1, 1);
        let expected = evaluation.next_batch().expect("a sample").images.clone();
        let found = read_sample(&files[0].0, samples.shape(), samples.normalise()).expect("a picture");
        let size = picture::size(&fs::read(&files[0].0).expect("read")).expect("a picture");
        assert_eq!((found.values, found.size), (expected, size));
    }

    #[test]
    fn what_is_no_picture_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = folder.path().join("notes.png");
        fs::write(&text, "no picture").expect("written");
        let (shape, normalise) = (Shape { channels: 3, height: 8, width: 8 }, Normalise::by_default(3));
        let refused = |path: &Path| read_sample(path, shape, &normalise).expect_err("refused");
        assert_eq!(refused(&text), "it is neither JPEG nor PNG");
        assert!(refused(folder.path()).contains("no file"));
        assert!(refused(&folder.path().join("missing.png")).contains("No such file"));
        let array = folder.path().join("bands.npy");
        npy::write_bytes(&array, &[8, 8, 4], &[0; 256]).expect("written");
        assert_eq!(refused(&array), "it has 4 channels, and the model takes 3");
    }
}
