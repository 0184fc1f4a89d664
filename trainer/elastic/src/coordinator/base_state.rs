//! Chooses the state that a new generation starts from.

use crate::{Active, HeldState, MemberId, SealReport};

/// The state that a generation starts from, and the members that hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BaseState {
    pub(super) state: HeldState,
    pub(super) holders: Vec<MemberId>,
    /// True if steps of a former generation may be lost with this choice.
    pub(super) rollback: bool,
}

/// The reason why no state can be chosen yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoBase {
    /// No reporting process is certain to hold the last steps.
    Unqualified,
    /// Two processes hold different states of the same step.
    Fork(Box<[(MemberId, HeldState); 2]>),
}

/// Chooses the most advanced state that qualifies.
///
/// A state qualifies if it cannot lack a step that any process saw completed. Its holder took part
/// in the last generation, or is a member of it and holds exactly its starting state. Every step
/// needs all members, so among these holders the most advanced is at most one step ahead and lacks
/// nothing. The number of steps of any other process means nothing. If all members stopped after a
/// step, a process that read this step from their checkpoint qualifies as well.
pub(super) fn choose(
    last: Option<&Active>,
    rested: Option<u64>,
    reports: &[(&MemberId, &SealReport)],
    may_roll_back: bool,
) -> Result<BaseState, NoBase> {
    let held = reports.iter().filter_map(|(member, report)| {
        let SealReport { generation: _, entered_generation, followed, state } = report;
        Some(Claim { member, state: (*state)?, entered: *entered_generation, followed: *followed })
    });
    let (qualified, others): (Vec<_>, Vec<_>) = held.partition(|claim| {
        let read = claim.entered.is_none() && rested == Some(claim.state.step);
        let took_part = claim.entered.filter(|_| !claim.followed);
        last.is_none_or(|last| read || qualifies(last, claim.member, &claim.state, took_part))
    });
    if !qualified.is_empty() {
        return most_advanced(&qualified, false);
    }
    if !may_roll_back {
        return Err(NoBase::Unqualified);
    }
    let Some(best) = others.iter().max_by_key(|claim| claim.trust()).copied() else { return Err(NoBase::Unqualified) };
    let equals: Vec<_> =
        others.into_iter().filter(|claim| claim.trust() == best.trust() || claim.state == best.state).collect();
    most_advanced(&equals, true)
}

/// The state that a member reported.
#[derive(Clone, Copy)]
struct Claim<'a> {
    member: &'a MemberId,
    state: HeldState,
    entered: Option<u64>,
    followed: bool,
}

impl Claim<'_> {
    /// Orders states if no process holds the last steps. More steps come first. Among equals a
    /// checkpoint comes first, because all members did its steps, while a member of an older
    /// generation may have been alone.
    fn trust(&self) -> (u64, bool, Option<u64>) {
        (self.state.step, self.entered.is_none(), self.entered)
    }
}

fn qualifies(last: &Active, member: &MemberId, state: &HeldState, entered: Option<u64>) -> bool {
    let holds_base = (state.step, state.digest) == (last.base_step, last.base_digest);
    entered == Some(last.generation) || (last.member(member).is_some() && holds_base)
}

