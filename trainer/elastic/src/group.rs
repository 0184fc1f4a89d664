//! A membership as one of its members sees it.

use std::net::SocketAddr;

use crate::{Active, State};

/// A membership that a member is committed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number.
    pub generation: u64,
    /// This member's rank.
    pub rank: u32,
    /// How many ranks train together.
    pub world: u32,
    /// Where each rank listens for gradients, in rank order.
    pub addresses: Vec<SocketAddr>,
    /// The pod of each rank.
    pub pods: Vec<String>,
    /// The state that all start from.
    pub base: State,
    /// Ranks that hold that state, and know how it came about, in rising order.
    pub sources: Vec<u32>,
    /// Ranks that copy it from them.
    pub copiers: Vec<u32>,
    /// Virtual shards of a global step.
    pub shards: u32,
}

impl Group {
    pub(crate) fn of(rank: u32, active: Active) -> Self {
        let Active {
            generation,
            attempt: _,
            members,
            base_step,
            base_digest,
            shards,
            sampler,
            sources,
            copiers,
            rollback: _,
        } = active;
        let world = members.iter().map(|seat| seat.rank + 1).max().unwrap_or(0);
        let (addresses, pods) = members.into_iter().map(|seat| (seat.address, seat.pod)).unzip();
        let base = State { step: base_step, digest: base_digest, sampler };
        Self { generation, rank, world, addresses, pods, base, sources, copiers, shards }
    }

    /// Whether this member reports, saves and tells the result: see [`Active::reporter`].
    #[must_use]
    pub fn reports(&self) -> bool {
        self.sources.first() == Some(&self.rank)
    }
}
