//! How a rank waits for another: it looks again, yields its core, or sleeps.
//!
//! A wait is short if each rank has a core to itself, and then looking again is fastest. If two
//! ranks share a core, the one that looks keeps the other from the awaited work.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use crate::own_core::OwnCore;

/// How a rank waits for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Sleeps at once. It suits ranks that outnumber the cores.
    Block,
    /// Looks again for some microseconds, then yields its core between two looks, then sleeps.
    /// Latency is lower if each rank has a core to itself. The rank learns how long looking pays.
    SpinThenBlock,
    /// Means [`Waiting::SpinThenBlock`] if this process may use a core for each thread of the
    /// group's ranks on this host. Otherwise it means [`Waiting::Block`], as it does in a star and
    /// while the group forms. A rank on an unknown host counts as alone on it.
    Adaptive,
}

impl Waiting {
    /// Resolves [`Waiting::Adaptive`] for this many ranks on a host, with `threads` threads each,
    /// and this many cores.
    pub(crate) fn resolved(self, ranks: usize, threads: NonZeroUsize, cores: usize) -> Self {
        match self {
            Self::Adaptive if ranks.saturating_mul(threads.get()) <= cores => Self::SpinThenBlock,
            Self::Adaptive => Self::Block,
            Self::Block | Self::SpinThenBlock => self,
        }
    }
}

/// The longest time to look before a wait first yields its core. Two ranks that are both at work
/// meet within it.
const LONGEST_SPIN: Duration = Duration::from_micros(5);
/// The shortest such time above zero.
const SHORTEST_SPIN: Duration = Duration::from_nanos(300);
/// The longest time of a wait before it sleeps. Ranks that compute the same meet sooner, and a
/// wake-up costs some 50 µs in a virtual machine.
const LONGEST_STAY: Duration = Duration::from_micros(400);
/// The shortest such time that a rank learns.
const SHORTEST_STAY: Duration = Duration::from_micros(25);
/// Another thread has used a core that was yielded for this long.
const USED: Duration = Duration::from_nanos(2500);
/// A thread that computes has used a core that was yielded for this long.
const HELD: Duration = Duration::from_micros(200);
/// The number of waits for which a rank keeps its own core after a thread that computes has held
/// it. Most of them are short.
const KEEPS: u32 = 1000;
/// The least number of waits between two moves to the own core.
const STAYS: u32 = 32;

/// The next thing that a rank does if it has found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitAction {
    Look,
    /// Yield the core to other threads.
    Yield,
    Sleep,
    /// Move to the rank's own core.
    Move,
}

/// The core on which a rank is after it yielded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CurrentCore {
    /// Any core: the rank has none of its own.
    Any,
    /// The rank's own core.
    Own,
    /// Another core than its own.
    Other,
}

/// The waits of a rank, and the lessons of earlier ones.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    waiting: Waiting,
    own: Option<OwnCore>,
    learnt: Cell<Learnt>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Learnt {
    /// The time to look before a wait yields its core. It is zero if another rank shares the core.
    spin: Duration,
    /// The time before a wait sleeps.
    stay: Duration,
    /// Waits that do not yield the core.
    keeps: u32,
    /// Waits before the rank may move again.
    stays: u32,
}

/// The state of one wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wait {
    /// True if another thread has used the core meanwhile.
    shared: bool,
    slept: bool,
    /// The time waited before the rank moved to its own core.
    moved: Option<Duration>,
}

impl Waiter {
    pub(crate) fn new(waiting: Waiting, own: Option<OwnCore>) -> Self {
        let learnt = Learnt { spin: LONGEST_SPIN, stay: LONGEST_STAY, keeps: 0, stays: 0 };
        Self { waiting, own, learnt: Cell::new(learnt) }
    }

    pub(crate) fn waiting(&self) -> Waiting {
        self.waiting
    }

    /// Changes how later waits go. The lessons stay.
    pub(crate) fn set_waiting(&mut self, waiting: Waiting) {
        self.waiting = waiting;
    }

    /// Returns what to do after `waited` without a find.
    pub(crate) fn next(&self, wait: &mut Wait, waited: Duration) -> WaitAction {
        let Learnt { spin, stay, keeps, .. } = self.learnt.get();
        match self.waiting {
            // The rank it waits for may want this very core.
            Waiting::SpinThenBlock if waited >= stay && wait.moved.is_none() && self.is_elsewhere() => {
                wait.moved = Some(waited);
                return WaitAction::Move;
            }
            Waiting::SpinThenBlock if waited >= stay.max(wait.moved.map_or(stay, |moved| moved + SHORTEST_STAY)) => {}
            Waiting::SpinThenBlock if waited < spin || keeps > 0 => return WaitAction::Look,
            Waiting::SpinThenBlock => return WaitAction::Yield,
            Waiting::Block | Waiting::Adaptive => {}
        }
        wait.slept = true;
        WaitAction::Sleep
    }

