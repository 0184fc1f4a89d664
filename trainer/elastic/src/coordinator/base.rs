//! Which state a new generation starts from.

use crate::{Active, MemberId, Report, State};

/// The state that a generation starts from, and who holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) state: State,
    pub(super) holders: Vec<MemberId>,
    /// Whether steps that a former generation did may be lost with it.
    pub(super) rollback: bool,
}

/// Why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoBase {
    /// Nobody that reported is sure to hold the last steps.
    Unqualified,
    /// Two that did as many steps hold different states.
    Fork(Box<[(MemberId, State); 2]>),
}

/// A state qualifies when no step that anybody saw completed can be missing in it: its holder took part in the last generation, or
/// belongs to it and holds exactly what it began with. Every step needs all members, so of those the most advanced is ahead by one
/// step at most and has everything; nobody else may count, however many steps it did. Where all members had stopped after a step, whoever
/// read that step from their checkpoint holds as much.
pub(super) fn choose(
    last: Option<&Active>,
    rested: Option<u64>,
    reports: &[(&MemberId, &Report)],
    may_roll_back: bool,
) -> Result<Base, NoBase> {
    let held = reports.iter().filter_map(|(member, report)| {
        let Report { generation: _, entered_generation, followed, state } = report;
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

/// What a member says that it holds.
#[derive(Clone, Copy)]
struct Claim<'a> {
    member: &'a MemberId,
    state: State,
    entered: Option<u64>,
    followed: bool,
}

impl Claim<'_> {
    /// Where nobody has the last steps, most of them count, and of as many those of a checkpoint, which all did, before those that a
    /// member of an older generation may have done alone.
    fn trust(&self) -> (u64, bool, Option<u64>) {
        (self.state.step, self.entered.is_none(), self.entered)
    }
}

fn qualifies(last: &Active, member: &MemberId, state: &State, entered: Option<u64>) -> bool {
    let holds_base = (state.step, state.digest) == (last.base_step, last.base_digest);
    entered == Some(last.generation) || (last.seat(member).is_some() && holds_base)
}

fn most_advanced(held: &[Claim<'_>], rollback: bool) -> Result<Base, NoBase> {
    let Some(first) = held.iter().max_by_key(|claim| claim.state.step) else { return Err(NoBase::Unqualified) };
    let level = held.iter().filter(|claim| claim.state.step == first.state.step);
    if let Some(other) = level.clone().find(|claim| claim.state != first.state) {
        let fork = [first, other].map(|claim| (claim.member.clone(), claim.state));
        return Err(NoBase::Fork(Box::new(fork)));
    }
    Ok(Base { state: first.state, holders: level.map(|claim| claim.member.clone()).collect(), rollback })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::{Digest, Incarnation, Sampler, Seat};

    fn member(index: u32) -> MemberId {
        MemberId { pod: format!("w-{index}"), incarnation: Incarnation::from_u128(index.into()) }
    }

    fn state(step: u64, lineage: &[u8]) -> State {
        State { step, digest: Digest::of(lineage), sampler: Sampler { seed: 0, epoch: 0, cursor: step } }
    }

    /// Generation 5 of members 0, 1 and 2 that began at step 10.
    fn last() -> Active {
        let seat = |rank: u32| {
            let MemberId { pod, incarnation } = member(rank);
            Seat { pod, incarnation, address: SocketAddr::from(([10, 0, 0, 1], 7071)), rank }
        };
        let State { step, digest, sampler } = state(10, b"base");
        Active {
            generation: 5,
            attempt: 0,
            members: (0..3).map(seat).collect(),
            base_step: step,
            base_digest: digest,
            shards: 64,
            sampler,
            sources: vec![0, 1, 2],
            copiers: Vec::new(),
            rollback: false,
        }
    }

    fn report(entered: u64, state: State) -> Report {
        Report { generation: 6, entered_generation: Some(entered), followed: false, state: Some(state) }
    }

    fn chosen(reports: &[(u32, Report)], may_roll_back: bool) -> Result<(u64, usize, bool), NoBase> {
        let members: Vec<_> = reports.iter().map(|(index, report)| (member(*index), report)).collect();
        let reports: Vec<_> = members.iter().map(|(member, report)| (member, *report)).collect();
        choose(Some(&last()), None, &reports, may_roll_back)
            .map(|base| (base.state.step, base.holders.len(), base.rollback))
    }

    #[test]
    fn of_those_that_took_part_the_most_advanced_decides() {
        let ahead = report(5, state(12, b"twelve"));
        let behind = report(5, state(11, b"eleven"));
        assert_eq!(chosen(&[(0, behind.clone()), (1, ahead.clone()), (2, ahead)], false), Ok((12, 2, false)));
        assert_eq!(chosen(&[(0, behind)], false), Ok((11, 1, false)), "one survivor is enough");
    }

    #[test]
    fn a_member_that_holds_the_beginning_qualifies_without_having_entered() {
        assert_eq!(chosen(&[(2, report(4, state(10, b"base")))], false), Ok((10, 1, false)));
    }

    #[test]
    fn more_steps_under_an_older_generation_count_for_nothing() {
        let stranger = report(4, state(99, b"fork"));
        assert_eq!(chosen(&[(7, stranger.clone())], false), Err(NoBase::Unqualified));
        assert_eq!(chosen(&[(7, stranger), (1, report(5, state(11, b"x")))], false), Ok((11, 1, false)));
    }

    #[test]
    fn the_beginning_in_foreign_hands_does_not_qualify() {
        assert_eq!(chosen(&[(7, report(4, state(10, b"base")))], false), Err(NoBase::Unqualified));
    }

    #[test]
    fn whoever_followed_the_last_generation_may_lack_its_last_steps() {
        let follower = Report { followed: true, ..report(5, state(11, b"eleven")) };
        assert_eq!(chosen(&[(7, follower.clone())], false), Err(NoBase::Unqualified));
        assert_eq!(chosen(&[(7, follower)], true), Ok((11, 1, true)));
        let followed = Report { followed: true, ..report(5, state(8, b"given up")) };
        let read = Report { generation: 6, entered_generation: None, followed: false, state: Some(state(8, b"eight")) };
        assert_eq!(chosen(&[(7, followed), (8, read)], true), Ok((8, 1, true)), "it is no checkpoint");
    }

    #[test]
    fn an_older_state_is_taken_only_where_that_is_allowed_and_says_so() {
        let checkpoint =
            Report { generation: 6, entered_generation: None, followed: false, state: Some(state(8, b"eight")) };
        assert_eq!(chosen(&[(7, checkpoint.clone())], false), Err(NoBase::Unqualified));
        assert_eq!(chosen(&[(7, checkpoint)], true), Ok((8, 1, true)));
    }

    #[test]
    fn of_two_older_states_that_are_as_far_the_one_of_a_checkpoint_is_taken() {
        let checkpoint =
            Report { generation: 6, entered_generation: None, followed: false, state: Some(state(8, b"eight")) };
        let alone = report(4, state(8, b"alone"));
        assert_eq!(chosen(&[(7, alone), (8, checkpoint)], true), Ok((8, 1, true)));
    }

    #[test]
    fn after_all_had_stopped_whoever_read_their_last_step_holds_as_much() {
        let chosen = |reports: &[(&MemberId, &Report)]| {
            choose(Some(&last()), Some(12), reports, false).map(|base| (base.state.step, base.rollback))
        };
        let read = |step| Report {
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
    fn a_half_copied_state_is_none() {
        let copying = Report { generation: 6, entered_generation: Some(5), followed: false, state: None };
        assert_eq!(chosen(&[(0, copying)], true), Err(NoBase::Unqualified));
    }

    #[test]
    fn two_states_of_the_same_step_are_told_apart() {
        let found = chosen(&[(0, report(5, state(12, b"a"))), (1, report(5, state(12, b"b")))], false);
        assert!(matches!(found, Err(NoBase::Fork(..))), "{found:?}");
    }
}
