//! The values of an array file. Memory grows with the file, never with what its header promises.

use std::{
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use half::f16;

use super::{MAX_SAMPLES, MAX_SIDE};
use crate::{
    DataError, Shape,
    npy::header::{self, Header},
};

const BLOCK: usize = 1 << 20;

/// The values of samples, each channel × row × column.
pub(super) enum Values {
    Bytes(Vec<u8>),
    Floats(Vec<f32>),
}

impl Values {
    pub(super) fn are_bytes(&self) -> bool {
        matches!(self, Self::Bytes(_))
    }
}

/// How the values of a sample lie in its file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    ChannelsFirst,
    ChannelsLast,
}

/// An array file that is as long as its header says.
struct Opened {
    header: Header,
    file: BufReader<File>,
    count: usize,
}

/// Reads the samples of a file: their number, their shape and their values.
pub(super) fn samples(path: &Path, image: Option<Shape>) -> Result<(usize, Shape, Values), DataError> {
    let refuse = |reason: String| DataError::NoArray { path: path.to_owned(), reason };
    let mut opened = Opened::open(path, &["u1", "f2", "f4", "f8"], "u1 (bytes), f2, f4 and f8")?;
    let (shape, layout) = shape_of(&opened.header.shape[1..], image).map_err(refuse)?;
    let (count, size) = (opened.count, opened.item_bytes());
    let mut sample = vec![0; shape.bytes() * size];
    if opened.header.kind == "u1" {
        let mut values = Vec::with_capacity(count * shape.bytes());
        for _ in 0..count {
            opened.fill(path, &mut sample)?;
            push(shape, layout, |at| sample[at], &mut values);
        }
        return Ok((count, shape, Values::Bytes(values)));
    }
    let mut values: Vec<f32> = Vec::with_capacity(count * shape.bytes());
    for index in 0..count {
        opened.fill(path, &mut sample)?;
        let start = values.len();
        let value = |at: usize| float(&sample[at * size..(at + 1) * size], opened.header.big_endian);
        push(shape, layout, value, &mut values);
        if values[start..].iter().any(|value| !value.is_finite()) {
            return Err(refuse(format!("sample {index} has a value that is infinite or not a number; replace it")));
        }
    }
    Ok((count, shape, Values::Floats(values)))
}

/// Reads the labels of a file, which are below `classes`.
pub(super) fn labels(path: &Path, classes: usize) -> Result<Vec<u32>, DataError> {
    let kinds = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"];
    let mut opened = Opened::open(path, &kinds, "integers (i1 to i8 and u1 to u8)")?;
    if !matches!(opened.header.shape[..], [_] | [_, 1]) {
        let reason = format!("its shape is {:?}, accepted is one label for each sample, (N,)", opened.header.shape);
        return Err(DataError::NoArray { path: path.to_owned(), reason });
    }
    let mut label = vec![0; opened.item_bytes()];
    let mut labels = Vec::with_capacity(opened.count);
    let is_signed = opened.header.kind.starts_with('i');
    for index in 0..opened.count {
        opened.fill(path, &mut label)?;
        let found = integer(&label, opened.header.big_endian, is_signed);
        if !(0..classes as i128).contains(&found) {
            let found = i64::try_from(found).unwrap_or(i64::MAX);
            return Err(DataError::LabelOutOfRange { path: path.to_owned(), index, found, most: classes - 1 });
        }
        labels.push(found as u32);
    }
    Ok(labels)
}

