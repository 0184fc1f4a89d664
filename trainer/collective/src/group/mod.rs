mod operations;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::algorithm::{Algorithm, Schedule};
use crate::element::Reduction;
use crate::engine::{Counts, Scratch};
use crate::handshake::{Shape, form};
use crate::hosts::Hosts;
use crate::limits::Limits;
use crate::listener::Listener;
use crate::mesh::Mesh;
use crate::operation::Operation;
use crate::own_core::OwnCore;
use crate::rank_id::{JobId, RankId};
use crate::shared_memory::{Arenas, Offer, Segment, SharedArena, SharedMemory, arenas_size, pieces, staging_size};
use crate::tag::{NO_STEP, Tag};
use crate::waiting::{Waiter, Waiting};
use crate::{Abort, AgreedPlan, CollectiveError, Missing};

/// Schedules kept for operations that recur.
const MAX_SCHEDULES: usize = 1024;

/// The members of one generation, each connected with each, as one of them sees it. All operations
/// run one after another on the caller's thread.
///
/// All ranks call the same operations in the same order with the same [`Tag`], length, type and
/// root. Ranks that disagree get an error in the next operation at the latest, or wait for each
/// other until the silence limit ends it. An operation over no elements moves nothing and waits for
/// no rank.
///
/// After an error `data` is undefined, and all later operations fail for the same cause. All
/// connections are closed, so that the peers notice. The peers also get the cause if that needs no
/// waiting.
#[derive(Debug)]
pub struct Group {
    mesh: Mesh,
    id: RankId,
    /// By rank.
    addresses: Box<[SocketAddr]>,
    hosts: Hosts,
    /// The newest plan that the ranks agreed on.
    plan: Option<AgreedPlan>,
    limits: Limits,
    /// The number of splits so far.
    splits: u64,
    waiter: Waiter,
    abort: Abort,
    scratch: Scratch,
    counts: Box<[Counts]>,
    /// The number of operations that all ranks have begun.
    operations: u64,
    /// The reason for which all later operations fail.
    broken: Option<CollectiveError>,
    /// Set if all ranks share a host and map the same memory.
    memory: Option<SharedMemory>,
    schedules: HashMap<(Operation, usize), Schedule>,
}

impl Group {
    /// Forms the group of `id` with `peers` through `listener`. `peers` are the data addresses of
    /// all ranks in rank order.
    ///
    /// Connections of another job, generation or rank are refused and do not disturb the forming. A
    /// rank that failed to form a generation, or to continue in it, must try again in a newer one,
    /// because others may count its first connections.
    ///
    /// # Errors
    /// [`CollectiveError::NotFormed`] if a rank is missing at the end of `limits.forming`. The same
    /// error means that a connected rank is silent for that long while the ranks exchange hosts and
    /// agree on shared memory.
    ///
    /// [`CollectiveError::Superseded`] if a rank is in a newer generation.
    /// [`CollectiveError::Aborted`] within milliseconds of `abort`. [`CollectiveError::NotInGroup`]
    /// if `peers` lacks this rank. The exchange of hosts can also fail as any operation.
    pub fn form(
        listener: &Listener,
        id: RankId,
        peers: &[SocketAddr],
        limits: Limits,
        abort: &Abort,
    ) -> Result<Self, CollectiveError> {
        let begun = Instant::now();
        let mut group = Self::connect(listener, id, peers, Shape::Mesh, limits, abort)?;
        let patience = limits.forming.min(limits.silence);
        group.mesh.set_silence(patience, patience)?;
        group.share_hosts_and_memory(listener).map_err(|error| match error {
            CollectiveError::PeerSilent { rank, waited, .. } => CollectiveError::NotFormed {
                generation: id.generation,
                waited: begun.elapsed(),
                missing: Missing::Unreached {
                    rank,
                    address: peers[rank],
                    last_attempt: format!("connected, and silent for {waited:?} since"),
                    others: 0,
                },
            },
            error => error,
        })?;
        group.mesh.set_silence(limits.silence, limits.silence)?;
        Ok(group)
    }

