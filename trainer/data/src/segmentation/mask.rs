//! The classes of a picture's pixels, from an array or a PNG.

use std::{fs::File, io::BufReader, path::Path};

use png::{ColorType, Decoder, Limits, Transformations};

use crate::{
    DataError, npy,
    picture::{MAX_DECODED_BYTES, MAX_SIDE},
};

/// A class for each pixel, row by row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mask {
    pub(super) classes: Vec<u8>,
    pub(super) height: usize,
    pub(super) width: usize,
}

impl Mask {
    /// Reads a mask. A palette's entry is its number, whatever its colour.
    ///
    /// # Errors
    /// [`DataError::Read`], and why the file is no mask.
    pub(super) fn read(path: &Path) -> Result<Self, DataError> {
        let is_array = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("npy"));
        if !is_array {
            return of_png(path);
        }
        let npy::Array { shape, bytes } = npy::read_bytes(path)?;
        match shape[..] {
            [height, width] | [height, width, 1] if height * width > 0 => Ok(Self { classes: bytes, height, width }),
            _ => Err(no_mask(path, format!("{shape:?}"))),
        }
    }
}

fn no_mask(path: &Path, found: String) -> DataError {
    let expected = "a class for each pixel: an array of [height, width], or a PNG of 8 bits, grey or with a palette";
    DataError::Unlike { path: path.to_owned(), found, expected: expected.to_owned() }
}

fn of_png(path: &Path) -> Result<Mask, DataError> {
    let file = File::open(path).map_err(|source| DataError::Read { path: path.to_owned(), source })?;
    let mut decoder = Decoder::new_with_limits(BufReader::new(file), Limits { bytes: MAX_DECODED_BYTES as usize });
    decoder.set_transformations(Transformations::IDENTITY);
    let failed = |error: png::DecodingError| no_mask(path, error.to_string());
    let mut reader = decoder.read_info().map_err(failed)?;
    let info = reader.info();
    let (height, width, bits) = (info.height, info.width, info.bit_depth as usize);
    if !matches!(info.color_type, ColorType::Grayscale | ColorType::Indexed) || bits > 8 {
        return Err(no_mask(path, format!("a PNG of {:?} with {bits} bits", info.color_type)));
    }
    let line = reader.output_line_size(width).unwrap_or(usize::MAX);
    if height > MAX_SIDE || width > MAX_SIDE || (line as u64).saturating_mul(height.into()) > MAX_DECODED_BYTES {
        return Err(no_mask(path, format!("{height}×{width} pixels, accepted are {MAX_SIDE} rows and columns")));
    }
    let mut packed = vec![0; line * height as usize];
    reader.next_frame(&mut packed).map_err(failed)?;
    let classes =
        packed.chunks(line).flat_map(|row| (0..width as usize).map(move |column| unpacked(row, column, bits)));
    Ok(Mask { classes: classes.collect(), height: height as usize, width: width as usize })
}

/// The value of a pixel in a row of 1, 2, 4 or 8 bits a pixel, the first one in the highest bits.
fn unpacked(row: &[u8], column: usize, bits: usize) -> u8 {
    let first = column * bits;
    let shift = 8 - bits - first % 8;
    (row[first / 8] >> shift) & (0xFF >> (8 - bits))
}
