//! The mask that a model predicts, as a PNG of the size of its picture.

use std::{fs::File, io::BufWriter, path::Path};

use png::{BitDepth, ColorType, Encoder};

use super::IGNORED;
use crate::{DataError, Shape, augment::View};

/// Writes the predicted classes of a sample, row by row, as a PNG with a palette: a pixel's entry
/// is its class, so that the file is a mask as a data set may have it. `sample` is the size of the
/// classes, `picture` the rows and columns of the file that they are of. Pixels that the model has
/// not seen are [`IGNORED`].
///
/// # Errors
/// [`DataError::Write`], also if the file is already there.
///
/// # Panics
/// When the classes do not fill the sample.
pub fn write_mask(path: &Path, classes: &[u8], sample: Shape, picture: (usize, usize)) -> Result<(), DataError> {
    let failed = |source| DataError::Write { path: path.to_owned(), source };
    let file = File::create_new(path).map_err(failed)?;
    let (height, width) = picture;
    let mut encoder = Encoder::new(BufWriter::new(file), width as u32, height as u32);
    encoder.set_color(ColorType::Indexed);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_palette((0..=u8::MAX).flat_map(colour).collect::<Vec<_>>());
    let write = || {
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&in_picture(classes, sample, picture))?;
        writer.finish()
    };
    write().map_err(|error| failed(error.into()))
}

/// The classes on the picture: those of the sample, on the part that it shows.
fn in_picture(classes: &[u8], sample: Shape, (height, width): (usize, usize)) -> Vec<u8> {
    assert_eq!(classes.len(), sample.height * sample.width, "a class for each pixel");
    let region = View::centred((height, width), sample).region;
    // The sample's pixel below the centre of the picture's, (at - first + ½)·size/length.
    let source = |at: usize, first: usize, length: usize, size: usize| {
        let from = at.checked_sub(first).filter(|from| *from < length)?;
        Some((2 * from + 1) * size / (2 * length))
    };
    let columns: Vec<_> = (0..width).map(|at| source(at, region.left, region.width, sample.width)).collect();
    let rows = (0..height).map(|at| source(at, region.top, region.height, sample.height));
    let class = |row: Option<usize>, column: Option<usize>| Some(classes[row? * sample.width + column?]);
    rows.flat_map(|row| columns.iter().map(move |column| class(row, *column).unwrap_or(IGNORED))).collect()
}

/// Red, green and blue of a class. Each three bits of its number go to the highest bits of the
/// colours that are free, as in the palette of Pascal VOC, whose neighbours differ most.
fn colour(class: u8) -> [u8; 3] {
    let bits = |from: u8| {
        let ones = [0, 3, 6].map(|group| if group + from < 8 { (class >> (group + from)) & 1 } else { 0 });
        (ones[0] << 7) | (ones[1] << 6) | (ones[2] << 5)
    };
    [bits(0), bits(1), bits(2)]
}

#[cfg(test)]
mod tests {
    use super::{super::mask::Mask, *};

    #[test]
    fn a_mask_is_read_back_as_the_classes_that_were_predicted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mask.png");
        let sample = Shape { channels: 16, height: 2, width: 2 };
        // The middle of the picture is seen, each pixel of the sample as four pixels.
        write_mask(&path, &[0, 1, 2, 3], sample, (4, 6)).expect("written");
        let found = Mask::read(&path).expect("a mask");
        let rows = [[IGNORED, 0, 0, 1, 1, IGNORED], [IGNORED, 2, 2, 3, 3, IGNORED]];
        let classes = [rows[0], rows[0], rows[1], rows[1]].concat();
        assert_eq!(found, Mask { classes, height: 4, width: 6 });
        let again = write_mask(&path, &[0; 4], sample, (4, 6)).expect_err("it is there").to_string();
        assert!(again.contains("exists"), "{again}");
    }

    #[test]
    fn the_first_classes_have_colours_far_apart() {
        assert_eq!([0, 1, 2, 3].map(colour), [[0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0]]);
    }
}
