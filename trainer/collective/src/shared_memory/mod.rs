//! All-reduce among ranks of one host through memory that all of them map.
//!
//! Whole pages in the ranks' [`SharedArena`]s are reduced in place. All ranks arrive at a barrier.
//! Then each rank reduces its part of all arenas in rank order and writes it into all of them. Then
//! all arrive again. A rank for which that fails takes those pages out of the shared mapping.
//!
//! Other data goes through staging areas. So do the edges of data in an arena: bytes that share a
//! page with other bytes. They use the same barriers. Each rank copies a chunk into its area and
//! arrives. Once all have arrived, it reduces its part of all areas in rank order into its own, and
//! arrives again. Once all have arrived again, it copies the others' parts out. Each rank reduces a
//! short chunk whole and needs no second barrier.
//!
//! Each rank alternates between two staging areas, so that no rank overwrites bytes that another
//! has yet to read: a rank that arrives with chunk k + 1 is done with chunk k.
//!
//! The memory has no name, is sealed against truncation, and belongs to one generation, as do its
//! arenas. A stopped process that wakes up in a later generation writes where nobody reads any
//! more.

#![allow(unsafe_code, reason = "memory that other processes map")]

mod arena;
mod arrival;
#[cfg(test)]
mod model;
mod pages;
mod segment;
mod staging;

use std::cell::Cell;
use std::ops::{DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::param::page_size;

use crate::error_site::ErrorSite;
use crate::idle::Idle;
use crate::mesh::Mesh;
use crate::operation::OperationCode;
use crate::reducer::{MutualReducer, Reducer};
use crate::waiting::{Wait, WaitAction, Waiter};
use crate::{Abort, CollectiveError, Tag};
pub use arena::SharedArena;
pub(crate) use arena::{Arenas, size as arenas_size};
use arrival::TICK;
use pages::{InPlace, Pages};
use segment::make_private;
pub(crate) use segment::{Offer, Segment, pieces};
pub(crate) use staging::size as staging_size;
use staging::{Staged, Staging, barriers};

/// The memory of one generation.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    staging: Staging,
    arenas: Vec<Arc<Arenas>>,
    rank: usize,
    world: usize,
    /// The number of this rank's arrivals.
    arrivals: Cell<u32>,
    /// Chunks that went through the staging areas.
    chunks: usize,
    /// Operations with at least one byte.
    operations: usize,
    /// Room for the edges of an operation: bytes on its first and on its last page.
    edges: Box<[u64]>,
}

/// The means by which an all-reduce waits.
#[derive(Clone, Copy)]
pub(crate) struct WaitContext<'a> {
    pub(crate) mesh: &'a Mesh,
    pub(crate) abort: &'a Abort,
    pub(crate) waiter: &'a Waiter,
}

/// The data of an all-reduce, and how to reduce it.
pub(crate) struct ReduceRequest<'a> {
    pub(crate) tag: Tag,
    /// Operations that all ranks began before.
    pub(crate) operation: u64,
    /// The number that [`OperationCode::kind`] gives.
    pub(crate) kind: u64,
    pub(crate) data: &'a mut [u8],
    pub(crate) element_bytes: usize,
    pub(crate) reduce: Reducer,
    pub(crate) reduce_both: MutualReducer,
}

/// The span of an operation in the arenas.
struct ArenaSpan<'a> {
    arenas: &'a Arenas,
    /// The start of its data, in bytes.
    offset: usize,
    /// The pages that hold nothing else, in bytes.
    pages: Range<usize>,
}

/// The whole pages of an operation in the arenas of all ranks.
struct WholePages<'a> {
    arenas: &'a Arenas,
    pages: Range<usize>,
    rank: usize,
    /// The pages in this rank's arena.
    own: *mut [u8],
}

impl Pages for WholePages<'_> {
    fn bytes(&self) -> usize {
        self.pages.len()
    }

    unsafe fn of(&self, rank: usize, range: Range<usize>) -> impl DerefMut<Target = [u8]> {
        if rank == self.rank {
            // SAFETY: the caller's promise; the slice is borrowed while `self` lives, and nothing
            // else uses it.
            return &mut unsafe { &mut *self.own }[range];
        }
        // SAFETY: the caller's promise.
        unsafe { self.arenas.write(rank, self.pages.start + range.start..self.pages.start + range.end) }
    }
}

impl SharedMemory {
    /// Returns the memory on a segment of [`staging_size`] bytes.
    pub(crate) fn on(segment: Segment, rank: usize, world: usize) -> Self {
        let staging = Staging::on(segment, world);
        Self {
            staging,
            arenas: Vec::new(),
            rank,
            world,
            arrivals: Cell::new(0),
            chunks: 0,
            operations: 0,
            edges: vec![0; 2 * page_size() / size_of::<u64>()].into(),
        }
    }

