//! One IDX file: two zero bytes, the type, the number of dimensions, each dimension as big-endian
//! u32, then the values, last dimension fastest. Types are 0x08 (unsigned byte), 0x0B (16 bits) and
//! 0x0C (32 bits, both big-endian and signed).

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
};

use flate2::bufread::MultiGzDecoder;

use crate::{DataError, Shape};

/// The most samples that a file may promise.
pub const MAX_SAMPLES: u64 = 100_000_000;
/// The most channels that an image may have.
pub const MAX_CHANNELS: u64 = 1024;
/// The most rows or columns that an image may have.
pub const MAX_SIDE: u64 = 4096;
/// The most bytes of pixels that a file may promise.
pub const MAX_PIXEL_BYTES: u64 = 64 << 30;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Deflate makes no more bytes out of one: a bound on what a compressed file can hold.
const MAX_DEFLATE_RATIO: u64 = 1032;
/// Bytes per request to the system.
const READ_BYTES: usize = 256 << 10;

/// A kind of file: type, number of dimensions, and what they are with the most of each.
#[derive(Clone, Copy)]
struct Layout {
    magic: u32,
    dimensions: &'static [(&'static str, u64)],
}

const IMAGES: [Layout; 2] = [
    Layout {
        magic: 0x0803,
        dimensions: &[("number of images", MAX_SAMPLES), ("rows", MAX_SIDE), ("columns", MAX_SIDE)],
    },
    Layout {
        magic: 0x0804,
        dimensions: &[
            ("number of images", MAX_SAMPLES),
            ("channels", MAX_CHANNELS),
            ("rows", MAX_SIDE),
            ("columns", MAX_SIDE),
        ],
    },
];
const IMAGES_ACCEPTED: &str = "0x00000803 or 0x00000804 (IDX of unsigned bytes with 3 dimensions: images, rows, columns; or with 4: images, \
     channels, rows, columns)";
const LABELS: [Layout; 3] = [
    Layout { magic: 0x0801, dimensions: &[("number of labels", MAX_SAMPLES)] },
    Layout { magic: 0x0B01, dimensions: &[("number of labels", MAX_SAMPLES)] },
    Layout { magic: 0x0C01, dimensions: &[("number of labels", MAX_SAMPLES)] },
];
const LABELS_ACCEPTED: &str =
    "0x00000801, 0x00000b01 or 0x00000c01 (IDX of unsigned bytes, or of numbers of 16 or 32 bits, with 1 dimension)";

impl Layout {
    /// Bytes of a value.
    const fn width(self) -> u64 {
        match self.magic >> 8 {
            0x08 => 1,
            0x0B => 2,
            _ => 4,
        }
    }

    const fn header_bytes(self) -> u64 {
        4 + 4 * self.dimensions.len() as u64
    }
}

/// The number of images, their shape and their pixels.
pub(super) fn images(path: &Path) -> Result<(usize, Shape, Vec<u8>), DataError> {
    let (_, dimensions, pixels) = read(path, &IMAGES, IMAGES_ACCEPTED)?;
    let (channels, height, width) = match dimensions[1..] {
        [channels, height, width] => (channels, height, width),
        _ => (1, dimensions[1], dimensions[2]),
    };
    Ok((dimensions[0], Shape { channels, height, width }, pixels))
}

/// The labels.
pub(super) fn labels(path: &Path) -> Result<Vec<i64>, DataError> {
    let (layout, _, bytes) = read(path, &LABELS, LABELS_ACCEPTED)?;
    Ok(match layout.width() {
        1 => bytes.into_iter().map(i64::from).collect(),
        2 => bytes.as_chunks().0.iter().map(|bytes| i64::from(i16::from_be_bytes(*bytes))).collect(),
        _ => bytes.as_chunks().0.iter().map(|bytes| i64::from(i32::from_be_bytes(*bytes))).collect(),
    })
}

type Content = (Layout, Vec<usize>, Vec<u8>);

fn read(path: &Path, layouts: &[Layout], accepted: &'static str) -> Result<Content, DataError> {
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
        Stream { path, reader: MultiGzDecoder::new(whole), most_bytes, failed: damaged }.read(layouts, accepted)
    } else {
        Stream { path, reader: whole, most_bytes: stored, failed }.read(layouts, accepted)
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
    fn read(mut self, layouts: &[Layout], accepted: &'static str) -> Result<Content, DataError> {
        let shortest = layouts.iter().map(|layout| layout.header_bytes()).min().unwrap_or_default();
        let start = self.take(4, 0, shortest)?;
        let found = u32::from_be_bytes([start[0], start[1], start[2], start[3]]);
        let Some(layout) = layouts.iter().find(|layout| layout.magic == found).copied() else {
            return Err(DataError::WrongMagic { path: self.path.to_owned(), found, accepted });
        };
        let header_bytes = layout.header_bytes();
        let header = self.take(header_bytes - 4, 4, header_bytes)?;
        let mut bytes = layout.width();
        let mut dimensions = Vec::with_capacity(layout.dimensions.len());
        for (word, (name, most)) in header.as_chunks().0.iter().zip(layout.dimensions) {
            let found = u64::from(u32::from_be_bytes(*word));
            self.bound(name, found, *most)?;
            dimensions.push(found as usize);
            bytes = bytes.saturating_mul(found);
        }
        self.bound("bytes of pixels", bytes, MAX_PIXEL_BYTES)?;
        let body = self.take(bytes, header_bytes, header_bytes + bytes)?;
        // Reading to the end also makes the decoder compare the checksum.
        match self.reader.read(&mut [0]).map_err(&self.failed)? {
            0 => Ok((layout, dimensions, body)),
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
