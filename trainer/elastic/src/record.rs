//! The durable record: one small object per job, changed only by compare-and-swap.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{Digest, Incarnation, MemberId};

/// The newest record format that this build reads. It writes the same one.
const FORMAT_VERSION: u32 = 4;

/// The one truth about a job's memberships. A change of the group or a checkpoint writes it, a step
/// never does.
///
/// Its numbers need all 64 bits. A store that keeps JSON numbers as floating point must keep
/// [`Record::to_json`] as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    version: u32,
    /// The newest generation that a coordinator began to prepare. Each number is prepared once.
    pub alloc_generation: u64,
    /// The coordinator that prepares this generation.
    pub alloc_by: String,
    /// The newest agreed membership.
    pub active: Option<Active>,
    /// The step after which all members stopped with their state in a checkpoint. No process holds
    /// a later one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rested: Option<u64>,
    /// True once `history` contains the plans of the newest membership.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub summed: bool,
    /// The newest complete checkpoint.
    pub last_durable_checkpoint: Option<CheckpointMark>,
    /// The chain of all memberships and their plans, from `h₀ = 0` with `hₙ = blake3(hₙ₋₁ ‖ link)`.
    /// A membership is added when it is recorded, its plans when it is over. Equal digests mean
    /// that the same members summed in the same order. A plan is missing if all members that used
    /// it were gone before a coordinator heard of it. The workers' own `plans.jsonl` still has it.
    pub history: Digest,
}

/// The agreed membership of one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Active {
    /// The number of the generation. Every later one is greater.
    pub generation: u64,
    /// The number of the attempt. All processes of an earlier attempt are gone for good.
    #[serde(default)]
    pub attempt: u32,
    /// The members in rank order.
    pub members: Vec<RankedMember>,
    /// The number of optimiser steps in the state that the generation starts from.
    pub base_step: u64,
    /// The digest of this state. It is [`Digest::NONE`] before the first step.
    pub base_digest: Digest,
    /// The number of virtual shards of a global step.
    pub shards: u32,
    /// The position in the sample sequence at `base_step`.
    pub sampler: Sampler,
    /// The ranks that hold the state of `base_step` and know how it came about.
    pub sources: Vec<u32>,
    /// The ranks that hold another state and copy this one from the sources. All other ranks hold
    /// it already.
    #[serde(default)]
    pub copiers: Vec<u32>,
    /// True if the state is a checkpoint and an earlier generation may have been ahead of it. Those
    /// steps are repeated.
    pub rollback: bool,
}

/// A member with its rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankedMember {
    /// The member's pod.
    pub pod: String,
    /// The member's process.
    pub incarnation: Incarnation,
    /// The address on which it listens for gradients.
    pub address: SocketAddr,
    /// Its rank, from 0.
    pub rank: u32,
}

/// A position in the sample sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampler {
    /// The seed of the permutations.
    pub seed: u64,
    /// The number of completed passes over the data set.
    pub epoch: u64,
    /// The number of samples done in the current pass.
    pub cursor: u64,
}

/// An agreement of a group's members to sum by a plan, from a certain step on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanAgreement {
    /// The number of steps that were done before.
    pub after: u64,
    /// The digest of the plan.
    pub plan: Digest,
}

/// A complete checkpoint. The checkpoint of a later step compares as greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointMark {
    /// The number of optimiser steps that it holds.
    pub step: u64,
    /// The digest of its manifest.
    pub manifest_digest: Digest,
}

/// A record that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A newer build wrote the record.
    #[error(
        "the membership record has format version {found}, this build reads up to {FORMAT_VERSION}: \
         run the version of lockstep that wrote it, or a later one"
    )]
    Newer {
        /// The format version of the record.
        found: u32,
    },
    /// The text is not a record.
    #[error("the membership record cannot be read: {0}; restore it, or delete it to start from the newest checkpoint")]
    Malformed(#[source] serde_json::Error),
}

