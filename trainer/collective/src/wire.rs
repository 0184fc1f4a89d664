//! Number formats on the wire that are narrower than in memory.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::element::{Element, ElementType, Reduction};
use crate::reducer::{Reducer, each, reducer};

/// The number format in which sums of `f32` travel between ranks. Shared memory always uses `f32`.
///
/// A narrower format rounds everything that is sent, on the sender too, so that all ranks end with
/// the same bits. Terms are always added in `f32`.
/// [`Algorithm::Direct`](crate::algorithm::Algorithm::Direct) rounds each element at most twice: as
/// a term and as the sum. If ranks share some of the hosts, it rounds only between hosts, where its
/// terms are the sums of hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// As in memory.
    #[default]
    F32,
    /// The upper half of an `f32`: its full range with 8 bits of precision.
    Bf16,
    /// 11 bits of precision. Values above 65,504 become infinite.
    F16,
}

/// Elements that are rounded or added together. They stay in the first-level cache.
const BLOCK: usize = 1024;

/// Rounds the bytes of elements and writes them into a frame.
pub(crate) type Writer = fn(&mut [u8], &mut [u8]);

/// The conversion of elements to frames and back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coding {
    /// Bytes of an element in a frame.
    pub(crate) element_bytes: usize,
    /// Rounds elements in place and writes them. It is `None` if frames hold memory as it is.
    pub(crate) write: Option<Writer>,
    /// Replaces elements by those of a frame.
    pub(crate) copy: fn(&mut [u8], &[u8]),
    /// Reduces the elements of a frame into local ones.
    pub(crate) reduce: Reducer,
    /// The code of the elements in an [`OperationCode`](crate::OperationCode).
    pub(crate) code: u8,
}

impl Wire {
    /// All formats, by number.
    pub(crate) const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::F16];

    /// Returns the bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// Rounds numbers to this format.
    pub(crate) fn round(self, values: &mut [f32]) {
        match self {
            Self::F32 => {}
            Self::Bf16 => round::<bf16>(values),
            Self::F16 => round::<f16>(values),
        }
    }

    /// Returns the coding for sums of `f32`.
    pub(crate) fn coding(self) -> Coding {
        match self {
            Self::F32 => Coding::plain::<f32>(Reduction::Sum),
            Self::Bf16 => Coding::narrow::<bf16>(ElementType::F32_IN_BF16),
            Self::F16 => Coding::narrow::<f16>(ElementType::F32_IN_F16),
        }
    }
}

impl Coding {
    /// Returns the coding of frames with rounded numbers.
    fn narrow<H: Narrow>(code: u8) -> Self {
        Self { element_bytes: size_of::<H>(), write: Some(write::<H>), copy: copy::<H>, reduce: add::<H>, code }
    }

    /// Returns the coding of frames with numbers as in memory.
    pub(crate) fn plain<T: Element>(reduction: Reduction) -> Self {
        Self {
            element_bytes: size_of::<T>(),
            write: None,
            copy: <[u8]>::copy_from_slice,
            reduce: reducer::<T>(reduction),
            code: T::TYPE.code(),
        }
    }
}

/// A number format to which `f32` is rounded, many numbers at a time.
trait Narrow: bytemuck::Pod {
    fn round(values: &[f32], rounded: &mut [Self]);
    fn widen(rounded: &[Self], values: &mut [f32]);
}

impl Narrow for bf16 {
    fn round(values: &[f32], rounded: &mut [Self]) {
        each(values.iter().zip(rounded), |(value, rounded)| *rounded = bf16::from_f32(*value));
    }

    fn widen(rounded: &[Self], values: &mut [f32]) {
        each(rounded.iter().zip(values), |(rounded, value)| *value = rounded.to_f32());
    }
}

impl Narrow for f16 {
    fn round(values: &[f32], rounded: &mut [Self]) {
        rounded.convert_from_f32_slice(values);
    }

    fn widen(rounded: &[Self], values: &mut [f32]) {
        rounded.convert_to_f32_slice(values);
    }
}

fn round<H: Narrow>(values: &mut [f32]) {
    let mut rounded = [H::zeroed(); BLOCK];
    for values in values.chunks_mut(BLOCK) {
        let rounded = &mut rounded[..values.len()];
        H::round(values, rounded);
        H::widen(rounded, values);
    }
}

fn write<H: Narrow>(memory: &mut [u8], frame: &mut [u8]) {
    let (values, written) = (bytemuck::cast_slice_mut::<u8, f32>(memory), bytemuck::cast_slice_mut::<u8, H>(frame));
    for (values, written) in values.chunks_mut(BLOCK).zip(written.chunks_mut(BLOCK)) {
        H::round(values, written);
        H::widen(written, values);
    }
}

fn copy<H: Narrow>(memory: &mut [u8], frame: &[u8]) {
    H::widen(bytemuck::cast_slice(frame), bytemuck::cast_slice_mut(memory));
}

fn add<H: Narrow>(memory: &mut [u8], frame: &[u8]) {
    let (values, arrived) = (bytemuck::cast_slice_mut::<u8, f32>(memory), bytemuck::cast_slice::<u8, H>(frame));
    let mut terms = [0.0; BLOCK];
    let add = reducer::<f32>(Reduction::Sum);
    for (values, arrived) in values.chunks_mut(BLOCK).zip(arrived.chunks(BLOCK)) {
        let terms = &mut terms[..arrived.len()];
        H::widen(arrived, terms);
        add(bytemuck::cast_slice_mut(values), bytemuck::cast_slice(terms));
    }
}