    /// Adds arenas, whose slices are reduced in place from now on.
    pub(crate) fn add(&mut self, arenas: Arc<Arenas>) {
        self.arenas.push(arenas);
    }

    /// Reduces the data over all ranks in place, with the same bits on each. After a failure the
    /// data is undefined.
    pub(crate) fn all_reduce(
        &mut self,
        request: ReduceRequest<'_>,
        context: WaitContext<'_>,
    ) -> Result<(), CollectiveError> {
        let ReduceRequest { tag, operation, kind, ref data, .. } = request;
        if data.is_empty() {
            return Ok(());
        }
        let found = self.arenas.iter().enumerate().rev().find_map(|(index, arenas)| {
            let offset = arenas.offset(self.rank, data)?;
            Some((index, Arc::clone(arenas), offset))
        });
        let place = found.as_ref().map_or(0, |(index, _, offset)| (*index as u64 + 1) << 48 | *offset as u64);
        let descriptor = [tag.step, u64::from(tag.bucket), kind, data.len() as u64, place];
        self.operations += 1;
        for (word, value) in self.descriptor(self.rank).iter().zip(descriptor) {
            word.store(value, Ordering::Relaxed);
        }
        let found =
            found.map(|(_, arenas, offset)| (arenas, whole_pages(offset..offset + data.len(), page_size()), offset));
        let (bytes, before) = (data.len(), self.arrivals.get());
        let (ended, barriers) = match found {
            Some((arenas, pages, offset)) if !pages.is_empty() => {
                let barriers = barriers(bytes - pages.len()).max(2);
                (
                    self.reduce_in_place(request, ArenaSpan { arenas: &arenas, offset, pages }, descriptor, context),
                    barriers,
                )
            }
            _ => (self.reduce_staged(request, descriptor, context), barriers(bytes)),
        };
        ended.map_err(|error| {
            let Some(from) = error.peer().or(error.waited_for()) else { return error };
            let [from, to, hops] = [from, self.rank, barriers].map(|count| count as u32);
            let hop = self.arrivals.get().wrapping_sub(before);
            error.at_site(ErrorSite { operation, step: tag.step, bucket: tag.bucket, hop, from, to, hops })
        })
    }

    /// Returns the descriptor of this operation that a rank has written before it arrived.
    fn descriptor(&self, rank: usize) -> &[AtomicU64; 5] {
        &self.staging.slot(rank).descriptors[self.operations % 2]
    }

    fn reduce_in_place(
        &mut self,
        request: ReduceRequest<'_>,
        span: ArenaSpan<'_>,
        descriptor: [u64; 5],
        context: WaitContext<'_>,
    ) -> Result<(), CollectiveError> {
        let ArenaSpan { offset, ref pages, .. } = span;
        let (head, rest) = request.data.split_at_mut(pages.start - offset);
        let (whole, tail) = rest.split_at_mut(pages.len());
        let mut room = std::mem::take(&mut self.edges);
        let edge_bytes = &mut bytemuck::cast_slice_mut(&mut room)[..head.len() + tail.len()];
        edge_bytes[..head.len()].copy_from_slice(head);
        edge_bytes[head.len()..].copy_from_slice(tail);
        let ReduceRequest { element_bytes, reduce, reduce_both, .. } = request;
        let edges = Staged {
            rank: self.rank,
            world: self.world,
            data: &mut *edge_bytes,
            element_bytes,
            reduce,
            chunks: self.chunks,
        };
        let pages = WholePages { arenas: span.arenas, pages: span.pages.clone(), rank: self.rank, own: whole };
        let check = || context.abort.check();
        let ended = InPlace { pages, reduce_both, edges }.through(
            &self.staging,
            check,
            self.descriptor_barrier(descriptor, context),
        );
        head.copy_from_slice(&edge_bytes[..head.len()]);
        tail.copy_from_slice(&edge_bytes[head.len()..]);
        self.edges = room;
        // SAFETY: they are whole pages of the arenas' segment.
        self.chunks = ended.inspect_err(|_| unsafe { make_private(whole) })?;
        Ok(())
    }

    fn reduce_staged(
        &mut self,
        request: ReduceRequest<'_>,
        descriptor: [u64; 5],
        context: WaitContext<'_>,
    ) -> Result<(), CollectiveError> {
        let ReduceRequest { data, element_bytes, reduce, .. } = request;
        let staged = Staged { rank: self.rank, world: self.world, data, element_bytes, reduce, chunks: self.chunks };
        self.chunks = staged.through(&self.staging, self.descriptor_barrier(descriptor, context))?;
        Ok(())
    }

