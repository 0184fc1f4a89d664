//! The durable record: one small object per job, changed only by compare-and-swap.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{Digest, Incarnation, MemberId, Summing};

/// The newest form of the record that this build reads, and the one that it writes.
const FORMAT_VERSION: u32 = 4;

/// The one truth about a job's memberships. Written on a membership change or a checkpoint, never per step.
///
/// Its numbers need all 64 bits: a store that keeps JSON numbers as floating point must keep [`Record::to_json`] as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    version: u32,
    /// The newest generation that a coordinator began to prepare; each number is prepared once.
    pub alloc_generation: u64,
    /// The coordinator that prepares it.
    pub alloc_by: String,
    /// The newest agreed membership.
    pub active: Option<Active>,
    /// Its members have all stopped, with the state of this step in a checkpoint: nobody holds more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rested: Option<u64>,
    /// How its members summed is in `history`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub summed: bool,
    /// The newest checkpoint that is whole.
    pub last_durable_checkpoint: Option<CheckpointMark>,
    /// `h₀ = 0`; each membership adds itself, and once it is over the plans by which it summed: `hₙ = blake3(hₙ₋₁ ‖ link)`. Equal digests
    /// mean that the same members summed in the same order. A plan is not in it where all who summed by it went before any coordinator
    /// that was left could hear of it; the workers' own lines of plans tell of it.
    pub history: Digest,
}

/// An agreed membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Active {
    /// Its number; every later one is greater.
    pub generation: u64,
    /// How often all processes of the job had been started anew: those of an earlier attempt are gone for good.
    #[serde(default)]
    pub attempt: u32,
    /// Who belongs to it, in rank order.
    pub members: Vec<Seat>,
    /// Optimiser steps that its state holds at first.
    pub base_step: u64,
    /// Digest of that state; [`Digest::NONE`] before the first step.
    pub base_digest: Digest,
    /// Virtual shards of a global step.
    pub shards: u32,
    /// Where the sample sequence stands at `base_step`.
    pub sampler: Sampler,
    /// Ranks that hold the state of `base_step`, and know how it came about.
    pub sources: Vec<u32>,
    /// Ranks that hold another state, and copy it from the sources. All others hold it, too.
    #[serde(default)]
    pub copiers: Vec<u32>,
    /// The state is a checkpoint that an earlier generation may have been ahead of: those steps are done again.
    pub rollback: bool,
}

/// A member and its rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seat {
    /// The member's pod.
    pub pod: String,
    /// The member's process.
    pub incarnation: Incarnation,
    /// Where it listens for gradients.
    pub address: SocketAddr,
    /// Its rank, from 0.
    pub rank: u32,
}

/// A place in the sequence of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampler {
    /// Seed of the permutations.
    pub seed: u64,
    /// Passes over the data set that are done.
    pub epoch: u64,
    /// Samples of the present pass that are done.
    pub cursor: u64,
}

/// A checkpoint that is whole. The one of a later step is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointMark {
    /// Optimiser steps that it holds.
    pub step: u64,
    /// Digest of its manifest.
    pub manifest_digest: Digest,
}

/// A record that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A newer build wrote it.
    #[error(
        "the membership record has format version {found}, this build reads up to {FORMAT_VERSION}: \
         run the version of lockstep that wrote it, or a later one"
    )]
    Newer {
        /// Its format version.
        found: u32,
    },
    /// It is no record.
    #[error("the membership record cannot be read: {0}; restore it, or delete it to start from the newest checkpoint")]
    Malformed(#[source] serde_json::Error),
}

