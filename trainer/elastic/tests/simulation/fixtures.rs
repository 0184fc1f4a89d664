//! Fixtures of the simulation.

use std::net::SocketAddr;

use lockstep_elastic::{Digest, HeldState, Hello, Incarnation, MemberId, Sampler};

pub(crate) const SAMPLER: Sampler = Sampler { seed: 42, epoch: 0, cursor: 0 };
/// The initial weights from the seed.
pub(crate) const NOTHING: HeldState = HeldState { step: 0, digest: Digest::NONE, sampler: SAMPLER };

pub(crate) fn pod(index: usize) -> String {
    format!("x-worker-{index}")
}

pub(crate) fn index_of(pod: &str) -> usize {
    pod.rsplit('-').next().and_then(|number| number.parse().ok()).expect("the name of a pod")
}

pub(crate) fn member(index: usize, incarnation: u128) -> MemberId {
    MemberId { pod: pod(index), incarnation: Incarnation::from_u128(incarnation) }
}

pub(crate) fn hello(index: usize, incarnation: u128, attempt: u32) -> Hello {
    Hello {
        job: "uid".into(),
        attempt,
        member: member(index, incarnation),
        address: SocketAddr::from(([10, 0, 0, 1], 7000 + index as u16)),
        workload: Digest::of(b"lenet"),
        data: Digest::of(b"glyphs"),
        committed_generation: None,
        sealed: true,
    }
}
