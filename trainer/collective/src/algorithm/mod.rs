//! Collective algorithms as pure schedules: who sends which elements to whom, in which hop.
//!
//! An algorithm is a list of transfers, each in a hop of a count that all ranks share. What is sent in a hop is what was there before
//! the hop's arrivals. A [`Schedule`] is one rank's part of the list: what it sends and what it receives, both in the one order that
//! all ranks agree on, so that the earliest transfer that is not done yet can always be done: no schedule deadlocks over links that
//! hold one frame.
//!
//! An all-reduce is one file: its schedule, its cost and its name. Besides, [`Algorithm`] lists it, and the manifest names it.

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

/// Elements of the longest frame that is sent: 1 MiB of f32. Each frame costs some 10 µs over loopback besides its bytes.
pub const MAX_FRAME: usize = 256 * 1024;

/// One rank's part in a collective operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// What it sends, in order.
    pub sends: Vec<Send>,
    /// What it receives, in order.
    pub receives: Vec<Receive>,
    /// Hops of the operation, those included in which this rank does nothing.
    pub hops: usize,
}

/// A frame to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    /// The hop that it belongs to, from 0.
    pub hop: usize,
    /// The rank that it goes to.
    pub to: usize,
    /// The elements that it carries.
    pub elements: Range<usize>,
    /// Receives that must have been taken in before: they change these elements.
    pub after: usize,
}

/// A frame to receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The hop that it belongs to, from 0.
    pub hop: usize,
    /// The rank that it comes from.
    pub from: usize,
    /// The elements that it carries.
    pub elements: Range<usize>,
    /// What becomes of them.
    pub arrival: Arrival,
    /// Sends that must be out before it is taken in: they carry what these elements were.
    pub after: usize,
}

/// What becomes of elements that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// They are reduced into the local ones: added, or what the operation says.
    Reduce,
    /// They replace the local ones.
    Copy,
}

/// How an all-reduce is done. Costs: α seconds a message, β a byte, γ a byte to reduce; S bytes, n ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// 2(n−1)α + 2(n−1)/n·Sβ + (n−1)/n·Sγ. (Patarasu and Yuan, 2009)
    Ring,
    /// ⌊log₂n⌋(α + Sβ + Sγ); 2α + 2Sβ + Sγ more where n is no power of two. (Thakur, Rabenseifner and Gropp, 2005)
    RecursiveDoubling,
    /// 2·⌊log₂n⌋α + 2(m−1)/m·Sβ + (m−1)/m·Sγ, where m is the greatest power of two up to n; 2α + 2Sβ + Sγ more where that is not n. (Rabenseifner, 2004)
    HalvingDoubling,
    /// ≈ 2(⌊log₂n⌋ + k)(α + S/k·(β + γ)) with k frames: two trees, each with half of the elements, in which every rank has children in
    /// one only. (Sanders, Speck and Träff, 2009)
    DoubleTree,
    /// 2(n−1)α + 2(n−1)/n·Sβ + (n−1)/n·Sγ, in two hops: every rank reduces one part of all others' elements by itself. Where ranks share
    /// some of the hosts it is a hierarchy, and what it costs, with these two hops between hosts.
    Direct,
    /// Within hosts, between them, and within them again: with H hosts of k ranks each 2(k+H−2)α + 2(n−1)/n·Sβ + (n−1)/n·Sγ, of which
    /// only 2(H−1)/H·Sβ go over a host's line to the others. (Goyal et al., arXiv 1706.02677, §4)
    Hierarchical,
    /// A ring in each row, then in each column, then in each row again. (Mikami et al., arXiv 1811.05233)
    /// 2(X+Y−2)α + 2(n−1)/n·Sβ + (n−1)/n·Sγ for X columns and Y rows.
    Torus {
        /// Ranks of a row; a divisor of the number of ranks.
        columns: usize,
    },
}

impl Algorithm {
    /// All but the torus, which needs its columns.
    pub const PLAIN: [Self; 6] = [
        Self::Ring,
        Self::RecursiveDoubling,
        Self::HalvingDoubling,
        Self::DoubleTree,
        Self::Direct,
        Self::Hierarchical,
    ];

    /// The torus of `world` ranks that is nearest to a square; one column where their number is prime.
    #[must_use]
    pub fn torus(world: usize) -> Self {
        let columns = (1..=world.isqrt()).rev().find(|columns| world.is_multiple_of(*columns));
        Self::Torus { columns: columns.unwrap_or(1) }
    }

