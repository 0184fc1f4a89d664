//! The membership of one generation, from the view of one member.

use std::net::SocketAddr;

use crate::{Active, HeldState};

/// The rank, the peers and the starting state that a committed member works with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The number of the generation.
    pub generation: u64,
    /// This member's rank.
    pub rank: u32,
    /// The world size.
    pub world: u32,
    /// The address on which each rank listens for gradients, in rank order.
    pub addresses: Vec<SocketAddr>,
    /// The pod of each rank.
    pub pods: Vec<String>,
    /// The state that all members start from.
    pub base: HeldState,
    /// The ranks that hold this state and know how it came about, in rising order.
    pub sources: Vec<u32>,
    /// The ranks that copy the state from the sources.
    pub copiers: Vec<u32>,
    /// The number of virtual shards of a global step.
    pub shards: u32,
}

impl Assignment {
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
        let world = members.iter().map(|ranked| ranked.rank + 1).max().unwrap_or(0);
        let (addresses, pods) = members.into_iter().map(|ranked| (ranked.address, ranked.pod)).unzip();
        let base = HeldState { step: base_step, digest: base_digest, sampler };
        Self { generation, rank, world, addresses, pods, base, sources, copiers, shards }
    }

    /// Returns true for the member that reports, saves and announces the result. See
    /// [`Active::reporter`].
    #[must_use]
    pub fn reports(&self) -> bool {
        self.sources.first() == Some(&self.rank)
    }
}
