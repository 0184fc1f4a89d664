//! Collective algorithms as pure schedules: which rank sends which elements to which rank, in which
//! hop.
//!
//! An algorithm is a list of transfers. Each belongs to a hop, and all ranks count hops alike. A
//! hop sends the elements as they were before that hop's arrivals. A [`Schedule`] is one rank's
//! part of the list: its sends and its receives. All ranks put both in the same order, so the
//! earliest open transfer can always proceed. Hence no schedule deadlocks, even over links that
//! hold one frame.
//!
//! Each all-reduce is one file with its schedule, its cost and its name. [`Algorithm`] lists them,
//! and the manifest names them.

mod direct;
mod doubling;
mod halving;
mod hierarchical;
mod ring;
mod rooted;
mod torus;
mod tree;

use std::ops::Range;

use ring::Ring;

use crate::costs::Costs;
use crate::hosts::Hosts;

/// Elements of the longest frame: 1 MiB of f32. Over loopback each frame costs some 10 µs besides
/// its bytes.
pub const MAX_FRAME: usize = 256 * 1024;

/// One rank's part in a collective operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The frames to send, in order.
    pub sends: Vec<Send>,
    /// The frames to receive, in order.
    pub receives: Vec<Receive>,
    /// Hops of the operation, including those in which this rank does nothing.
    pub hops: usize,
}

/// A frame to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    /// The hop, from 0.
    pub hop: usize,
    /// The receiving rank.
    pub to: usize,
    /// The elements in the frame.
    pub elements: Range<usize>,
    /// Receives that must have been taken in before, because they change these elements.
    pub after: usize,
}

/// A frame to receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The hop, from 0.
    pub hop: usize,
    /// The sending rank.
    pub from: usize,
    /// The elements in the frame.
    pub elements: Range<usize>,
    /// The treatment of these elements.
    pub arrival: Arrival,
    /// Sends that must be done before it is taken in, because they carry the old values of these
    /// elements.
    pub after: usize,
}

/// The treatment of arriving elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// They are reduced into the local ones.
    Reduce,
    /// They replace the local ones.
    Copy,
}

/// The algorithm of an all-reduce. Costs: α seconds for a message, β for a byte, γ for a byte to
/// reduce; S bytes, n ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// 2(n−1)α + 2(n−1)/n·Sβ + (n−1)/n·Sγ. (Patarasu and Yuan, 2009)
    Ring,
    /// ⌊log₂n⌋(α + Sβ + Sγ), and 2α + 2Sβ + Sγ more if n is no power of two. (Thakur, Rabenseifner
    /// and Gropp, 2005)
    RecursiveDoubling,
    /// 2·⌊log₂n⌋α + 2(m−1)/m·Sβ + (m−1)/m·Sγ, with m the greatest power of two up to n, and 2α +
    /// 2Sβ + Sγ more if m is not n. (Rabenseifner, 2004)
    HalvingDoubling,
    /// ≈ 2(⌊log₂n⌋ + k)(α + S/k·(β + γ)) with k frames. There are two trees, each with half of the
    /// elements, and every rank has children in only one. (Sanders, Speck and Träff, 2009)
    DoubleTree,
    /// 2(n−1)α + 2(n−1)/n·Sβ + (n−1)/n·Sγ, in two hops: every rank reduces one part of all others'
    /// elements by itself. If ranks share some of the hosts, it is a hierarchy at the cost of one,
    /// with these two hops between hosts.
    Direct,
    /// Within hosts, between them, and within them again. With H hosts of k ranks each it costs
    /// 2(k+H−2)α + 2(n−1)/n·Sβ + (n−1)/n·Sγ. Only 2(H−1)/H·Sβ of that goes over a host's line to
    /// the others. (Goyal et al., arXiv 1706.02677, §4)
    Hierarchical,
    /// A ring in each row, then in each column, then in each row again: 2(X+Y−2)α + 2(n−1)/n·Sβ +
    /// (n−1)/n·Sγ for X columns and Y rows. (Mikami et al., arXiv 1811.05233)
    Torus {
        /// Ranks of a row; it divides the number of ranks.
        columns: usize,
    },
}

impl Algorithm {
    /// All algorithms but the torus, which needs its columns.
    pub const PLAIN: [Self; 6] = [
        Self::Ring,
        Self::RecursiveDoubling,
        Self::HalvingDoubling,
        Self::DoubleTree,
        Self::Direct,
        Self::Hierarchical,
    ];

    /// Returns the torus of `world` ranks that is nearest to a square. It has one column if `world`
    /// is prime.
    #[must_use]
    pub fn torus(world: usize) -> Self {
        let columns = (1..=world.isqrt()).rev().find(|columns| world.is_multiple_of(*columns));
        Self::Torus { columns: columns.unwrap_or(1) }
    }

