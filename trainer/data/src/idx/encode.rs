use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::Path,
};

use flate2::{Compression, GzBuilder};

use super::{Kind, Part, Width, name};
use crate::{DataError, Samples, Shape};

/// RFC 1952: the system that compressed is unknown, so that the same samples give the same file
/// everywhere.
const ANY_SYSTEM: u8 = 255;

/// Writes `samples` as the compressed pair of files of `part` into `folder`, which is made where it
/// is missing. The same samples give the same bytes. Images of several channels have 4 dimensions,
/// labels of more than 256 classes have 32 bits.
///
/// # Errors
/// [`DataError::Write`].
///
/// # Panics
/// When the samples do not lie in memory.
pub fn write(folder: &Path, part: Part, samples: &Samples) -> Result<(), DataError> {
    let (count, Shape { channels, height, width }) = (samples.len(), samples.shape());
    fs::create_dir_all(folder).map_err(|source| DataError::Write { path: folder.to_owned(), source })?;
    let images = match channels {
        1 => vec![count, height, width],
        _ => vec![count, channels, height, width],
    };
    let (width, labels): (_, Vec<u8>) = match samples.classes() {
        0..=256 => (Width::Byte, samples.labels().iter().map(|label| *label as u8).collect()),
        _ => (Width::Int, samples.labels().iter().flat_map(|label| label.to_be_bytes()).collect()),
    };
    let files = [
        (name(part, Kind::Images, images.len(), Width::Byte), 0x08, images, samples.pixels()),
        (name(part, Kind::Labels, 1, width), if width == Width::Byte { 0x08 } else { 0x0C }, vec![count], &labels),
    ];
    for (name, value, dimensions, bytes) in files {
        let path = folder.join(format!("{name}.gz"));
        write_file(&path, value, &dimensions, bytes).map_err(|source| DataError::Write { path, source })?;
    }
    Ok(())
}

fn write_file(path: &Path, value: u32, dimensions: &[usize], bytes: &[u8]) -> io::Result<()> {
    let file = BufWriter::new(File::create(path)?);
    let mut gzip = GzBuilder::new().mtime(0).operating_system(ANY_SYSTEM).write(file, Compression::default());
    gzip.write_all(&(value << 8 | dimensions.len() as u32).to_be_bytes())?;
    for dimension in dimensions {
        let dimension = u32::try_from(*dimension).map_err(io::Error::other)?;
        gzip.write_all(&dimension.to_be_bytes())?;
    }
    gzip.write_all(bytes)?;
    gzip.finish()?.flush()
}