impl Opened {
    fn open(path: &Path, kinds: &[&str], accepted: &str) -> Result<Self, DataError> {
        let refuse = |reason: String| DataError::NoArray { path: path.to_owned(), reason };
        let failed = |source| DataError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let stored = file.metadata().map_err(failed)?.len();
        let mut file = BufReader::with_capacity(BLOCK, file);
        let header = header::read(&mut file).map_err(refuse)?;
        if !kinds.contains(&&*header.kind) {
            return Err(refuse(format!(
                "its values are of kind {}, accepted are {accepted}; convert them with astype",
                header.kind
            )));
        }
        let Some((count, sides)) = header.shape.split_first() else {
            return Err(refuse("it is one value and no array".to_owned()));
        };
        let (count, sides) = (*count, sides.to_vec());
        for (dimension, found, most) in [("the number of samples", count, MAX_SAMPLES)]
            .into_iter()
            .chain(sides.iter().map(|side| ("a side", *side, MAX_SIDE)))
        {
            if found == 0 || found > most {
                let (path, found, most) = (path.to_owned(), found as u64, most as u64);
                return Err(DataError::Dimension { path, dimension, found, most });
            }
        }
        let opened = Self { header, file, count };
        let items = sides.iter().fold(count as u128, |items, side| items.saturating_mul(*side as u128));
        let expected = items.saturating_mul(opened.item_bytes() as u128).saturating_add(opened.header.length.into());
        let expected = u64::try_from(expected).unwrap_or(u64::MAX);
        if stored < expected {
            return Err(DataError::Truncated { path: path.to_owned(), expected, found: stored });
        }
        if stored > expected {
            return Err(DataError::TrailingBytes { path: path.to_owned(), expected });
        }
        Ok(opened)
    }

    fn item_bytes(&self) -> usize {
        self.header.kind[1..].parse().unwrap_or(1)
    }

    fn fill(&mut self, path: &Path, bytes: &mut [u8]) -> Result<(), DataError> {
        self.file.read_exact(bytes).map_err(|source| DataError::Read { path: path.to_owned(), source })
    }
}

/// Returns the shape of a sample with these sides.
fn shape_of(sides: &[usize], image: Option<Shape>) -> Result<(Shape, Layout), String> {
    if let Some(shape) = image {
        let Shape { channels, height, width } = shape;
        return match *sides {
            [h, w, c] if [h, w, c] == [height, width, channels] => Ok((shape, Layout::ChannelsLast)),
            [c, h, w] if [c, h, w] == [channels, height, width] => Ok((shape, Layout::ChannelsFirst)),
            [h, w] if channels == 1 && [h, w] == [height, width] => Ok((shape, Layout::ChannelsFirst)),
            [features] if features == shape.bytes() => Ok((shape, Layout::ChannelsFirst)),
            _ => Err(format!(
                "its samples have the shape {sides:?}, and spec.dataset.image says {shape} (channels × rows × columns)"
            )),
        };
    }
    let of = |channels, height, width| Shape { channels, height, width };
    match *sides {
        [features] => Ok((of(1, 1, features), Layout::ChannelsFirst)),
        [height, width] => Ok((of(1, height, width), Layout::ChannelsFirst)),
        [height, width, channels] => Ok((of(channels, height, width), Layout::ChannelsLast)),
        _ => Err(format!(
            "its samples have {} dimensions, accepted are features, rows × columns, or rows × columns × channels",
            sides.len()
        )),
    }
}

/// Adds the values of a sample, channel × row × column.
fn push<T>(shape: Shape, layout: Layout, value: impl Fn(usize) -> T, values: &mut Vec<T>) {
    match layout {
        Layout::ChannelsFirst => values.extend((0..shape.bytes()).map(value)),
        Layout::ChannelsLast => {
            let pixels = shape.height * shape.width;
            for channel in 0..shape.channels {
                values.extend((0..pixels).map(|pixel| value(pixel * shape.channels + channel)));
            }
        }
    }
}

fn float(bytes: &[u8], big_endian: bool) -> f32 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    if big_endian {
        wide[..bytes.len()].reverse();
    }
    let [a, b, c, d, ..] = wide;
    match bytes.len() {
        2 => f16::from_le_bytes([a, b]).to_f32(),
        4 => f32::from_le_bytes([a, b, c, d]),
        _ => f64::from_le_bytes(wide) as f32,
    }
}

fn integer(bytes: &[u8], big_endian: bool, is_signed: bool) -> i128 {
    let ordered: Vec<u8> = if big_endian { bytes.iter().rev().copied().collect() } else { bytes.to_vec() };
    let magnitude = ordered.iter().rev().fold(0_i128, |value, byte| value << 8 | i128::from(*byte));
    let is_negative = is_signed && ordered.last().is_some_and(|byte| byte & 0x80 != 0);
    if is_negative { magnitude - (1 << (8 * bytes.len())) } else { magnitude }
}
