//! Values in 16 bits as kernels of f32 see them: widened when an operation begins, rounded when it
//! ends.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use super::Cpu;
use crate::{
    arena::{Arena, LINE_ELEMENTS, Lease, View},
    device::{Region, Tensor},
    dtype::DType,
    kernels::{
        Instructions,
        narrow::{narrow, widen},
    },
    op::Accumulation,
};

/// Memory for widened values. An operation takes what it needs and gives it back at its end.
#[derive(Debug, Default)]
pub(super) struct Staging {
    arenas: RefCell<Vec<Arena>>,
    /// Elements of the largest memory that any operation writes.
    largest: usize,
}

impl Staging {
    /// Expects operations on so many elements.
    pub(super) fn expect(&mut self, elements: usize) {
        self.largest = self.largest.max(elements);
    }

    /// Memory that nobody has. Only the first steps make new memory.
    fn take(&self, elements: usize) -> Lease {
        let mut arenas = self.arenas.borrow_mut();
        let free = arenas.iter().filter(|arena| arena.leased() == 0 && arena.len() >= elements);
        if let Some(arena) = free.min_by_key(|arena| arena.len()) {
            return arena.lease(0..elements);
        }
        let arena = Arena::zeroed(elements.max(self.largest).next_multiple_of(LINE_ELEMENTS));
        let lease = arena.lease(0..elements);
        arenas.push(arena);
        lease
    }
}

/// Values to read.
pub(super) enum Reading {
    /// They lie in f32.
    There(View),
    /// A widened copy.
    Widened(Lease),
}

impl Deref for Reading {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Reading::There(view) => view,
            Reading::Widened(copy) => copy,
        }
    }
}

/// Values to write. Those of 16 bits are rounded when it is dropped.
pub(super) enum Writing {
    /// They lie in f32.
    There(Lease),
    /// They lie in 16 bits.
    Staged { values: Lease, into: Lease<u16>, dtype: DType, instructions: Instructions },
}

impl Deref for Writing {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Writing::There(values) | Writing::Staged { values, .. } => values,
        }
    }
}

impl DerefMut for Writing {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            Writing::There(values) | Writing::Staged { values, .. } => values,
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let Writing::Staged { values, into, dtype, instructions } = self {
            narrow(*instructions, *dtype, values, into);
        }
    }
}

const fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::Bf16 | DType::F16)
}

/// The samples of tensors if all of them are of bf16.
pub(super) fn all_bf16<const N: usize>(samples: usize, tensors: [&Tensor; N]) -> Option<[Region; N]> {
    let all = tensors.iter().all(|tensor| tensor.region.memory.dtype == DType::Bf16);
    all.then(|| tensors.map(|tensor| tensor.of(samples)))
}

impl Cpu {
    /// A region of a float type.
    pub(super) fn reading(&self, region: Region) -> Reading {
        let dtype = region.memory.dtype;
        if !is_narrow(dtype) {
            return Reading::There(self.view(region));
        }
        let mut copy = self.staging.take(region.len);
        widen(self.instructions, dtype, &self.view::<u16>(region), &mut copy);
        Reading::Widened(copy)
    }

    /// The samples of a micro-batch.
    pub(super) fn read(&self, tensor: Tensor, samples: usize) -> Reading {
        self.reading(tensor.of(samples))
    }

    /// The samples of a micro-batch, as they are.
    pub(super) fn write(&self, tensor: Tensor, samples: usize) -> Writing {
        self.writing(tensor.of(samples), Accumulation::Add)
    }

    /// The same for an operation that adds to them, or writes all of them and reads none.
    pub(super) fn write_all(&self, tensor: Tensor, samples: usize, accumulation: Accumulation) -> Writing {
        self.writing(tensor.of(samples), accumulation)
    }

    fn writing(&self, region: Region, accumulation: Accumulation) -> Writing {
        let dtype = region.memory.dtype;
        if !is_narrow(dtype) {
            return Writing::There(self.lease(region));
        }
        let (mut values, into) = (self.staging.take(region.len), self.lease::<u16>(region));
        match accumulation {
            Accumulation::Add => widen(self.instructions, dtype, &into, &mut values),
            Accumulation::Replace => {}
        }
        Writing::Staged { values, into, dtype, instructions: self.instructions }
    }
}
