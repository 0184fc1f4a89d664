//! One picture from a file: a NumPy array of any number of channels, a JPEG or a PNG.

use std::path::Path;

use crate::{DataError, Shape, npy, picture, pictures::read_part, resample::Picture};

/// The bytes of a picture, the channels of a pixel side by side.
pub(crate) enum Image {
    Array { shape: Shape, bytes: Vec<u8> },
    Decoded { channels: usize, picture: picture::Decoded },
}

impl Image {
    /// Reads an array, or decodes a picture into so many channels, 3 if it does not matter.
    ///
    /// # Errors
    /// [`DataError::Read`], and why the file is neither.
    pub(crate) fn read(path: &Path, channels: Option<usize>) -> Result<Self, DataError> {
        if !has_end(path, &["npy"]) {
            let channels = channels.unwrap_or(3);
            let mut encoded = Vec::new();
            read_part(path, None, &mut encoded).map_err(|source| DataError::Read { path: path.to_owned(), source })?;
            let decoded = picture::decode(&encoded, channels);
            let undecodable = |reason| unlike(path, reason, "a picture or an array".to_owned());
            return Ok(Self::Decoded { channels, picture: decoded.map_err(undecodable)? });
        }
        let npy::Array { shape, bytes } = npy::read_bytes(path)?;
        let shape = match shape[..] {
            [height, width, channels] => Shape { channels, height, width },
            [height, width] => Shape { channels: 1, height, width },
            _ => return Err(unlike(path, format_args!("{shape:?}"), "[height, width, channels]".to_owned())),
        };
        if shape.bytes() == 0 {
            return Err(unlike(path, "an empty array", "[height, width, channels]".to_owned()));
        }
        Ok(Self::Array { shape, bytes })
    }

    pub(crate) fn shape(&self) -> Shape {
        match self {
            Self::Array { shape, .. } => *shape,
            Self::Decoded { channels, picture } => {
                let (height, width) = picture.size();
                Shape { channels: *channels, height, width }
            }
        }
    }

    pub(crate) fn as_picture(&self) -> Picture<'_> {
        match self {
            Self::Array { shape: Shape { channels, height, width }, bytes } => {
                Picture { pixels: bytes, height: *height, width: *width, channels: *channels }
            }
            Self::Decoded { picture, .. } => picture.as_picture(),
        }
    }
}

/// True if the name of a file ends in one of these, in lower case.
pub(crate) fn has_end(path: &Path, ends: &[&str]) -> bool {
    let end = path.extension().and_then(|end| end.to_str()).map(str::to_lowercase);
    end.is_some_and(|end| ends.contains(&end.as_str()))
}

pub(crate) fn unlike(path: &Path, found: impl ToString, expected: String) -> DataError {
    DataError::Unlike { path: path.to_owned(), found: found.to_string(), expected }
}
