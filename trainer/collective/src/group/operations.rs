//! The collectives of a group.

use std::time::Instant;

use super::{Group, MAX_SCHEDULES};
use crate::CollectiveError;
use crate::algorithm::{Algorithm, block, part};
use crate::element::{Element, Reduction, divide};
use crate::engine::{Codings, Execution};
use crate::failure_notice;
use crate::frame::{FrameKind, Header};
use crate::operation::{Operation, OperationCode};
use crate::outcome::Transferred;
use crate::rank_id::RankId;
use crate::reducer::{mutual_reducer, reducer};
use crate::shared_memory::{ReduceRequest, WaitContext};
use crate::tag::Tag;
use crate::wire::{Coding, Wire};

impl Group {
    /// Reduces `data` over all ranks in place, with the same bits on each.
    ///
    /// # Errors
    /// Any failure, naming the peer. The same holds for all other operations.
    ///
    /// # Panics
    /// If the columns of a torus do not divide the number of ranks.
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

    /// Sums `data` over all ranks in place, in this format on the wire, with the same bits on each.
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
        let between = wire.coding();
        let within = if algorithm.rounds_between_hosts_only(&self.hosts) { Wire::F32.coding() } else { between };
        let transferred = self.carry_out(operation, tag, data.len(), data, Some(Reduction::Sum), [within, between])?;
        // In every other algorithm the rank that forms a sum also sends it, and so rounds it.
        if algorithm == Algorithm::RecursiveDoubling && self.world() > 1 {
            wire.round(data);
        }
        Ok(transferred)
    }

    /// Returns true if [`Group::all_reduce_in_memory`] is possible; it is the same on all ranks.
    pub fn shares_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Reduces `data` as [`Group::all_reduce`] does, through memory that all ranks map, in rank
    /// order. Each rank reduces one part, and all of it up to 1 KiB.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    /// If the ranks share no memory.
    pub fn all_reduce_in_memory<T: Element>(
        &mut self,
        tag: Tag,
        data: &mut [T],
        reduction: Reduction,
    ) -> Result<Transferred, CollectiveError> {
        self.check()?;
        let Some(memory) = &mut self.memory else { panic!("the ranks of this group share no memory") };
        let started = Instant::now();
        let context = WaitContext { mesh: &self.mesh, abort: &self.abort, waiter: &self.waiter };
        let bytes = size_of_val(data) as u64;
        let request = ReduceRequest {
            tag,
            operation: self.operations,
            kind: OperationCode::kind(T::TYPE, reduction),
            data: bytemuck::cast_slice_mut(data),
            element_bytes: size_of::<T>(),
            reduce: reducer::<T>(reduction),
            reduce_both: mutual_reducer::<T>(reduction),
        };
        self.operations += 1;
        let ended = memory.all_reduce(request, context).map_err(|error| {
            let error = self.abort.or(error);
            if matches!(error, CollectiveError::Aborted { .. }) {
                return error;
            }
            let error = failure_notice::explain(&mut self.mesh, self.id, error, &[]);
            error.origin().into_iter().for_each(|origin| failure_notice::send(&mut self.mesh, self.id, origin, None));
            error
        });
        ended.or_else(|error| self.end(error))?;
        self.finish(data, reduction);
        Ok(Transferred { bytes_through_memory: bytes, took: started.elapsed(), ..Transferred::default() })
    }

    /// Reduces over all ranks. This rank's [`part`] of `data` holds the result; the other parts are
    /// undefined.
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
        let own = part(&(0..length), self.world(), self.id.rank);
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

    /// Fills `data` on all ranks with the root's data.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    /// If `root` is not below the number of ranks. The same holds for all operations with a root.
    pub fn broadcast<T: Element>(
        &mut self,
        root: usize,
        tag: Tag,
        data: &mut [T],
    ) -> Result<Transferred, CollectiveError> {
        self.run(Operation::Broadcast { root }, tag, data.len(), data, None)
    }

    /// Reduces over all ranks. The root's `data` holds the result; that of the others is undefined.
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
        if self.id.rank == root {
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

    /// Exchanges blocks between all ranks: [`block`] s of the first half of `data` goes to rank s,
    /// and block r of the second half comes from rank r.
    ///
    /// All blocks have one length if the number of ranks divides the length of a half. An odd last
    /// element stays unchanged.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn all_to_all<T: Element>(&mut self, tag: Tag, data: &mut [T]) -> Result<Transferred, CollectiveError> {
        let length = data.len() / 2;
        let own = block(length, self.world(), self.id.rank, self.id.rank);
        data.copy_within(own.clone(), length + own.start);
        self.run(Operation::AllToAll, tag, length, data, None)
    }

    /// Sends `data` to another rank, which calls [`Group::receive`] with the same tag.
    ///
    /// It returns once the system has accepted all bytes. Two ranks that both send first wait for
    /// each other if their sockets cannot hold the data. [`Group::all_to_all`] exchanges without
    /// that danger.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    /// If `to` is this rank, or not connected with it.
    pub fn send<T: Element>(&mut self, to: usize, tag: Tag, data: &mut [T]) -> Result<Transferred, CollectiveError> {
        let from = self.id.rank;
        self.run(Operation::Send { from, to }, tag, data.len(), data, None)
    }

    /// Fills `data` with the elements that another rank sends with the same tag.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    ///
    /// # Panics
    /// If `from` is this rank, or not connected with it.
    pub fn receive<T: Element>(
        &mut self,
        from: usize,
        tag: Tag,
        data: &mut [T],
    ) -> Result<Transferred, CollectiveError> {
        let to = self.id.rank;
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
        self.carry_out(operation, tag, length, data, reduction, [coding; 2])
    }

    fn carry_out<T: Element>(
        &mut self,
        operation: Operation,
        tag: Tag,
        length: usize,
        data: &mut [T],
        reduction: Option<Reduction>,
        [within, between]: [Coding; 2],
    ) -> Result<Transferred, CollectiveError> {
        self.check()?;
        let RankId { job, generation, rank } = self.id;
        if self.schedules.len() == MAX_SCHEDULES && !self.schedules.contains_key(&(operation, length)) {
            self.schedules.clear();
        }
        let schedule =
            self.schedules.entry((operation, length)).or_insert_with(|| operation.schedule(rank, &self.hosts, length));
        let Tag { step, bucket } = tag;
        let header = Header {
            kind: FrameKind::Data,
            operation: OperationCode::new(operation, between.code, reduction),
            job,
            generation,
            step,
            bucket,
            chunk: 0,
            sender: rank as u32,
            length: 0,
            payload_crc32c: 0,
        };
        let begun = self.operations;
        self.operations += u64::from(!matches!(operation, Operation::Send { .. }));
        let mut execution = Execution {
            mesh: &mut self.mesh,
            counts: &mut self.counts,
            schedule,
            header,
            operation: begun,
            element_bytes: size_of::<T>(),
            codings: Codings { hosts: &self.hosts, within, between },
            scratch: &mut self.scratch,
            waiter: &self.waiter,
            abort: &self.abort,
        };
        execution.run(bytemuck::cast_slice_mut(data)).or_else(|error| self.end(error))
    }

    /// Fails if the group was aborted or is broken.
    fn check(&self) -> Result<(), CollectiveError> {
        self.abort.check()?;
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Fails for this cause, now and in all later operations. It closes all connections, so that
    /// the peers notice.
    pub(crate) fn end<T>(&mut self, error: CollectiveError) -> Result<T, CollectiveError> {
        self.mesh.shut_down();
        self.broken = Some(error.clone());
        Err(self.abort.or(error))
    }

    fn finish<T: Element>(&self, data: &mut [T], reduction: Reduction) {
        if reduction == Reduction::Mean {
            divide(data, self.world());
        }
    }
}
