use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::Path,
};

use flate2::{Compression, GzBuilder};

use super::{Kind, Part, names};
use crate::{DataError, Samples};

/// RFC 1952: the system that compressed is unknown, so that the same samples give the same file
/// everywhere.
const ANY_SYSTEM: u8 = 255;

/// Writes `samples` as the compressed pair of files of `part` into `folder`, which is made where it
/// is missing. The same samples give the same bytes.
///
/// # Errors
/// [`DataError::Write`].
///
/// # Panics
/// When an image has more than one channel: IDX as MNIST uses it has no place for them.
pub fn write(folder: &Path, part: Part, samples: &Samples) -> Result<(), DataError> {
    assert_eq!(samples.shape().channels, 1, "IDX images are grey");
    let (count, shape) = (samples.len(), samples.shape());
    fs::create_dir_all(folder).map_err(|source| DataError::Write { path: folder.to_owned(), source })?;
    let files = [
        (Kind::Images, vec![count, shape.height, shape.width], samples.pixels()),
        (Kind::Labels, vec![count], samples.labels()),
    ];
    for (kind, dimensions, bytes) in files {
        let [name, _] = names(part, kind);
        let path = folder.join(format!("{name}.gz"));
        write_file(&path, &dimensions, bytes).map_err(|source| DataError::Write { path, source })?;
    }
    Ok(())
}

fn write_file(path: &Path, dimensions: &[usize], bytes: &[u8]) -> io::Result<()> {
    let file = BufWriter::new(File::create(path)?);
    let mut gzip = GzBuilder::new().mtime(0).operating_system(ANY_SYSTEM).write(file, Compression::default());
    gzip.write_all(&(0x0800 | dimensions.len() as u32).to_be_bytes())?;
    for dimension in dimensions {
        let dimension = u32::try_from(*dimension).map_err(io::Error::other)?;
        gzip.write_all(&dimension.to_be_bytes())?;
    }
    gzip.write_all(bytes)?;
    gzip.finish()?.flush()
}
