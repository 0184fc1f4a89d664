use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::algorithm::{Algorithm, Schedule, part};
use crate::call::{Call, Operation};
use crate::element::{Element, Reduction, divide, reducer};
use crate::engine::{Counts, Execution, Scratch};
use crate::forming::{Limits, Seat, Waiting, form};
use crate::frame::{Header, Kind};
use crate::link::Listener;
use crate::memory::{Arenas, Offer, Patience, Segment, SharedArena, SharedMemory, Work, arenas_size, staging_size};
use crate::mesh::Mesh;
use crate::wire::{Coding, Wire};
use crate::{Abort, CollectiveError};

/// Schedules kept for operations that come again.
const MAX_SCHEDULES: usize = 1024;

/// The members of one generation, each connected to each, as one of them sees it: all operations, done one after another on the
/// caller's thread.
///
/// All ranks call the same operations in the same order with the same [`Tag`], length, type and root. Ranks that disagree are told
/// so, in the next operation at the latest, or wait for each other until the silence limit ends it. An operation over no elements moves nothing and waits for nobody.
///
/// After an error `data` holds neither the old values nor the result, and all connections are closed so that the peers notice too.
#[derive(Debug)]
pub struct Group {
    mesh: Mesh,
    seat: Seat,
    /// Of all ranks.
    addresses: Box<[SocketAddr]>,
    limits: Limits,
    /// How often it was split.
    splits: u64,
    waiting: Waiting,
    abort: Abort,
    scratch: Scratch,
    counts: Box<[Counts]>,
    /// Where all ranks share a host and map the same memory.
    memory: Option<SharedMemory>,
    schedules: HashMap<(Operation, usize), Schedule>,
}

/// Which operation a frame belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// The training step, or any other count.
    pub step: u64,
    /// The bucket of the step.
    pub bucket: u32,
}

/// What an operation moved; through shared memory, each byte of the data once in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transferred {
    /// Bytes sent, headers included.
    pub bytes_sent: u64,
    /// Bytes received, headers included.
    pub bytes_received: u64,
    /// From the operation's start to its end.
    pub took: Duration,
}

impl Group {
    /// Forms the group of `seat` with `peers`, the data addresses of all ranks in rank order, through `listener`.
    ///
    /// Connections of another job, another generation or another rank are refused and closed without disturbing this. A rank that has
    /// failed to form a generation, or to go on in it, tries again in a newer one: others may count its first connections.
    ///
    /// # Errors
    /// [`CollectiveError::NotFormed`] when a rank is missing at the end of `limits.forming`,
    /// [`CollectiveError::Superseded`] when one is in a newer generation, [`CollectiveError::Aborted`] within
    /// milliseconds of `abort`, [`CollectiveError::NotInGroup`] when `peers` lacks this rank; those of an operation while the ranks
    /// agree on shared memory.
    pub fn form(
        listener: &Listener,
        seat: Seat,
        peers: &[SocketAddr],
        limits: Limits,
        abort: &Abort,
    ) -> Result<Self, CollectiveError> {
        if seat.rank >= peers.len() {
            return Err(CollectiveError::NotInGroup { rank: seat.rank, world: peers.len() });
        }
        let streams = form(listener, seat, peers, limits, abort)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut group = Self {
            mesh: Mesh::over(streams, limits.silence, abort)?,
            seat,
            addresses: peers.into(),
            limits,
            splits: 0,
            waiting: limits.waiting.resolved(peers[seat.rank].ip(), peers, cores),
            abort: abort.clone(),
            scratch: Scratch::new(),
            counts: vec![Counts::default(); peers.len()].into(),
            memory: None,
            schedules: HashMap::new(),
        };
        if limits.shares_memory && peers.len() > 1 && peers.iter().all(|peer| peer.ip() == peers[0].ip()) {
            let segment = group.share(staging_size(peers.len()))?;
            group.memory = segment.map(|segment| SharedMemory::on(segment, seat.rank, peers.len()));
        }
        Ok(group)
    }