    /// Returns the algorithms that may be the cheapest among these hosts. The first of equally
    /// cheap ones is as good as any.
    pub(crate) fn worth_trying(hosts: &Hosts) -> impl Iterator<Item = Self> {
        let all = Self::PLAIN.into_iter().chain([Self::torus(hosts.world())]);
        all.filter(|algorithm| algorithm.as_scheme(|scheme| scheme.is_worth_trying(hosts)))
    }

    /// Returns the seconds of a reduction of `bytes` over the ranks of `hosts`.
    pub(crate) fn seconds(self, costs: &Costs, hosts: &Hosts, bytes: usize) -> f64 {
        self.as_scheme(|scheme| {
            let Costs { message, mut wire_byte, reduced_byte } = *costs;
            if hosts.are_mixed() {
                wire_byte *= scheme.crossings(hosts) as f64 / hosts.crossings() as f64;
            }
            scheme.seconds(&Terms { message, wire_byte, reduced_byte, hosts, bytes: bytes as f64 })
        })
    }

    /// Returns true if `world` ranks can run it.
    pub(crate) fn fits(self, world: usize) -> bool {
        self.as_scheme(|scheme| scheme.fits(world))
    }

    /// Returns true if a narrow [`Wire`](crate::Wire) applies only between hosts. Within hosts,
    /// elements then travel as in memory.
    pub(crate) fn rounds_between_hosts_only(self, hosts: &Hosts) -> bool {
        self.as_scheme(|scheme| scheme.rounds_between_hosts_only(hosts))
    }

    /// Returns its name in errors.
    pub(crate) fn name(self) -> &'static str {
        self.as_scheme(|scheme| scheme.name())
    }

    /// Returns its code and its parameter, for [`Self::from_code`].
    pub(crate) fn code(self) -> (u8, usize) {
        let columns = if let Self::Torus { columns } = self { columns } else { 0 };
        (self.as_scheme(|scheme| scheme.code()), columns)
    }

    /// Returns the algorithm with this code, or `None` if no ranks can run one.
    pub(crate) fn from_code(code: u8, columns: usize) -> Option<Self> {
        let torus = Some(Self::Torus { columns }).filter(|_| columns > 0);
        Self::PLAIN.into_iter().chain(torus).find(|algorithm| algorithm.code().0 == code)
    }

    fn as_scheme<T>(self, act: impl FnOnce(&dyn AllReduce) -> T) -> T {
        match self {
            Self::Ring => act(&ring::Scheme),
            Self::RecursiveDoubling => act(&doubling::Scheme),
            Self::HalvingDoubling => act(&halving::Scheme),
            Self::DoubleTree => act(&tree::Scheme),
            Self::Direct => act(&direct::Scheme),
            Self::Hierarchical => act(&hierarchical::Scheme),
            Self::Torus { columns } => act(&torus::Scheme { columns }),
        }
    }
}

/// An algorithm of an all-reduce.
trait AllReduce {
    /// Returns its code in frames and in plans, which outlive a version. It is below 2⁵, and no
    /// code is ever used twice.
    fn code(&self) -> u8;

    /// Returns its name in errors.
    fn name(&self) -> &'static str;

    /// Describes all transfers that reduce `length` elements over the ranks of `hosts`.
    fn describe(&self, builder: &mut Builder, hosts: &Hosts, length: usize);

    /// Returns the seconds that it takes, by the formula of [`Algorithm`].
    fn seconds(&self, terms: &Terms<'_>) -> f64;

    /// Returns how often all elements cross the line of a mixed host. An algorithm that ignores
    /// hosts crosses it once for each rank of the fullest host.
    fn crossings(&self, hosts: &Hosts) -> usize {
        hosts.fullest()
    }

    /// Returns true if `world` ranks can run it.
    fn fits(&self, _world: usize) -> bool {
        true
    }

    /// Returns true if all ranks end with the same bits when only transfers between hosts are
    /// rounded.
    fn rounds_between_hosts_only(&self, _hosts: &Hosts) -> bool {
        false
    }

    /// Returns true if it may be cheaper than all others among these hosts.
    fn is_worth_trying(&self, _hosts: &Hosts) -> bool {
        true
    }
}

/// The terms of the cost formulas.
struct Terms<'a> {
    /// α, in seconds.
    message: f64,
    /// β, in seconds. On mixed hosts it is the cost on the line that all ranks of a host share.
    wire_byte: f64,
    /// γ, in seconds.
    reduced_byte: f64,
    hosts: &'a Hosts,
    /// S.
    bytes: f64,
}