impl Record {
    /// That of a job which never had a group.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            version: FORMAT_VERSION,
            alloc_generation: 0,
            alloc_by: String::new(),
            active: None,
            rested: None,
            summed: false,
            last_durable_checkpoint: None,
            history: Digest::NONE,
        }
    }

    /// This record after `coordinator` allocated the next generation.
    #[must_use]
    pub fn allocate(&self, coordinator: &str) -> Self {
        Self { alloc_generation: self.alloc_generation + 1, alloc_by: coordinator.to_owned(), ..self.clone() }
    }

    /// This record after `active` was agreed. A checkpoint of steps that it gives up is one no more.
    #[must_use]
    pub fn activate(&self, active: Active) -> Self {
        let given_up = |mark: &mut CheckpointMark| active.rollback && active.base_step < mark.step;
        let mut last_durable_checkpoint = self.last_durable_checkpoint;
        last_durable_checkpoint.take_if(given_up);
        let history = self.linked(json(&active).as_bytes());
        Self { history, active: Some(active), rested: None, summed: false, last_durable_checkpoint, ..self.clone() }
    }

    /// This record after its newest membership has summed in this way.
    #[must_use]
    pub fn summed_by(&self, summing: &Summing) -> Self {
        let Summing { after, plan } = summing;
        let history = self.linked(&[&after.to_le_bytes(), &plan.as_bytes()[..]].concat());
        Self { history, summed: true, ..self.clone() }
    }

    fn linked(&self, link: &[u8]) -> Digest {
        Digest::of(&[self.history.as_bytes().as_slice(), link].concat())
    }

    /// This record after all members had stopped with the state of `step` in a checkpoint.
    #[must_use]
    pub fn rest(&self, step: u64) -> Self {
        Self { rested: Some(step), ..self.clone() }
    }

    /// This record after a checkpoint became whole.
    #[must_use]
    pub fn mark(&self, checkpoint: CheckpointMark) -> Self {
        Self { last_durable_checkpoint: Some(checkpoint), ..self.clone() }
    }

    /// As text.
    #[must_use]
    pub fn to_json(&self) -> String {
        json(self)
    }

    /// Reads [`Record::to_json`] back.
    ///
    /// # Errors
    /// A record of a newer format version, or no record.
    pub fn from_json(text: &str) -> Result<Self, RecordError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = serde_json::from_str(text).map_err(RecordError::Malformed)?;
        if version > FORMAT_VERSION {
            return Err(RecordError::Newer { found: version });
        }
        let record: Self = serde_json::from_str(text).map_err(RecordError::Malformed)?;
        Ok(Self { version: FORMAT_VERSION, ..record })
    }
}

impl Active {
    /// The seat of this very process.
    #[must_use]
    pub fn seat(&self, member: &MemberId) -> Option<&Seat> {
        self.members.iter().find(|seat| seat.pod == member.pod && seat.incarnation == member.incarnation)
    }

    /// Who reports, saves and tells the result: the first that holds the state already, as it knows what came before.
    #[must_use]
    pub fn reporter(&self) -> Option<&Seat> {
        let rank = self.sources.first()?;
        self.members.iter().find(|seat| seat.rank == *rank)
    }
}

impl Seat {
    /// Who sits there.
    #[must_use]
    pub fn id(&self) -> MemberId {
        MemberId { pod: self.pod.clone(), incarnation: self.incarnation }
    }
}

fn json(value: &impl Serialize) -> String {
    // Nothing in a record can fail to serialise: no maps with other keys than strings, no fallible Serialize.
    serde_json::to_string(value).unwrap_or_else(|error| unreachable!("a record is always JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn active(generation: u64) -> Active {
        Active {
            generation,
            attempt: 0,
            members: vec![Seat {
                pod: "w-0".into(),
                incarnation: Incarnation::from_u128(7),
                address: SocketAddr::from(([10, 0, 0, 1], 7071)),
                rank: 0,
            }],
            base_step: 0,
            base_digest: Digest::NONE,
            shards: 64,
            sampler: Sampler { seed: u64::MAX, epoch: 0, cursor: 0 },
            sources: vec![0],
            copiers: Vec::new(),
            rollback: false,
        }
    }

    #[test]
    fn a_record_is_read_back_as_it_was_written() {
        let mark = CheckpointMark { step: 9, manifest_digest: Digest::of(b"manifest") };
        let record = Record::empty().allocate("c-0").activate(active(1)).mark(mark);
        assert_eq!(Record::from_json(&record.to_json()).expect("readable"), record);
    }

    #[test]
    fn a_newer_record_is_refused_by_its_version_even_when_its_fields_are_unknown() {
        let newer = FORMAT_VERSION + 1;
        let error = Record::from_json(&format!(r#"{{"version":{newer},"quorum":{{}}}}"#)).expect_err("newer");
        assert!(matches!(error, RecordError::Newer { found } if found == newer), "{error}");
        assert!(error.to_string().contains(&format!("format version {newer}")), "{error}");
    }

    #[test]
    fn a_torn_record_is_refused() {
        let whole = Record::empty().activate(active(1)).to_json();
        for cut in 0..whole.len() {
            assert!(matches!(Record::from_json(&whole[..cut]), Err(RecordError::Malformed(_))), "cut at {cut}");
        }
    }

    #[test]
    fn histories_differ_when_any_membership_differs() {
        let once = Record::empty().activate(active(1));
        let twice = once.activate(active(2));
        assert_ne!(once.history, twice.history);
        assert_ne!(twice.history, Record::empty().activate(active(2)).history, "the past counts");
        assert_eq!(once.history, once.allocate("c-1").history, "an allocation is no membership");
        let summed =
            |after, plan| once.summed_by(&Summing { after, plan: Digest::of(plan) }).activate(active(2)).history;
        let plans = [summed(0, b"ring"), summed(0, b"tree"), summed(5, b"ring"), twice.history];
        let distinct: std::collections::BTreeSet<_> = plans.iter().map(ToString::to_string).collect();
        assert_eq!(distinct.len(), plans.len(), "so does how its members summed, and from when on");
    }
}