    /// Those that may be the cheapest among these hosts; of equally cheap ones the first is as good as any.
    pub(crate) fn worth_trying(hosts: &Hosts) -> impl Iterator<Item = Self> {
        let all = Self::PLAIN.into_iter().chain([Self::torus(hosts.world())]);
        all.filter(|algorithm| algorithm.as_scheme(|scheme| scheme.is_worth_trying(hosts)))
    }

    /// Seconds that it takes to reduce `bytes` over the ranks of `hosts`.
    pub(crate) fn seconds(self, costs: &Costs, hosts: &Hosts, bytes: usize) -> f64 {
        self.as_scheme(|scheme| {
            let Costs { message, mut wire_byte, reduced_byte } = *costs;
            if hosts.are_mixed() {
                wire_byte *= scheme.crossings(hosts) as f64 / hosts.crossings() as f64;
            }
            scheme.seconds(&Terms { message, wire_byte, reduced_byte, hosts, bytes: bytes as f64 })
        })
    }

    /// Whether so many ranks can do it.
    pub(crate) fn fits(self, world: usize) -> bool {
        self.as_scheme(|scheme| scheme.fits(world))
    }

    /// Whether a narrow [`Wire`](crate::Wire) is for what it sends between hosts only: what it sends within them is no narrower than memory.
    pub(crate) fn rounds_between_hosts_only(self, hosts: &Hosts) -> bool {
        self.as_scheme(|scheme| scheme.rounds_between_hosts_only(hosts))
    }

    /// As errors call it.
    pub(crate) fn name(self) -> &'static str {
        self.as_scheme(|scheme| scheme.name())
    }

    /// Its code and what it needs besides, for [`Self::from_code`].
    pub(crate) fn code(self) -> (u8, usize) {
        let columns = if let Self::Torus { columns } = self { columns } else { 0 };
        (self.as_scheme(|scheme| scheme.code()), columns)
    }

    /// The algorithm of this code; `None` where there is none, or none that any ranks can do.
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
    /// In plans, which outlive a version, and in frames: no other has it, and none had it before. Below 2⁵.
    fn code(&self) -> u8;

    /// As errors call it.
    fn name(&self) -> &'static str;

    /// All transfers that reduce `length` elements over the ranks of `hosts`.
    fn describe(&self, builder: &mut Builder, hosts: &Hosts, length: usize);

    /// Seconds that it takes, by the formula of [`Algorithm`].
    fn seconds(&self, terms: &Terms<'_>) -> f64;

    /// How often all elements cross the line of a mixed host: as often as the fullest has ranks, where it takes no heed of hosts.
    fn crossings(&self, hosts: &Hosts) -> usize {
        hosts.fullest()
    }

    /// Whether so many ranks can do it.
    fn fits(&self, _world: usize) -> bool {
        true
    }

    /// Whether all ranks end with the same bits where only what is sent between hosts is rounded.
    fn rounds_between_hosts_only(&self, _hosts: &Hosts) -> bool {
        false
    }

    /// Whether it may be cheaper than all others among these hosts.
    fn is_worth_trying(&self, _hosts: &Hosts) -> bool {
        true
    }
}

/// What the formulas of costs are about.
struct Terms<'a> {
    /// α, in seconds.
    message: f64,
    /// β, in seconds; where hosts are mixed, of the line that all ranks of one share.
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

    /// S(β + γ): all bytes are sent once, and reduced.
    fn whole(&self) -> f64 {
        self.bytes * (self.wire_byte + self.reduced_byte)
    }

    /// S(2β + γ): all bytes are sent, reduced and sent back.
    fn there_and_back(&self) -> f64 {
        self.bytes * (2.0 * self.wire_byte + self.reduced_byte)
    }

    /// So many messages, and (n−1)/n of all bytes there and back.
    fn in_parts(&self, messages: f64) -> f64 {
        messages * self.message + (self.ranks() - 1.0) / self.ranks() * self.there_and_back()
    }
}

/// The sum, or another reduction, of `length` elements over all ranks, on all ranks; as all schedules in frames of up to `frame` elements,
/// [`MAX_FRAME`] where they are sent. In which order an element's terms are added does not depend on the frames.
///
/// # Panics
/// When `rank` is not among those of `hosts`, or a torus' columns do not divide their number; as all of them when `frame` is 0.
#[must_use]
pub fn all_reduce(algorithm: Algorithm, rank: usize, hosts: &Hosts, length: usize, frame: usize) -> Schedule {
    let world = hosts.world();
    assert!(algorithm.fits(world), "{world} ranks cannot do {algorithm:?}");
    built(rank, world, frame, |builder| algorithm.as_scheme(|scheme| scheme.describe(builder, hosts, length)))
}