    /// Lets connected ranks exchange their hosts, and share memory if they may.
    fn share_hosts_and_memory(&mut self, listener: &Listener) -> Result<(), CollectiveError> {
        let (rank, world, limits) = (self.id.rank, self.world(), self.limits);
        // Two ranks need no hosts for any other choice.
        if world > 2 || (world == 2 && limits.waiting == Waiting::Adaptive) {
            // All-to-all: a missing pair makes no third rank wait.
            let mut names = vec![listener.host.cast_signed(); 2 * world];
            self.all_to_all(Tag { step: NO_STEP, bucket: 0 }, &mut names)?;
            self.hosts = Hosts::named(bytemuck::cast_slice(&names[world..]));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let waiting = limits.waiting.resolved(self.hosts.beside(rank), limits.threads, cores);
        // A rank that is alone on its host needs no core of its own.
        let shares_host = self.hosts.beside(rank) > 1;
        let own = shares_host.then(|| OwnCore::of(self.hosts.before(rank), limits.threads.get())).flatten();
        self.waiter = Waiter::new(waiting, own);
        let is_one_host = self.addresses.iter().all(|peer| peer.ip() == self.addresses[0].ip());
        if limits.shares_memory && world > 1 && is_one_host {
            let segment = self.share(staging_size(world))?;
            self.memory = segment.map(|segment| SharedMemory::on(segment, rank, world));
        }
        Ok(())
    }

    /// Forms a star: the last rank of `peers` is connected with each of the others, and they with
    /// no other rank.
    ///
    /// Only [`Group::send`] and [`Group::receive`] between the last rank and another one are
    /// possible; any other operation panics. Only the last rank accepts connections through
    /// `listener`. The others may form another group through theirs at the same time.
    ///
    /// # Errors
    /// As [`Group::form`].
    pub fn form_star(
        listener: &Listener,
        id: RankId,
        peers: &[SocketAddr],
        limits: Limits,
        abort: &Abort,
    ) -> Result<Self, CollectiveError> {
        Self::connect(listener, id, peers, Shape::Star, limits, abort)
    }

    fn connect(
        listener: &Listener,
        id: RankId,
        peers: &[SocketAddr],
        shape: Shape,
        limits: Limits,
        abort: &Abort,
    ) -> Result<Self, CollectiveError> {
        if id.rank >= peers.len() {
            return Err(CollectiveError::NotInGroup { rank: id.rank, world: peers.len() });
        }
        let streams = form(listener, id, peers, shape, limits, abort)?;
        Ok(Self {
            mesh: Mesh::over(streams, limits.silence, abort)?,
            id,
            addresses: peers.into(),
            hosts: Hosts::apart(peers.len()),
            plan: None,
            limits,
            splits: 0,
            waiter: Waiter::new(limits.waiting, None),
            abort: abort.clone(),
            scratch: Scratch::new(),
            counts: vec![Counts::default(); peers.len()].into(),
            operations: 0,
            broken: None,
            memory: None,
            schedules: HashMap::new(),
        })
    }

    /// Returns the group of the ranks that name the same `colour`, or `None` for a rank that names
    /// none. All ranks must call it.
    ///
    /// The new ranks are ordered by `key`, and by their present rank if keys are equal. The new
    /// group has connections of its own, which `listener` accepts. So it may work on another thread
    /// beside this group. An abort ends both.
    ///
    /// # Errors
    /// As [`Group::all_reduce`] and [`Group::form`].
    pub fn split(
        &mut self,
        listener: &Listener,
        colour: Option<u32>,
        key: u32,
    ) -> Result<Option<Self>, CollectiveError> {
        let (rank, world, tag) = (self.id.rank, self.world(), Tag { step: NO_STEP, bucket: 0 });
        self.splits += 1;
        let mut named = vec![0; 2 * world];
        named[2 * rank..2 * rank + 2].copy_from_slice(&[colour.map_or(-1, i64::from), i64::from(key)]);
        self.all_gather(tag, &mut named)?;
        let Some(colour) = colour else { return Ok(None) };
        let mut members: Vec<usize> = (0..world).filter(|rank| named[2 * rank] == i64::from(colour)).collect();
        members.sort_by_key(|rank| named[2 * rank + 1]);
        let addresses: Vec<SocketAddr> = members.iter().map(|rank| self.addresses[*rank]).collect();
        let own = members.iter().position(|member| *member == rank).unwrap_or_default();
        let id = RankId { job: part_of(self.id.job, colour, self.splits), rank: own, ..self.id };
        // The other parts share the cores of a host.
        let limits = Limits { waiting: self.waiter.waiting(), ..self.limits };
        Self::form(listener, id, &addresses, limits, &self.abort).map(Some)
    }

    /// Returns a segment that all ranks have mapped, or `None` on all ranks if one could not.
    fn share(&mut self, bytes: usize) -> Result<Option<Segment>, CollectiveError> {
        let (rank, tag) = (self.id.rank, Tag { step: NO_STEP, bucket: 0 });
        let made = if rank == 0 { Segment::make(bytes).ok() } else { None };
        let mut offer: Offer = made.as_ref().map_or([0; 4], |(_, _, offer)| *offer);
        self.broadcast(0, tag, &mut offer)?;
        let found = match made {
            Some((segment, file, _)) => Some((segment, file)),
            None if rank == 0 => None,
            None => Segment::open(offer, bytes),
        };
        let mut provided = found.is_some();
        if let Some((segment, file)) = &found {
            for piece in pieces(segment.part_of(rank, self.world())) {
                self.abort.check()?;
                provided = provided && segment.provide(file, piece).is_ok();
            }
        }
        let mut all = [u8::from(provided)];
        // Rank 0 keeps the file open until here, so that the others find it.
        self.all_reduce(Algorithm::RecursiveDoubling, tag, &mut all, Reduction::Min)?;
        let segment = found.map(|(segment, _)| segment).filter(|_| all == [1]);
        if let Some(segment) = &segment {
            for piece in pieces(segment.payload()) {
                self.abort.check()?;
                segment.populate(piece);
            }
        }
        Ok(segment)
    }

    /// Returns an arena of `elements` for each rank. [`Group::all_reduce_in_memory`] copies no
    /// whole page of it. All ranks must call it.
    ///
    /// Returns `None` on all ranks if they share no memory, ask for different lengths or for none,
    /// or the system refuses the memory. The memory is freed with the group, not before.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn shared_arena(&mut self, elements: usize) -> Result<Option<SharedArena>, CollectiveError> {
        if self.memory.is_none() {
            return Ok(None);
        }
        let (rank, tag) = (self.id.rank, Tag { step: NO_STEP, bucket: 0 });
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

    /// Returns this process's identity in the group.
    pub fn id(&self) -> RankId {
        self.id
    }

    /// Returns the number of ranks.
    pub fn world(&self) -> usize {
        self.mesh.world()
    }

    /// Returns the hosts of the ranks as all ranks see them: as reported, or as in the plan that
    /// they agreed on.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// Returns the newest plan that the ranks agreed on.
    pub(crate) fn plan(&self) -> Option<&AgreedPlan> {
        self.plan.as_ref()
    }

    /// Takes over a plan that all ranks have agreed on.
    pub(crate) fn take_over(&mut self, plan: AgreedPlan) {
        let hosts = &plan.proposed().hosts;
        if self.hosts != *hosts {
            self.schedules.clear();
            self.hosts = hosts.clone();
        }
        self.plan = Some(plan);
    }

    /// Returns the handle that ends this generation.
    pub fn abort_handle(&self) -> Abort {
        self.abort.clone()
    }

    /// Returns how operations wait for peers. It is [`Waiting::Adaptive`] in a star only.
    pub(crate) fn waiting(&self) -> Waiting {
        self.waiter.waiting()
    }

    pub(crate) fn set_waiting(&mut self, waiting: Waiting) {
        self.waiter.set_waiting(waiting);
    }

    /// Changes two limits: how long an operation may go without a whole frame, and how long a
    /// peer's system may acknowledge nothing.
    ///
    /// The second limit also counts against a peer that computes once the sockets are full. Where
    /// that can happen, it must not be shorter than the first.
    ///
    /// # Errors
    /// [`CollectiveError::System`] if a socket is no longer usable.
    pub fn set_silence(&mut self, silence: Duration, unacknowledged: Duration) -> Result<(), CollectiveError> {
        self.limits.silence = silence;
        self.mesh.set_silence(silence, unacknowledged).inspect_err(|_| self.mesh.shut_down())
    }
}

/// Returns a job identity for the frames of a part of a group, so that they are never mistaken for
/// the group's or another part's.
fn part_of(job: JobId, colour: u32, split: u64) -> JobId {
    /// The golden ratio's digits: odd, and without a pattern.
    const MIX: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let mixed = [u128::from(colour), u128::from(split)]
        .into_iter()
        .fold(u128::from_le_bytes(job.0), |job, word| (job ^ word).wrapping_mul(MIX).rotate_left(61));
    JobId(mixed.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::num::NonZeroUsize;

    use super::*;

    /// Returns how the two ranks of a group wait that are on these hosts and compute with so many
    /// threads.
    fn waiting_on(hosts: [u64; 2], threads: NonZeroUsize) -> [Waiting; 2] {
        let limits = Limits { waiting: Waiting::Adaptive, threads, ..Limits::default() };
        let listeners = hosts.map(|host| Listener::bind(Ipv4Addr::LOCALHOST.into(), 0).unwrap().on_host(host));
        let peers = listeners.each_ref().map(Listener::address);
        let join = |rank: usize| {
            let id = RankId { job: JobId([3; 16]), generation: 1, rank };
            Group::form(&listeners[rank], id, &peers, limits, &Abort::new()).unwrap().waiting()
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| join(1));
            [join(0), other.join().unwrap()]
        })
    }

    #[test]
    fn two_ranks_at_one_address_spin_by_the_cores_of_their_hosts() {
        let cores = std::thread::available_parallelism().unwrap();
        assert_eq!(waiting_on([1, 2], cores), [Waiting::SpinThenBlock; 2]);
        assert_eq!(waiting_on([1, 1], cores), [Waiting::Block; 2]);
    }
}