fn most_advanced(held: &[Claim<'_>], rollback: bool) -> Result<BaseState, NoBase> {
    let Some(first) = held.iter().max_by_key(|claim| claim.state.step) else { return Err(NoBase::Unqualified) };
    let level = held.iter().filter(|claim| claim.state.step == first.state.step);
    if let Some(other) = level.clone().find(|claim| claim.state != first.state) {
        let fork = [first, other].map(|claim| (claim.member.clone(), claim.state));
        return Err(NoBase::Fork(Box::new(fork)));
    }
    Ok(BaseState { state: first.state, holders: level.map(|claim| claim.member.clone()).collect(), rollback })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::{Digest, Incarnation, RankedMember, Sampler};

    fn member(index: u32) -> MemberId {
        MemberId { pod: format!("w-{index}"), incarnation: Incarnation::from_u128(index.into()) }
    }

    fn state(step: u64, lineage: &[u8]) -> HeldState {
        HeldState { step, digest: Digest::of(lineage), sampler: Sampler { seed: 0, epoch: 0, cursor: step } }
    }

    /// Returns generation 5 with the members 0, 1 and 2, which started at step 10.
    fn last() -> Active {
        let ranked = |rank: u32| {
            let MemberId { pod, incarnation } = member(rank);
            RankedMember { pod, incarnation, address: SocketAddr::from(([10, 0, 0, 1], 7071)), rank }
        };
        let HeldState { step, digest, sampler } = state(10, b"base");
        Active {
            generation: 5,
            attempt: 0,
            members: (0..3).map(ranked).collect(),
            base_step: step,
            base_digest: digest,
            shards: 64,
            sampler,
            sources: vec![0, 1, 2],
            copiers: Vec::new(),
            rollback: false,
        }
    }

    fn report(entered: u64, state: HeldState) -> SealReport {
        SealReport { generation: 6, entered_generation: Some(entered), followed: false, state: Some(state) }
    }

    fn chosen(reports: &[(u32, SealReport)], may_roll_back: bool) -> Result<(u64, usize, bool), NoBase> {
        let members: Vec<_> = reports.iter().map(|(index, report)| (member(*index), report)).collect();
        let reports: Vec<_> = members.iter().map(|(member, report)| (member, *report)).collect();
        choose(Some(&last()), None, &reports, may_roll_back)
            .map(|base| (base.state.step, base.holders.len(), base.rollback))
    }

    #[test]
    fn the_most_advanced_participant_decides() {
        let ahead = report(5, state(12, b"twelve"));
        let behind = report(5, state(11, b"eleven"));
        assert_eq!(chosen(&[(0, behind.clone()), (1, ahead.clone()), (2, ahead)], false), Ok((12, 2, false)));
        assert_eq!(chosen(&[(0, behind)], false), Ok((11, 1, false)), "one survivor is enough");
    }

    #[test]
    fn a_member_with_the_starting_state_qualifies_before_it_enters() {
        assert_eq!(chosen(&[(2, report(4, state(10, b"base")))], false), Ok((10, 1, false)));
    }

    #[test]
    fn more_steps_of_an_older_generation_do_not_qualify() {
        let stranger = report(4, state(99, b"fork"));
        assert_eq!(chosen(&[(7, stranger.clone())], false), Err(NoBase::Unqualified));
        assert_eq!(chosen(&[(7, stranger), (1, report(5, state(11, b"x")))], false), Ok((11, 1, false)));
    }

    #[test]
    fn the_starting_state_of_a_non_member_does_not_qualify() {
        assert_eq!(chosen(&[(7, report(4, state(10, b"base")))], false), Err(NoBase::Unqualified));
    }

    #[test]
    fn a_follower_of_the_last_generation_does_not_qualify() {
        let follower = SealReport { followed: true, ..report(5, state(11, b"eleven")) };
        assert_eq!(chosen(&[(7, follower.clone())], false), Err(NoBase::Unqualified));
        assert_eq!(chosen(&[(7, follower)], true), Ok((11, 1, true)));
        let followed = SealReport { followed: true, ..report(5, state(8, b"given up")) };
        let read =
            SealReport { generation: 6, entered_generation: None, followed: false, state: Some(state(8, b"eight")) };
        assert_eq!(
            chosen(&[(7, followed), (8, read)], true),
            Ok((8, 1, true)),
            "the followed state is not a checkpoint"
        );
    }

    #[test]
    fn an_older_state_needs_permission_and_counts_as_a_rollback() {
        let checkpoint =
            SealReport { generation: 6, entered_generation: None, followed: false, state: Some(state(8, b"eight")) };
        assert_eq!(chosen(&[(7, checkpoint.clone())], false), Err(NoBase::Unqualified));
        assert_eq!(chosen(&[(7, checkpoint)], true), Ok((8, 1, true)));
    }

    #[test]
    fn among_older_states_of_one_step_the_checkpoint_is_chosen() {
        let checkpoint =
            SealReport { generation: 6, entered_generation: None, followed: false, state: Some(state(8, b"eight")) };
        let alone = report(4, state(8, b"alone"));
        assert_eq!(chosen(&[(7, alone), (8, checkpoint)], true), Ok((8, 1, true)));
    }

    #[test]
    fn a_reader_of_the_step_after_which_all_stopped_qualifies() {
        let chosen = |reports: &[(&MemberId, &SealReport)]| {
            choose(Some(&last()), Some(12), reports, false).map(|base| (base.state.step, base.rollback))
        };
        let read = |step| SealReport {
            generation: 6,
            entered_generation: None,
            followed: false,
            state: Some(state(step, b"read")),
        };
        let ahead = report(4, state(99, b"fork"));
        assert_eq!(chosen(&[(&member(7), &ahead), (&member(8), &read(12))]), Ok((12, false)));
        assert_eq!(chosen(&[(&member(7), &ahead)]), Err(NoBase::Unqualified));
        assert_eq!(chosen(&[(&member(8), &read(11))]), Err(NoBase::Unqualified), "an older checkpoint");
    }

    #[test]
    fn a_half_copied_state_does_not_count() {
        let copying = SealReport { generation: 6, entered_generation: Some(5), followed: false, state: None };
        assert_eq!(chosen(&[(0, copying)], true), Err(NoBase::Unqualified));
    }

    #[test]
    fn two_different_states_of_one_step_are_a_fork() {
        let found = chosen(&[(0, report(5, state(12, b"a"))), (1, report(5, state(12, b"b")))], false);
        assert!(matches!(found, Err(NoBase::Fork(..))), "{found:?}");
    }
}