    /// Notes that the core was yielded for `away`. Returns true if the rank moves to its own core.
    ///
    /// If another thread uses the present core, the rank is better off on its own core. There it
    /// does not yield to a thread that computes: that thread would keep the core for milliseconds,
    /// and the rank would miss bytes that arrive within microseconds.
    fn yielded(&self, wait: &mut Wait, away: Duration, place: CurrentCore) -> bool {
        let learnt = self.learnt.get();
        let is_used = away >= USED;
        wait.shared |= is_used;
        let moves = is_used && place == CurrentCore::Other && learnt.stays == 0;
        let stays = if moves { STAYS } else { learnt.stays };
        let keeps = if away >= HELD && place == CurrentCore::Own { KEEPS } else { learnt.keeps };
        self.learnt.set(Learnt { keeps, stays, ..learnt });
        moves
    }

    /// Notes that the wait found something.
    pub(crate) fn found(&self, Wait { shared, slept, .. }: Wait) {
        let Learnt { spin, stay, keeps, stays } = self.learnt.get();
        let spin = match shared {
            true if spin <= SHORTEST_SPIN => Duration::ZERO,
            true => spin / 2,
            false => (spin * 2).clamp(SHORTEST_SPIN, LONGEST_SPIN),
        };
        let stay = if slept { stay / 2 } else { stay * 2 }.clamp(SHORTEST_STAY, LONGEST_STAY);
        self.learnt.set(Learnt { spin, stay, keeps: keeps.saturating_sub(1), stays: stays.saturating_sub(1) });
    }

    /// Moves the rank to its own core, if it has one.
    pub(crate) fn move_to_own(&self) {
        self.own.into_iter().for_each(OwnCore::move_there);
    }

    fn is_elsewhere(&self) -> bool {
        self.own.is_some_and(|own| !own.is_here())
    }