    /// The group of the ranks that name the same `colour`, in the order of their `key`, those with the same in the order of their ranks
    /// here; `None` for a rank that names no colour. All ranks call it. The new group has connections of its own, which `listener` takes
    /// as it took those of this one, so that it may work beside this one on another thread; an abort ends both.
    ///
    /// # Errors
    /// As [`Group::all_reduce`] and [`Group::form`].
    pub fn split(
        &mut self,
        listener: &Listener,
        colour: Option<u32>,
        key: u32,
    ) -> Result<Option<Self>, CollectiveError> {
        let (rank, world, tag) = (self.seat.rank, self.world(), Tag { step: u64::MAX, bucket: 0 });
        self.splits += 1;
        let mut named = vec![0; 2 * world];
        named[2 * rank..2 * rank + 2].copy_from_slice(&[colour.map_or(-1, i64::from), i64::from(key)]);
        self.all_gather(tag, &mut named)?;
        let Some(colour) = colour else { return Ok(None) };
        let mut members: Vec<usize> = (0..world).filter(|rank| named[2 * rank] == i64::from(colour)).collect();
        members.sort_by_key(|rank| named[2 * rank + 1]);
        let addresses: Vec<SocketAddr> = members.iter().map(|rank| self.addresses[*rank]).collect();
        let own = members.iter().position(|member| *member == rank).unwrap_or_default();
        // Another job to whoever reads frames: neither of this group's connections nor another part's is taken for one of this part.
        let mut job = self.seat.job;
        let distinct = u64::from(colour).to_le_bytes().into_iter().chain(self.splits.to_le_bytes());
        job.0.iter_mut().zip(distinct).for_each(|(byte, part)| *byte ^= part);
        let seat = Seat { job, rank: own, ..self.seat };
        Self::form(listener, seat, &addresses, self.limits, &self.abort).map(Some)
    }

    /// A segment that all ranks have mapped; `None` on all of them where one could not.
    fn share(&mut self, bytes: usize) -> Result<Option<Segment>, CollectiveError> {
        let (rank, tag) = (self.seat.rank, Tag { step: u64::MAX, bucket: 0 });
        let made = if rank == 0 { Segment::make(bytes).ok() } else { None };
        let mut offer: Offer = made.as_ref().map_or([0; 4], |(_, _, offer)| *offer);
        self.broadcast(0, tag, &mut offer)?;
        let (segment, file) = match made {
            Some((segment, file, _)) => (Some(segment), Some(file)),
            None if rank == 0 => (None, None),
            None => (Segment::open(offer, bytes), None),
        };
        let mut all = [u8::from(segment.is_some())];
        self.all_reduce(Algorithm::RecursiveDoubling, tag, &mut all, Reduction::Min)?;
        // Until here, so that the others find it.
        drop(file);
        Ok(segment.filter(|_| all == [1]))
    }