impl Record {
    /// Returns the record of a job that never had a group.
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

    /// Returns this record after `coordinator` allocated the next generation.
    #[must_use]
    pub fn allocate(&self, coordinator: &str) -> Self {
        Self { alloc_generation: self.alloc_generation + 1, alloc_by: coordinator.to_owned(), ..self.clone() }
    }

    /// Returns this record after `active` was agreed. It drops a checkpoint of steps that `active`
    /// gives up.
    #[must_use]
    pub fn activate(&self, active: Active) -> Self {
        let given_up = |mark: &mut CheckpointMark| active.rollback && active.base_step < mark.step;
        let mut last_durable_checkpoint = self.last_durable_checkpoint;
        last_durable_checkpoint.take_if(given_up);
        let history = self.with_link(json(&active).as_bytes());
        Self { history, active: Some(active), rested: None, summed: false, last_durable_checkpoint, ..self.clone() }
    }

    /// Returns this record after its newest membership agreed on a plan.
    #[must_use]
    pub fn summed_by(&self, summing: &PlanAgreement) -> Self {
        let PlanAgreement { after, plan } = summing;
        let history = self.with_link(&[&after.to_le_bytes(), &plan.as_bytes()[..]].concat());
        Self { history, summed: true, ..self.clone() }
    }

    fn with_link(&self, link: &[u8]) -> Digest {
        Digest::of(&[self.history.as_bytes().as_slice(), link].concat())
    }

    /// Returns this record after all members stopped with the state of `step` in a checkpoint.
    #[must_use]
    pub fn rest(&self, step: u64) -> Self {
        Self { rested: Some(step), ..self.clone() }
    }

    /// Returns this record after a checkpoint became complete.
    #[must_use]
    pub fn mark(&self, checkpoint: CheckpointMark) -> Self {
        Self { last_durable_checkpoint: Some(checkpoint), ..self.clone() }
    }

    /// Returns the record as JSON text.
    #[must_use]
    pub fn to_json(&self) -> String {
        json(self)
    }

    /// Reads the text of [`Record::to_json`].
    ///
    /// # Errors
    /// Fails if the record has a newer format version, or if the text is not a record.
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
    /// Returns the entry of this very process.
    #[must_use]
    pub fn member(&self, member: &MemberId) -> Option<&RankedMember> {
        self.members.iter().find(|ranked| ranked.pod == member.pod && ranked.incarnation == member.incarnation)
    }

    /// Returns the member that reports, saves and announces the result. It is the first source,
    /// because a source knows what happened before.
    #[must_use]
    pub fn reporter(&self) -> Option<&RankedMember> {
        let rank = self.sources.first()?;
        self.members.iter().find(|ranked| ranked.rank == *rank)
    }
}

impl RankedMember {
    /// Returns the identity of this member.
    #[must_use]
    pub fn id(&self) -> MemberId {
        MemberId { pod: self.pod.clone(), incarnation: self.incarnation }
    }
}

fn json(value: &impl Serialize) -> String {
    // A record always serialises: its map keys are strings and no `Serialize` in it can fail.
    serde_json::to_string(value).unwrap_or_else(|error| unreachable!("a record is always JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn active(generation: u64) -> Active {
        Active {
            generation,
            attempt: 0,
            members: vec![RankedMember {
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
        assert_ne!(twice.history, Record::empty().activate(active(2)).history, "earlier memberships count");
        assert_eq!(once.history, once.allocate("c-1").history, "an allocation does not change the history");
        let summed =
            |after, plan| once.summed_by(&PlanAgreement { after, plan: Digest::of(plan) }).activate(active(2)).history;
        let plans = [summed(0, b"ring"), summed(0, b"tree"), summed(5, b"ring"), twice.history];
        let distinct: std::collections::BTreeSet<_> = plans.iter().map(ToString::to_string).collect();
        assert_eq!(distinct.len(), plans.len(), "the plan and its first step count as well");
    }
}
