//! One IDX file: two zero bytes, the type (8: unsigned byte), the number of dimensions, each
//! dimension as big-endian u32, then the bytes, last dimension fastest.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
};

use flate2::bufread::MultiGzDecoder;

use super::Kind;
use crate::DataError;

/// The most samples that a file may promise.
pub const MAX_SAMPLES: u64 = 100_000_000;
/// The most rows or columns that an image may have.
pub const MAX_SIDE: u64 = 4096;
/// The most bytes of pixels that a file may promise.
pub const MAX_PIXEL_BYTES: u64 = 64 << 30;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Deflate makes no more bytes out of one: a bound on what a compressed file can hold.
const MAX_DEFLATE_RATIO: u64 = 1032;
/// Bytes per request to the system.
const READ_BYTES: usize = 256 << 10;

/// Dimensions (images, rows, columns) and pixels.
pub(super) fn images(path: &Path) -> Result<([usize; 3], Vec<u8>), DataError> {
    read(path, Kind::Images, ["number of images", "rows", "columns"], [MAX_SAMPLES, MAX_SIDE, MAX_SIDE])
}

/// Dimension (labels) and labels.
pub(super) fn labels(path: &Path) -> Result<([usize; 1], Vec<u8>), DataError> {
    read(path, Kind::Labels, ["number of labels"], [MAX_SAMPLES])
}

fn read<const N: usize>(
    path: &Path,
    kind: Kind,
    names: [&'static str; N],
    most: [u64; N],
) -> Result<([usize; N], Vec<u8>), DataError> {
    let failed = |source| DataError::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let stored = file.metadata().map_err(failed)?.len();
    let mut magic = Vec::with_capacity(GZIP_MAGIC.len());
    file.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut magic).map_err(failed)?;
    let compressed = magic == GZIP_MAGIC;
    let whole = BufReader::with_capacity(READ_BYTES, io::Cursor::new(magic).chain(file));
    if compressed {
        let most_bytes = stored.saturating_mul(MAX_DEFLATE_RATIO);
        let damaged = |source: io::Error| match source.kind() {
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                DataError::CorruptGzip { path: path.to_owned(), source }
            }
            _ => failed(source),
        };
        Stream { path, reader: MultiGzDecoder::new(whole), most_bytes, failed: damaged }.read(kind, names, most)
    } else {
        Stream { path, reader: whole, most_bytes: stored, failed }.read(kind, names, most)
    }
}

/// The bytes of a file, uncompressed.
struct Stream<'a, R, F> {
    path: &'a Path,
    reader: R,
    /// It cannot hold more than this.
    most_bytes: u64,
    failed: F,
}

impl<R: Read, F: Fn(io::Error) -> DataError> Stream<'_, R, F> {
    fn read<const N: usize>(
        mut self,
        kind: Kind,
        names: [&'static str; N],
        most: [u64; N],
    ) -> Result<([usize; N], Vec<u8>), DataError> {
        let header_bytes = 4 + 4 * N as u64;
        let header = self.take(header_bytes, 0, header_bytes)?;
        let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let expected = 0x0800 | kind.dimensions() as u32;
        if word(0) != expected {
            let (path, dimensions) = (self.path.to_owned(), kind.dimensions());
            return Err(DataError::WrongMagic { path, found: word(0), expected, dimensions });
        }
        let mut dimensions = [0; N];
        let mut bytes = 1_u64;
        for at in 0..N {
            let found = u64::from(word(4 + 4 * at));
            self.bound(names[at], found, most[at])?;
            dimensions[at] = found as usize;
            bytes *= found;
        }
        self.bound("bytes of pixels", bytes, MAX_PIXEL_BYTES)?;
        let body = self.take(bytes, header_bytes, header_bytes + bytes)?;
        // Reading to the end also makes the decoder compare the checksum.
        match self.reader.read(&mut [0]).map_err(&self.failed)? {
            0 => Ok((dimensions, body)),
            _ => Err(DataError::TrailingBytes { path: self.path.to_owned(), expected: header_bytes + bytes }),
        }
    }

    fn bound(&self, dimension: &'static str, found: u64, most: u64) -> Result<(), DataError> {
        if (1..=most).contains(&found) {
            return Ok(());
        }
        Err(DataError::Dimension { path: self.path.to_owned(), dimension, found, most })
    }

    /// The next `bytes`, where `before` were read and the file promises `promised`. Reserves no
    /// more than the file can hold.
    fn take(&mut self, bytes: u64, before: u64, promised: u64) -> Result<Vec<u8>, DataError> {
        let mut taken = Vec::with_capacity(bytes.min(self.most_bytes) as usize);
        let result = self.reader.by_ref().take(bytes).read_to_end(&mut taken);
        let found = before + taken.len() as u64;
        match result {
            Ok(_) if taken.len() as u64 == bytes => Ok(taken),
            Ok(_) => Err(DataError::Truncated { path: self.path.to_owned(), expected: promised, found }),
            Err(source) => Err((self.failed)(source)),
        }
    }
}