    /// An arena of so many elements for each rank, in which [`Group::all_reduce_in_memory`] needs no copy; all ranks call it. `None`,
    /// on all of them, where they share no memory, ask for different lengths or none, or the system refuses so much.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn shared_arena(&mut self, elements: usize) -> Result<Option<SharedArena>, CollectiveError> {
        if self.memory.is_none() {
            return Ok(None);
        }
        let (rank, tag) = (self.seat.rank, Tag { step: u64::MAX, bucket: 0 });
        let mut asked = [elements as i64];
        self.broadcast(0, tag, &mut asked)?;
        let bytes = elements.saturating_mul(size_of::<f32>());
        let size = arenas_size(self.world(), bytes).filter(|_| elements > 0 && asked == [elements as i64]);
        let mut all = [u8::from(size.is_some())];
        self.all_reduce(Algorithm::RecursiveDoubling, tag, &mut all, Reduction::Min)?;
        let Some(size) = size.filter(|_| all == [1]) else { return Ok(None) };
        let Some(segment) = self.share(size)? else { return Ok(None) };
        let arenas = Arc::new(Arenas::on(segment, bytes));
        if let Some(memory) = &mut self.memory {
            memory.add(Arc::clone(&arenas));
        }
        Ok(Some(SharedArena::of(arenas, rank, elements)))
    }

    /// Closes all connections, so that the peers notice; gives the reason back.
    pub(crate) fn refuse(&self, error: CollectiveError) -> CollectiveError {
        self.mesh.shut_down();
        error
    }

    /// This process's place.
    pub fn seat(&self) -> Seat {
        self.seat
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.mesh.world()
    }

    /// The handle that ends this generation.
    pub fn abort_handle(&self) -> Abort {
        self.abort.clone()
    }

    /// How operations wait for peers, never [`Waiting::Adaptive`].
    pub(crate) fn waiting(&self) -> Waiting {
        self.waiting
    }

    pub(crate) fn set_waiting(&mut self, waiting: Waiting) {
        self.waiting = waiting;
    }

    /// Changes how long an operation may go without a byte moving.
    ///
    /// # Errors
    /// [`CollectiveError::System`] when a socket is no longer usable.
    pub fn set_silence(&mut self, silence: Duration) -> Result<(), CollectiveError> {
        self.mesh.set_silence(silence).inspect_err(|_| self.mesh.shut_down())
    }

    /// Reduces `data` over all ranks in place, with the same bits on each.
    ///
    /// # Errors
    /// Whatever keeps the result from being formed, naming the peer; so for all other operations.
    ///
    /// # Panics
    /// When a torus' columns do not divide the number of ranks.
    pub fn all_reduce<T: Element>(
        &mut self,
        algorithm: Algorithm,
        tag: Tag,
        data: &mut [T],
        reduction: Reduction,
    ) -> Result<Transferred, CollectiveError> {
        let length = data.len();
        let transferred = self.run(Operation::AllReduce(algorithm), tag, length, data, Some(reduction))?;
        self.finish(data, reduction);
        Ok(transferred)
    }

    /// Sums `data` over all ranks in place, in this format on the wire; with the same bits on each.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    /// As [`Group::all_reduce`].
    pub fn sum(
        &mut self,
        wire: Wire,
        algorithm: Algorithm,
        tag: Tag,
        data: &mut [f32],
    ) -> Result<Transferred, CollectiveError> {
        let operation = Operation::AllReduce(algorithm);
        self.carry_out(operation, tag, data.len(), data, Some(Reduction::Sum), wire.coding())
    }

    /// Whether [`Group::all_reduce_in_memory`] is possible; the same on all ranks.
    pub fn shares_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// As [`Group::all_reduce`], through memory that all ranks map: each reduces one part, in rank order.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    /// When the ranks share no memory.
    pub fn all_reduce_in_memory<T: Element>(
        &mut self,
        tag: Tag,
        data: &mut [T],
        reduction: Reduction,
    ) -> Result<Transferred, CollectiveError> {
        self.abort.check()?;
        let Some(memory) = &mut self.memory else { panic!("the ranks of this group share no memory") };
        let started = Instant::now();
        let patience = Patience { mesh: &self.mesh, abort: &self.abort, waiting: self.waiting };
        let bytes = size_of_val(data) as u64;
        let work = Work {
            tag,
            kind: Call::kind(T::TYPE, reduction),
            data: bytemuck::cast_slice_mut(data),
            element_bytes: size_of::<T>(),
            reduce: reducer::<T>(reduction),
        };
        memory.all_reduce(work, patience).or_else(|error| {
            self.mesh.shut_down();
            self.abort.check().and(Err(error))
        })?;
        self.finish(data, reduction);
        Ok(Transferred { bytes_sent: bytes, bytes_received: bytes, took: started.elapsed() })
    }

    /// Reduces over all ranks: this rank's [`part`] of `data` holds the result, the others are used up.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn reduce_scatter<T: Element>(
        &mut self,
        tag: Tag,
        data: &mut [T],
        reduction: Reduction,
    ) -> Result<Transferred, CollectiveError> {
        let length = data.len();
        let transferred = self.run(Operation::ReduceScatter, tag, length, data, Some(reduction))?;
        let own = part(&(0..length), self.world(), self.seat.rank);
        self.finish(&mut data[own], reduction);
        Ok(transferred)
    }

    /// Fills `data` on all ranks with every rank's [`part`] of it.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn all_gather<T: Element>(&mut self, tag: Tag, data: &mut [T]) -> Result<Transferred, CollectiveError> {
        self.run(Operation::AllGather, tag, data.len(), data, None)
    }

    /// Fills `data` on all ranks with the root's.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    /// When `root` is not below the number of ranks; so for all operations with one.
    pub fn broadcast<T: Element>(
        &mut self,
        root: usize,
        tag: Tag,
        data: &mut [T],
    ) -> Result<Transferred, CollectiveError> {
        self.run(Operation::Broadcast { root }, tag, data.len(), data, None)
    }

    /// Reduces over all ranks: `data` of the root holds the result, that of the others is used up.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn reduce<T: Element>(
        &mut self,
        root: usize,
        tag: Tag,
        data: &mut [T],
        reduction: Reduction,
    ) -> Result<Transferred, CollectiveError> {
        let transferred = self.run(Operation::Reduce { root }, tag, data.len(), data, Some(reduction))?;
        if self.seat.rank == root {
            self.finish(data, reduction);
        }
        Ok(transferred)
    }

    /// Fills `data` of the root with every rank's [`part`] of it.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn gather<T: Element>(
        &mut self,
        root: usize,
        tag: Tag,
        data: &mut [T],
    ) -> Result<Transferred, CollectiveError> {
        self.run(Operation::Gather { root }, tag, data.len(), data, None)
    }

    /// Fills each rank's [`part`] of `data` with that of the root.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn scatter<T: Element>(
        &mut self,
        root: usize,
        tag: Tag,
        data: &mut [T],
    ) -> Result<Transferred, CollectiveError> {
        self.run(Operation::Scatter { root }, tag, data.len(), data, None)
    }

    /// Gives each rank its part of the first half of `data` and fills the second half with this rank's parts of theirs.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    /// When the halves have no as many equal parts as there are ranks.
    pub fn all_to_all<T: Element>(&mut self, tag: Tag, data: &mut [T]) -> Result<Transferred, CollectiveError> {
        let (length, parts) = (data.len() / 2, 2 * self.world());
        assert!(data.len().is_multiple_of(parts), "{} elements have no {parts} equal parts", data.len());
        let own = part(&(0..length), self.world(), self.seat.rank);
        data.copy_within(own.clone(), length + own.start);
        self.run(Operation::AllToAll, tag, length, data, None)
    }

    /// Sends `data` to another rank, which calls [`Group::receive`] with the same tag.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    /// When `to` is this rank or none.
    pub fn send<T: Element>(&mut self, to: usize, tag: Tag, data: &mut [T]) -> Result<Transferred, CollectiveError> {
        let from = self.seat.rank;
        self.run(Operation::Send { from, to }, tag, data.len(), data, None)
    }

    /// Fills `data` with what another rank sends with the same tag.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    /// When `from` is this rank or none.
    pub fn receive<T: Element>(
        &mut self,
        from: usize,
        tag: Tag,
        data: &mut [T],
    ) -> Result<Transferred, CollectiveError> {
        let to = self.seat.rank;
        self.run(Operation::Send { from, to }, tag, data.len(), data, None)
    }

    /// Returns once all ranks have called it.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn barrier(&mut self, tag: Tag) -> Result<Transferred, CollectiveError> {
        self.all_reduce(Algorithm::RecursiveDoubling, tag, &mut [0_u8], Reduction::Max)
    }

    fn run<T: Element>(
        &mut self,
        operation: Operation,
        tag: Tag,
        length: usize,
        data: &mut [T],
        reduction: Option<Reduction>,
    ) -> Result<Transferred, CollectiveError> {
        let coding = Coding::plain::<T>(reduction.unwrap_or(Reduction::Sum));
        self.carry_out(operation, tag, length, data, reduction, coding)
    }

    fn carry_out<T: Element>(
        &mut self,
        operation: Operation,
        tag: Tag,
        length: usize,
        data: &mut [T],
        reduction: Option<Reduction>,
        coding: Coding,
    ) -> Result<Transferred, CollectiveError> {
        self.abort.check()?;
        let (Seat { job, generation, rank }, world) = (self.seat, self.world());
        if self.schedules.len() == MAX_SCHEDULES && !self.schedules.contains_key(&(operation, length)) {
            self.schedules.clear();
        }
        let schedule =
            self.schedules.entry((operation, length)).or_insert_with(|| operation.schedule(rank, world, length));
        let Tag { step, bucket } = tag;
        let header = Header {
            kind: Kind::Segment,
            call: Call::new(operation, coding.code, reduction),
            job,
            generation,
            step,
            bucket,
            chunk: 0,
            sender: rank as u32,
            length: 0,
            payload_crc32c: 0,
        };
        let mut execution = Execution {
            mesh: &self.mesh,
            counts: &mut self.counts,
            schedule,
            header,
            element_bytes: size_of::<T>(),
            coding,
            scratch: &mut self.scratch,
            waiting: self.waiting,
        };
        execution.run(bytemuck::cast_slice_mut(data)).or_else(|error| {
            self.mesh.shut_down();
            // Sockets that an abort shut down look as if the peer had closed them.
            self.abort.check().and(Err(error))
        })
    }

    fn finish<T: Element>(&self, data: &mut [T], reduction: Reduction) {
        if reduction == Reduction::Mean {
            divide(data, self.world());
        }
    }
}
