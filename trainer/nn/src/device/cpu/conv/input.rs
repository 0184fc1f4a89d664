//! Images that a kernel reads and writes, by their type.

/// Images to read.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// Of f32.
    F32(&'a [f32]),
    /// Bits of bf16; see [`super::Convolution::reads_pairs`].
    Bf16(&'a [u16]),
}

impl<'a> Input<'a> {
    pub(super) fn len(self) -> usize {
        match self {
            Input::F32(values) => values.len(),
            Input::Bf16(values) => values.len(),
        }
    }

    pub(super) fn is_bf16(self) -> bool {
        matches!(self, Input::Bf16(_))
    }

    pub(super) fn in_f32(self) -> &'a [f32] {
        match self {
            Input::F32(values) => values,
            Input::Bf16(_) => unreachable!("a convolution that reads no pairs"),
        }
    }

    /// Elements of 32 bits: values, or pairs of neighbours.
    pub(super) fn words(self) -> &'a [f32] {
        match self {
            Input::F32(values) => values,
            Input::Bf16(values) => bytemuck::cast_slice(values),
        }
    }
}

/// Images to write.
#[derive(Debug)]
pub enum Output<'a> {
    /// Of f32.
    F32(&'a mut [f32]),
    /// Bits of bf16.
    Bf16(&'a mut [u16]),
}
