//! An encoded picture → its pixels: JPEG and PNG, upright, in the wanted channels.

use std::io::Cursor;

use image::{ColorType, DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};

use crate::resample::Picture;

/// The most bytes of an encoded picture.
pub(crate) const MAX_ENCODED_BYTES: u64 = 256 << 20;
/// The most rows or columns of a picture.
pub(crate) const MAX_SIDE: u32 = 16_384;
/// The most bytes of a decoded picture, and of what its decoder holds meanwhile.
pub(crate) const MAX_DECODED_BYTES: u64 = 512 << 20;

const START_OF_SCAN: [u8; 2] = [0xFF, 0xDA];
const END_OF_IMAGE: [u8; 2] = [0xFF, 0xD9];

/// A picture, upright: row by row, the channels of a pixel side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    pixels: Vec<u8>,
    height: usize,
    width: usize,
    channels: usize,
}

impl Decoded {
    pub(crate) fn as_picture(&self) -> Picture<'_> {
        let Self { pixels, height, width, channels } = self;
        Picture { pixels, height: *height, width: *width, channels: *channels }
    }

    /// Rows and columns.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.height, self.width)
    }
}

/// Decodes a picture into 1 channel (grey) or 3 (red, green and blue), whatever it has itself:
/// grey, colour, CMYK, a palette, 16 bits a value, or transparent pixels, whose colour is taken as
/// it is. It is turned as its EXIF orientation says.
///
/// # Errors
/// In words, why the bytes are no such picture.
pub(crate) fn decode(encoded: &[u8], channels: usize) -> Result<Decoded, String> {
    let mut decoder = decoder(encoded)?;
    let orientation = decoder.orientation().map_err(|error| reason(&error))?;
    let mut picture = DynamicImage::from_decoder(decoder).map_err(|error| reason(&error))?;
    picture.apply_orientation(orientation);
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let pixels = match channels {
        1 => picture.into_luma8().into_raw(),
        3 => picture.into_rgb8().into_raw(),
        other => return Err(format!("{other} channels are wanted, and pictures give 1 or 3")),
    };
    Ok(Decoded { pixels, height, width, channels })
}

/// Rows and columns of a picture once it is upright, from its header.
pub(crate) fn size(encoded: &[u8]) -> Result<(usize, usize), String> {
    let mut decoder = decoder(encoded)?;
    let (width, height) = decoder.dimensions();
    let orientation = decoder.orientation().map_err(|error| reason(&error))?;
    // Codes 5 to 8 of EXIF exchange rows and columns.
    let is_turned = orientation.to_exif() >= 5;
    Ok(if is_turned { (width as usize, height as usize) } else { (height as usize, width as usize) })
}

fn decoder(encoded: &[u8]) -> Result<impl ImageDecoder, String> {
    if encoded.is_empty() {
        return Err("the file is empty".to_owned());
    }
    let mut reader = ImageReader::new(Cursor::new(encoded)).with_guessed_format().map_err(|error| error.to_string())?;
    match reader.format() {
        Some(ImageFormat::Jpeg) if ends_early(encoded) => {
            return Err("the JPEG ends before its picture does".to_owned());
        }
        Some(ImageFormat::Jpeg | ImageFormat::Png) => {}
        Some(_) | None => return Err("it is neither JPEG nor PNG".to_owned()),
    }
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_DECODED_BYTES);
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(|error| reason(&error))?;
    // Decoders bound what they hold, not always what they give.
    let color: ColorType = decoder.color_type();
    let bytes = decoder.total_bytes();
    if bytes > MAX_DECODED_BYTES {
        return Err(format!("it has {bytes} bytes of {color:?}, accepted are {MAX_DECODED_BYTES}"));
    }
    Ok(decoder)
}

/// True if no end follows the last scan. Inside a scan, 0xFF never precedes either mark.
fn ends_early(jpeg: &[u8]) -> bool {
    // Most files end with their picture, and need no search.
    if jpeg.ends_with(&END_OF_IMAGE) {
        return false;
    }
    let last = |mark: [u8; 2]| jpeg.windows(2).rposition(|pair| pair == mark);
    last(END_OF_IMAGE) < last(START_OF_SCAN)
}

fn reason(error: &ImageError) -> String {
    match error {
        ImageError::Limits(_) => {
            format!("{error}; accepted are {MAX_SIDE} rows and columns and {MAX_DECODED_BYTES} bytes")
        }
        // Some of the decoders' messages end with a line break.
        other => other.to_string().split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

#[cfg(test)]
mod tests;