    /// Yields the core to other threads. If another thread used it, the rank may move to its own
    /// core.
    pub(crate) fn give_way(&self, wait: &mut Wait) {
        let begun = Instant::now();
        std::thread::yield_now();
        let away = begun.elapsed();
        let place = match self.own {
            None => CurrentCore::Any,
            Some(own) if own.is_here() => CurrentCore::Own,
            Some(_) => CurrentCore::Other,
        };
        if self.yielded(wait, away, place) {
            self.own.into_iter().for_each(OwnCore::move_there);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    /// Runs a wait of `lasts`. Each look takes a microsecond, and each yield takes `away`. Returns
    /// how often it looked at once, yielded and slept.
    fn wait(waiter: &Waiter, lasts: Duration, away: Duration) -> [u32; 3] {
        let (mut wait, mut waited, mut counts) = (Wait::default(), Duration::ZERO, [0; 3]);
        while waited < lasts {
            let next = waiter.next(&mut wait, waited);
            counts[next as usize] += 1;
            waited += match next {
                WaitAction::Look => micros(1),
                WaitAction::Yield => {
                    waiter.yielded(&mut wait, away, CurrentCore::Any);
                    away
                }
                WaitAction::Sleep => lasts,
                WaitAction::Move => panic!("the rank has no core of its own"),
            };
        }
        waiter.found(wait);
        counts
    }

    /// Returns what the last of `waits` such waits does.
    fn after(waits: u32, lasts: Duration, away: Duration) -> [u32; 3] {
        let waiter = Waiter::new(Waiting::SpinThenBlock, None);
        (0..waits).map(|_| wait(&waiter, lasts, away)).last().unwrap()
    }

    #[test]
    fn a_wait_looks_then_yields_then_sleeps_and_learns_what_pays() {
        let alone = Duration::from_nanos(400);
        for (waits, lasts, away, does, why) in [
            (1, micros(4), alone, [4, 0, 0], "a short wait never leaves its core"),
            (100, micros(4), alone, [4, 0, 0], "nor does it learn to"),
            (100, micros(25), alone, [5, 50, 0], "if no thread wants the core, yielding does no harm"),
            (1, micros(10), micros(10), [5, 1, 0], "another rank on the core has to wait for the first microseconds"),
            (100, micros(10), micros(10), [0, 1, 0], "but not for those of each wait"),
            (1, micros(1000), alone, [5, 988, 1], "a long wait sleeps"),
            (100, micros(1000), alone, [5, 50, 1], "soon, if all waits are long"),
        ] {
            assert_eq!(after(waits, lasts, away), does, "{why}");
        }
    }

    #[test]
    fn the_lessons_are_forgotten_once_the_core_is_free_again() {
        let waiter = Waiter::new(Waiting::SpinThenBlock, None);
        let first = waiter.learnt.get();
        for _ in 0..100 {
            wait(&waiter, micros(1000), micros(10));
        }
        assert_ne!(waiter.learnt.get(), first);
        for _ in 0..100 {
            wait(&waiter, micros(4), Duration::from_nanos(400));
        }
        assert_eq!(waiter.learnt.get(), first);
    }

    #[test]
    fn a_rank_moves_to_its_own_core_if_another_thread_uses_its_present_one() {
        for (away, place, moves) in [
            (micros(10), CurrentCore::Other, true),
            (micros(4000), CurrentCore::Other, true),
            (micros(1), CurrentCore::Other, false),
            (micros(10), CurrentCore::Own, false),
            (micros(10), CurrentCore::Any, false),
        ] {
            let waiter = Waiter::new(Waiting::SpinThenBlock, None);
            assert_eq!(waiter.yielded(&mut Wait::default(), away, place), moves, "{away:?} on {place:?}");
        }
    }

    #[test]
    fn a_rank_that_the_scheduler_moves_back_does_not_move_in_each_wait() {
        let waiter = Waiter::new(Waiting::SpinThenBlock, None);
        let moves = (0..4 * STAYS).filter(|_| {
            let mut wait = Wait::default();
            let moves = waiter.yielded(&mut wait, micros(10), CurrentCore::Other);
            waiter.found(wait);
            moves
        });
        assert_eq!(moves.count(), 4);
    }

    #[test]
    fn a_rank_keeps_its_own_core_from_a_thread_that_computes_and_no_other_core() {
        for (place, next) in [
            (CurrentCore::Own, WaitAction::Look),
            (CurrentCore::Other, WaitAction::Yield),
            (CurrentCore::Any, WaitAction::Yield),
        ] {
            let waiter = Waiter::new(Waiting::SpinThenBlock, None);
            waiter.yielded(&mut Wait::default(), micros(4000), place);
            assert_eq!(waiter.next(&mut Wait::default(), micros(50)), next, "{place:?}");
        }
    }

    #[test]
    fn a_rank_moves_to_its_own_core_once_before_it_sleeps() {
        let Some(own) = (0..64).filter_map(|index| OwnCore::of(index, 1)).find(|own| !own.is_here()) else {
            return eprintln!("SKIPPED: a_rank_moves_to_its_own_core_once_before_it_sleeps: needs two cores");
        };
        let waiter = Waiter::new(Waiting::SpinThenBlock, Some(own));
        let (mut wait, late) = (Wait::default(), LONGEST_STAY);
        let then = [late, late + micros(1), late + SHORTEST_STAY].map(|waited| waiter.next(&mut wait, waited));
        assert_eq!(then, [WaitAction::Move, WaitAction::Yield, WaitAction::Sleep]);
    }

    #[test]
    fn a_rank_that_is_told_to_block_sleeps_at_once() {
        let waiter = Waiter::new(Waiting::Block, None);
        assert_eq!(wait(&waiter, micros(1), micros(1)), [0, 0, 1]);
    }

    #[test]
    fn ranks_spin_only_if_each_of_their_threads_has_a_core() {
        for (ranks, threads, cores, meant) in [
            (1, 1, 1, Waiting::SpinThenBlock),
            (2, 1, 2, Waiting::SpinThenBlock),
            (3, 1, 2, Waiting::Block),
            (2, 2, 4, Waiting::SpinThenBlock),
            (2, 2, 3, Waiting::Block),
            (1, 2, 1, Waiting::Block),
            (2, usize::MAX, 64, Waiting::Block),
        ] {
            let threads = NonZeroUsize::new(threads).unwrap();
            assert_eq!(Waiting::Adaptive.resolved(ranks, threads, cores), meant, "{ranks} of {threads} on {cores}");
        }
        for given in [Waiting::Block, Waiting::SpinThenBlock] {
            assert_eq!(given.resolved(2, NonZeroUsize::MIN, 1), given);
            assert_eq!(given.resolved(1, NonZeroUsize::MIN, 1), given);
        }
    }
}