/// The reduction of [`part`] `rank` of `length` elements over all ranks, on that rank; the other elements are used up.
///
/// # Panics
/// When `rank` is not below `world`.
#[must_use]
pub fn reduce_scatter(rank: usize, world: usize, length: usize, frame: usize) -> Schedule {
    built(rank, world, frame, |builder| {
        Ring::new(all(world), 0..length, frame).reduce_scatter(builder, 0);
    })
}

/// All of `length` elements on all ranks, where each rank r begins with [`part`] r.
///
/// # Panics
/// When `rank` is not below `world`.
#[must_use]
pub fn all_gather(rank: usize, world: usize, length: usize, frame: usize) -> Schedule {
    built(rank, world, frame, |builder| {
        Ring::new(all(world), 0..length, frame).all_gather(builder, 0);
    })
}

/// The elements of `root` on all ranks.
///
/// # Panics
/// When `rank` or `root` is not below `world`.
#[must_use]
pub fn broadcast(rank: usize, world: usize, root: usize, length: usize, frame: usize) -> Schedule {
    built(rank, world, frame, |builder| rooted::broadcast(builder, root, length))
}

/// The reduction over all ranks on `root`; the elements of the others are used up.
///
/// # Panics
/// When `rank` or `root` is not below `world`.
#[must_use]
pub fn reduce(rank: usize, world: usize, root: usize, length: usize, frame: usize) -> Schedule {
    built(rank, world, frame, |builder| rooted::reduce(builder, root, length))
}

/// All of `length` elements on `root`, where each rank r begins with [`part`] r.
///
/// # Panics
/// When `rank` or `root` is not below `world`.
#[must_use]
pub fn gather(rank: usize, world: usize, root: usize, length: usize, frame: usize) -> Schedule {
    built(rank, world, frame, |builder| rooted::gather(builder, root, length))
}

/// [`part`] r of the elements of `root` on each rank r.
///
/// # Panics
/// When `rank` or `root` is not below `world`.
#[must_use]
pub fn scatter(rank: usize, world: usize, root: usize, length: usize, frame: usize) -> Schedule {
    built(rank, world, frame, |builder| rooted::scatter(builder, root, length))
}

/// The elements of one rank on another.
///
/// # Panics
/// When `rank`, `from` or `to` is not below `world`, or `from` is `to`.
#[must_use]
pub fn send(rank: usize, world: usize, from: usize, to: usize, length: usize, frame: usize) -> Schedule {
    assert!(from.max(to) < world && from != to, "rank {from} cannot send to rank {to} in a group of {world}");
    built(rank, world, frame, |builder| builder.transfer(0, from, to, &(0..length), Arrival::Copy))
}

/// Over an arena of `2 · length` elements, its first half given, its second half taken: [`block`] r of the second half of rank s is
/// block s of the first half of rank r. A rank's own block is copied by the caller.
///
/// # Panics
/// When `rank` is not below `world`.
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

/// What of `length` elements rank `rank` of `world` exchanges with `peer` when all exchange with all: one block for each rank, in their
/// order. Block s of rank r has as many elements as [`part`] (r + s) mod n: as many as block r of rank s, and each rank's blocks have
/// `length` altogether, whatever the length.
#[must_use]
pub fn block(length: usize, world: usize, rank: usize, peer: usize) -> Range<usize> {
    // Of parts that go on beyond the last with the first again.
    let start_of = |part: usize| length * part / world;
    start_of(rank + peer) - start_of(rank)..start_of(rank + peer + 1) - start_of(rank)
}

/// Part `index` of `count` of a range: as even as whole elements allow.
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

/// The order of all transfers: by hop, then sender, receiver and place.
type Key = (usize, usize, usize, usize);

impl Builder {
    fn new(rank: usize, world: usize, frame: usize) -> Self {
        assert!(rank < world, "rank {rank} is not in a group of {world}");
        Self { rank, world, frame, hops: 0, sends: Vec::new(), receives: Vec::new() }
    }

    /// `elements` go to the same place of `to`.
    fn transfer(&mut self, hop: usize, from: usize, to: usize, elements: &Range<usize>, arrival: Arrival) {
        self.carry(hop, from, to, elements, elements.start, arrival);
    }

    /// `elements` go to the place of `to` that begins with element `place`, in frames.
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

    /// Puts all in order and finds what must wait for what.
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