impl Terms<'_> {
    /// n.
    fn ranks(&self) -> f64 {
        self.hosts.world() as f64
    }

    /// ⌊log₂n⌋.
    fn levels(&self) -> f64 {
        f64::from(self.hosts.world().ilog2())
    }

    /// S(β + γ): all bytes are sent once and reduced.
    fn whole(&self) -> f64 {
        self.bytes * (self.wire_byte + self.reduced_byte)
    }

    /// S(2β + γ): all bytes are sent, reduced and sent back.
    fn there_and_back(&self) -> f64 {
        self.bytes * (2.0 * self.wire_byte + self.reduced_byte)
    }

    /// This many messages, and (n−1)/n of all bytes there and back.
    fn in_parts(&self, messages: f64) -> f64 {
        messages * self.message + (self.ranks() - 1.0) / self.ranks() * self.there_and_back()
    }
}

/// Reduces `length` elements over all ranks, on all ranks. As in all schedules, frames hold up to
/// `frame` elements; real ones hold [`MAX_FRAME`]. The frames do not change the order in which an
/// element's terms are added.
///
/// # Panics
/// If `rank` is not among those of `hosts`, or the columns of a torus do not divide their number.
/// All schedules panic if `frame` is 0.
#[must_use]
pub fn all_reduce(algorithm: Algorithm, rank: usize, hosts: &Hosts, length: usize, frame: usize) -> Schedule {
    let world = hosts.world();
    assert!(algorithm.fits(world), "{world} ranks cannot do {algorithm:?}");
    built(rank, world, frame, |builder| algorithm.as_scheme(|scheme| scheme.describe(builder, hosts, length)))
}

/// Reduces [`part`] `rank` of `length` elements over all ranks, on that rank. The other elements
/// are undefined afterwards.
///
/// # Panics
/// If `rank` is not below `world`.
#[must_use]
pub fn reduce_scatter(rank: usize, world: usize, length: usize, frame: usize) -> Schedule {
    built(rank, world, frame, |builder| {
        Ring::new(all(world), 0..length, frame).reduce_scatter(builder, 0);
    })
}

/// Gathers all of `length` elements on all ranks. Each rank r begins with [`part`] r.
///
/// # Panics
/// If `rank` is not below `world`.
#[must_use]
pub fn all_gather(rank: usize, world: usize, length: usize, frame: usize) -> Schedule {
    built(rank, world, frame, |builder| {
        Ring::new(all(world), 0..length, frame).all_gather(builder, 0);
    })
}

/// Copies the elements of `root` to all ranks.
///
/// # Panics
/// If `rank` or `root` is not below `world`.
#[must_use]
pub fn broadcast(rank: usize, world: usize, root: usize, length: usize, frame: usize) -> Schedule {
    built(rank, world, frame, |builder| rooted::broadcast(builder, root, length))
}

/// Reduces over all ranks on `root`. The elements of the others are undefined afterwards.
///
/// # Panics
/// If `rank` or `root` is not below `world`.
#[must_use]
pub fn reduce(rank: usize, world: usize, root: usize, length: usize, frame: usize) -> Schedule {
    built(rank, world, frame, |builder| rooted::reduce(builder, root, length))
}

/// Gathers all of `length` elements on `root`. Each rank r begins with [`part`] r.
///
/// # Panics
/// If `rank` or `root` is not below `world`.
#[must_use]
pub fn gather(rank: usize, world: usize, root: usize, length: usize, frame: usize) -> Schedule {
    built(rank, world, frame, |builder| rooted::gather(builder, root, length))
}

/// Copies [`part`] r of the elements of `root` to each rank r.
///
/// # Panics
/// If `rank` or `root` is not below `world`.
#[must_use]
pub fn scatter(rank: usize, world: usize, root: usize, length: usize, frame: usize) -> Schedule {
    built(rank, world, frame, |builder| rooted::scatter(builder, root, length))
}

/// Copies the elements of one rank to another.
///
/// # Panics
/// If `rank`, `from` or `to` is not below `world`, or `from` is `to`.
#[must_use]
pub fn send(rank: usize, world: usize, from: usize, to: usize, length: usize, frame: usize) -> Schedule {
    assert!(from.max(to) < world && from != to, "rank {from} cannot send to rank {to} in a group of {world}");
    built(rank, world, frame, |builder| builder.transfer(0, from, to, &(0..length), Arrival::Copy))
}