    /// Returns the barrier of an operation. At the first one the descriptors of all ranks must
    /// agree.
    fn descriptor_barrier<'a>(
        &'a self,
        descriptor: [u64; 5],
        context: WaitContext<'a>,
    ) -> impl FnMut() -> Result<(), CollectiveError> + 'a {
        let mut is_first = true;
        move || {
            context.abort.check()?;
            self.barrier(context)?;
            if std::mem::take(&mut is_first) { self.require(descriptor) } else { Ok(()) }
        }
    }

    /// Returns once all ranks have arrived as often as this one.
    fn barrier(&self, context: WaitContext<'_>) -> Result<(), CollectiveError> {
        self.arrivals.set(self.arrivals.get().wrapping_add(1));
        self.staging.slot(self.rank).arrivals.arrive(self.arrivals.get());
        let mut others = (0..self.world).filter(|rank| *rank != self.rank);
        others.try_for_each(|rank| self.await_rank(rank, context))
    }

    fn await_rank(&self, rank: usize, context: WaitContext<'_>) -> Result<(), CollectiveError> {
        if self.lacks(rank).is_none() {
            return Ok(());
        }
        let check_abort = || context.abort.check().map_err(|aborted| aborted.awaiting(rank));
        check_abort()?;
        let started = Instant::now();
        let (mut idle, mut looked, mut wait) = (Idle::since(started), started, Wait::default());
        while let Some(arrivals) = self.lacks(rank) {
            let now = Instant::now();
            let waited = idle.look(now);
            match context.waiter.next(&mut wait, waited) {
                WaitAction::Look => {
                    std::hint::spin_loop();
                    continue;
                }
                WaitAction::Yield => {
                    context.waiter.give_way(&mut wait);
                    continue;
                }
                WaitAction::Move => {
                    context.waiter.move_to_own();
                    continue;
                }
                WaitAction::Sleep => {}
            }
            if now.duration_since(looked) >= TICK {
                check_abort()?;
                self.check_missing(rank, waited, context.mesh)?;
                looked = now;
            }
            self.staging.slot(rank).arrivals.sleep(arrivals);
        }
        context.waiter.found(wait);
        Ok(())
    }

    /// Returns the number of a rank's arrivals, if it is lower than this rank's.
    fn lacks(&self, rank: usize) -> Option<u32> {
        self.staging.slot(rank).arrivals.lacks(self.arrivals.get())
    }

    /// Fails if an absent rank has gone, or if the awaited one has been silent for too long.
    fn check_missing(&self, waited_for: usize, waited: Duration, mesh: &Mesh) -> Result<(), CollectiveError> {
        for rank in (0..self.world).filter(|rank| *rank != self.rank && self.lacks(*rank).is_some()) {
            let found = mesh.check(rank, if rank == waited_for { waited } else { Duration::ZERO });
            // A rank that has arrived meanwhile may go.
            if self.lacks(rank).is_some() {
                found?;
            }
        }
        Ok(())
    }

    /// Requires that all ranks reduce the same data in the same way.
    fn require(&self, descriptor: [u64; 5]) -> Result<(), CollectiveError> {
        for rank in 0..self.world {
            let found = self.descriptor(rank).each_ref().map(|word| word.load(Ordering::Relaxed));
            let fields = ["step", "bucket", "operation", "length", "place"];
            if let Some(at) = (0..5).find(|at| found[*at] != descriptor[*at]) {
                let named = |value: u64| match fields[at] {
                    "operation" => OperationCode::all_reduce_in_memory(value).to_string(),
                    _ => value.to_string(),
                };
                return Err(CollectiveError::WrongFrame {
                    rank,
                    field: fields[at],
                    expected: named(descriptor[at]),
                    found: named(found[at]),
                    at: None,
                });
            }
        }
        Ok(())
    }
}

/// Returns the bytes in `range` on pages that hold nothing else.
fn whole_pages(range: Range<usize>, page: usize) -> Range<usize> {
    let (start, end) = (range.start.next_multiple_of(page), range.end / page * page);
    if start < end { start..end } else { range.start..range.start }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_whole_if_all_of_it_is_reduced() {
        for (range, whole) in [
            (0..4096, 0..4096),
            (0..4095, 0..0),
            (1..8192, 4096..8192),
            (4..8188, 4..4),
            (4092..12_292, 4096..12_288),
            (8192..8192, 8192..8192),
            (5000..5001, 5000..5000),
        ] {
            assert_eq!(whole_pages(range.clone(), 4096), whole, "{range:?}");
        }
    }
}
