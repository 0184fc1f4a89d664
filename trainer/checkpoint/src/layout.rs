//! The logical arena: one sequence of bytes that holds every tensor of a state, independent of the
//! number of writers.
//!
//! Weights come first, then slots. Values are little-endian and have no gaps. The arena is cut into
//! `b` blocks of [`BLOCK_VALUES`]; the last one may be short. Writer `r` of `n` has the blocks from
//! `⌊b·r/n⌋` to `⌊b·(r+1)/n⌋`. No two writers share a byte. If there are more writers than blocks,
//! some have none.

use std::{collections::BTreeSet, num::NonZeroU32, ops::Range};

use crate::{
    CheckpointError, Tensor,
    tensor_entry::{TensorEntry, TensorRole},
};

/// The length of one value in bytes.
pub(crate) const VALUE_BYTES: u64 = size_of::<f32>() as u64;
/// The number of values in a block. Each part begins at a block.
pub const BLOCK_VALUES: usize = 16 << 10;

/// The tensors of a state and their ranges in the arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    entries: Vec<TensorEntry>,
    /// The first value of each tensor, then the number of all values.
    starts: Vec<usize>,
    /// The number of values in a block. Tests use fewer.
    pub(crate) block_values: usize,
}

/// The values of one tensor that lie in a range of the arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The number of the tensor. Weights are counted first, then slots.
    pub tensor: usize,
    /// The name of the tensor.
    pub name: &'a str,
    /// The range of its values.
    pub values: Range<usize>,
}

impl Layout {
    /// Makes the layout of these weights and slots, each a name and a shape, in this order.
    ///
    /// # Errors
    /// [`CheckpointError::Layout`] if two tensors share a name or no memory could hold them.
    pub fn new<'a>(
        weights: impl IntoIterator<Item = (&'a str, &'a [usize])>,
        slots: impl IntoIterator<Item = (&'a str, &'a [usize])>,
    ) -> Result<Self, CheckpointError> {
        let entry = |role| move |(name, shape)| TensorEntry::of(name, shape, role);
        let weights = weights.into_iter().map(entry(TensorRole::Weight));
        let entries = weights.chain(slots.into_iter().map(entry(TensorRole::Slot))).collect();
        Self::of(entries).map_err(|problem| CheckpointError::Layout { problem })
    }

    /// Makes the layout of these tensors.
    ///
    /// # Errors
    /// See [`Layout::new`].
    pub fn of_tensors<'a>(weights: &[Tensor<'a>], slots: &[Tensor<'a>]) -> Result<Self, CheckpointError> {
        let parts = |tensor: &Tensor<'a>| (tensor.name, tensor.shape);
        Self::new(weights.iter().map(parts), slots.iter().map(parts))
    }

    pub(crate) fn of(entries: Vec<TensorEntry>) -> Result<Self, String> {
        let mut names = BTreeSet::new();
        let mut starts = Vec::with_capacity(entries.len() + 1);
        let mut end = 0_usize;
        if !entries.is_sorted_by_key(|entry| entry.role) {
            return Err("a weight follows a slot".to_owned());
        }
        for entry in &entries {
            if !names.insert((entry.name.as_str(), entry.role)) {
                return Err(format!("two tensors are named {}", entry.name));
            }
            if entry.role == TensorRole::Slot && names.contains(&(entry.name.as_str(), TensorRole::Weight)) {
                return Err(format!("a weight and a slot are named {}", entry.name));
            }
            starts.push(end);
            let values = entry.elements().and_then(|values| end.checked_add(values));
            let fits = values.filter(|values| (*values as u64).checked_mul(VALUE_BYTES).is_some());
            end = fits.ok_or_else(|| format!("{} has the shape {:?}, too large to store", entry.name, entry.shape))?;
        }
        starts.push(end);
        Ok(Self { entries, starts, block_values: BLOCK_VALUES })
    }

    pub(crate) fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    /// Returns the name and the shape of each tensor, weights first.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.entries.iter().map(|entry| (&entry.name[..], &entry.shape[..]))
    }

    /// Returns the number of values.
    #[must_use]
    pub fn values(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns the length of the arena in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.values() as u64 * VALUE_BYTES
    }

    /// Returns the bytes that `writer` of `writers` stores.
    ///
    /// # Panics
    /// If there is no such writer.
    #[must_use]
    pub fn part(&self, writer: u32, writers: NonZeroU32) -> Range<u64> {
        assert!(writer < writers.get(), "writer {writer} of {writers}");
        let blocks = self.values().div_ceil(self.block_values);
        let until = |writer: u32| {
            let block = blocks as u128 * u128::from(writer) / u128::from(writers.get());
            (block as usize * self.block_values).min(self.values()) as u64 * VALUE_BYTES
        };
        until(writer)..until(writer + 1)
    }

    /// Returns the pieces of tensors that make up the bytes of `range`, in order.
    ///
    /// # Panics
    /// If the range does not begin and end at a value of the arena.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece<'_>> {
        let all = self.values_of(&range);
        let end = all.end;
        let first = self.starts.partition_point(|start| *start <= all.start).saturating_sub(1);
        let pieces = self.entries.iter().enumerate().skip(first).map(move |(tensor, entry)| {
            let (start, end) = (self.starts[tensor], self.starts[tensor + 1]);
            let cut = |value: usize| value.clamp(start, end) - start;
            Piece { tensor, name: &entry.name, values: cut(all.start)..cut(all.end) }
        });
        pieces.take_while(move |piece| self.starts[piece.tensor] < end).filter(|piece| !piece.values.is_empty())
    }

    /// Converts a range of bytes into a range of values.
    pub(crate) fn values_of(&self, range: &Range<u64>) -> Range<usize> {
        let whole = range.start.is_multiple_of(VALUE_BYTES) && range.end.is_multiple_of(VALUE_BYTES);
        let within = range.start <= range.end && range.end <= self.bytes();
        assert!(whole && within, "bytes {range:?} of a state of {} bytes", self.bytes());
        (range.start / VALUE_BYTES) as usize..(range.end / VALUE_BYTES) as usize
    }
}
