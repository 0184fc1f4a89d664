//! The members and the settings that the tests start with.

use std::{net::SocketAddr, time::Duration};

use lockstep_elastic::{Digest, HeldState, Hello, Incarnation, MemberId, Sampler, coordinator::Config};

pub(crate) const SAMPLER: Sampler = Sampler { seed: 42, epoch: 0, cursor: 0 };

pub(crate) fn pod(index: usize) -> String {
    format!("x-worker-{index}")
}

pub(crate) fn config(members: usize) -> Config {
    Config {
        job: "uid".into(),
        attempt: 0,
        name: "x-coordinator".into(),
        members: (0..members).map(pod).collect(),
        replicas: members,
        least: members,
        shards: 64,
        drain_limit: Duration::from_secs(20),
    }
}

pub(crate) fn hello(index: usize, incarnation: u128) -> Hello {
    Hello {
        job: "uid".into(),
        attempt: 0,
        member: MemberId { pod: pod(index), incarnation: Incarnation::from_u128(incarnation) },
        address: SocketAddr::from(([10, 0, 0, 1], 7000 + index as u16)),
        workload: Digest::of(b"lenet"),
        data: Digest::of(b"glyphs"),
        committed_generation: None,
        sealed: true,
    }
}

/// The initial weights from the seed.
pub(crate) const NOTHING: HeldState = HeldState { step: 0, digest: Digest::NONE, sampler: SAMPLER };

pub(crate) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}