/// Exchanges blocks over an arena of `2 · length` elements: the first half is given, the second
/// half is taken. [`block`] r of the second half of rank s is block s of the first half of rank r.
/// The caller copies a rank's own block.
///
/// # Panics
/// If `rank` is not below `world`.
#[must_use]
pub fn all_to_all(rank: usize, world: usize, length: usize, frame: usize) -> Schedule {
    built(rank, world, frame, |builder| {
        for hop in 1..world {
            for from in 0..world {
                let to = (from + hop) % world;
                let taken = length + block(length, world, to, from).start;
                builder.carry(hop, from, to, &block(length, world, from, to), taken, Arrival::Copy);
            }
        }
    })
}

/// Returns the block that rank `rank` of `world` exchanges with `peer` in an all-to-all. Of
/// `length` elements there is one block for each rank, in rank order.
///
/// Block s of rank r has as many elements as [`part`] (r + s) mod n, and so as many as block r of
/// rank s. A rank's blocks always add up to `length`.
#[must_use]
pub fn block(length: usize, world: usize, rank: usize, peer: usize) -> Range<usize> {
    // Parts beyond the last continue with the first again.
    let start_of = |part: usize| length * part / world;
    start_of(rank + peer) - start_of(rank)..start_of(rank + peer + 1) - start_of(rank)
}

/// Returns part `index` of `count` of a range. Parts are as even as whole elements allow.
#[must_use]
pub fn part(range: &Range<usize>, count: usize, index: usize) -> Range<usize> {
    let length = range.end - range.start;
    range.start + length * index / count..range.start + length * (index + 1) / count
}

fn built(rank: usize, world: usize, frame: usize, describe: impl FnOnce(&mut Builder)) -> Schedule {
    let mut builder = Builder::new(rank, world, frame);
    describe(&mut builder);
    builder.build()
}

fn all(world: usize) -> Vec<usize> {
    (0..world).collect()
}

/// Collects the transfers that one rank takes part in.
struct Builder {
    rank: usize,
    world: usize,
    /// Elements of the longest frame.
    frame: usize,
    hops: usize,
    sends: Vec<(Key, Send)>,
    receives: Vec<(Key, Receive)>,
}

/// The order of all transfers: hop, sender, receiver, first element.
type Key = (usize, usize, usize, usize);

impl Builder {
    fn new(rank: usize, world: usize, frame: usize) -> Self {
        assert!(rank < world, "rank {rank} is not in a group of {world}");
        Self { rank, world, frame, hops: 0, sends: Vec::new(), receives: Vec::new() }
    }

    /// Adds a transfer of `elements` to the same place of `to`.
    fn transfer(&mut self, hop: usize, from: usize, to: usize, elements: &Range<usize>, arrival: Arrival) {
        self.carry(hop, from, to, elements, elements.start, arrival);
    }

    /// Adds a transfer of `elements` to the place of `to` that begins with element `place`, in
    /// frames.
    fn carry(&mut self, hop: usize, from: usize, to: usize, elements: &Range<usize>, place: usize, arrival: Arrival) {
        if from == to || elements.is_empty() {
            return;
        }
        self.hops = self.hops.max(hop + 1);
        if self.rank != from && self.rank != to {
            return;
        }
        for start in elements.clone().step_by(self.frame) {
            let sent = start..elements.end.min(start + self.frame);
            let key = (hop, from, to, start);
            if self.rank == from {
                self.sends.push((key, Send { hop, to, elements: sent, after: 0 }));
            } else {
                let taken = place + sent.start - elements.start..place + sent.end - elements.start;
                self.receives.push((key, Receive { hop, from, elements: taken, arrival, after: 0 }));
            }
        }
    }

    /// Sorts all transfers and finds what each must wait for.
    fn build(self) -> Schedule {
        let Self { rank: _, world: _, frame: _, hops, mut sends, mut receives } = self;
        sends.sort_by_key(|(key, _)| *key);
        receives.sort_by_key(|(key, _)| *key);
        let mut last = 0;
        for ((hop, ..), send) in &mut sends {
            let before = receives.partition_point(|((earlier, ..), _)| earlier < hop);
            let changes =
                receives[..before].iter().rposition(|(_, receive)| overlap(&receive.elements, &send.elements));
            last = changes.map_or(last, |index| last.max(index + 1));
            send.after = last;
        }
        let mut last = 0;
        for ((hop, ..), receive) in &mut receives {
            let before = sends.partition_point(|((earlier, ..), _)| earlier <= hop);
            let carries = sends[..before].iter().rposition(|(_, send)| overlap(&receive.elements, &send.elements));
            last = carries.map_or(last, |index| last.max(index + 1));
            receive.after = last;
        }
        Schedule {
            sends: sends.into_iter().map(|(_, send)| send).collect(),
            receives: receives.into_iter().map(|(_, receive)| receive).collect(),
            hops,
        }
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}
