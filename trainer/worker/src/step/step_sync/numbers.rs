//! The numbers of a step. Each rank writes into its slots what the others must know; the sum over
//! all ranks tells it to all of them.
//!
//! The first slots hold the loss and the samples of a step ([`Trained`]). They travel with the
//! gradients of that step unless these are rounded. The other slots tell about a step that is done.
//! Numbers of two steps may travel together.

use std::{ops::Range, time::Duration};

use super::checkpoint_flags::CheckpointFlags;
use crate::{compute::fingerprint::Fingerprint, membership::session::Halt, trainee::Trained};

/// The number of ranks that were asked to halt for a change.
const CHANGE: usize = Trained::SLOTS;
/// The number of ranks that were asked to drain.
const DRAIN: usize = CHANGE + 1;
/// The number of ranks that know a newcomer.
const NEWCOMER: usize = DRAIN + 1;
const SAVING: Range<usize> = NEWCOMER + 1..NEWCOMER + 1 + CheckpointFlags::SLOTS;
const WINDOW: Range<usize> = SAVING.end..SAVING.end + Fingerprint::SLOTS;
const WHOLE: Range<usize> = WINDOW.end..WINDOW.end + Fingerprint::SLOTS;
/// The squared norms of the mean gradients over the ranks' shares.
const SQUARES: usize = WHOLE.end;
/// The useful seconds of each rank, then the seconds that each rank waited, then those of its sums.
const SECONDS: usize = SQUARES + 1;

/// Returns the number of slots of a step with `world` ranks.
pub(crate) const fn slots(world: usize) -> usize {
    SECONDS + 3 * world
}

/// The facts that one rank tells about a step that it has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// The reason for which this rank wants all to stop.
    pub halt: Option<Halt>,
    pub knows_newcomer: bool,
    pub checkpoint: CheckpointFlags,
    /// The fingerprint of a window of the state after the step.
    pub window: Fingerprint,
    /// The fingerprint of the whole state, if it will be saved.
    pub whole: Fingerprint,
    /// The squared norm of the mean gradient over this rank's share, in steps that measure it.
    pub square: f32,
    /// The time of forward, backward and update.
    pub useful: Duration,
    /// The time that this rank waited for numbers of earlier steps that travelled alone.
    pub waited: Duration,
    /// The time in which this rank's sums were under way.
    pub summing: Duration,
}

impl Told {
    /// Replaces `numbers` by the slots of `rank` among `world` ranks. The slots of [`Trained`] are
    /// 0.
    pub(crate) fn put(self, numbers: &mut Vec<f32>, rank: usize, world: usize) {
        let Self { halt, knows_newcomer, checkpoint, window, whole, square, useful, waited, summing } = self;
        numbers.clear();
        numbers.resize(slots(world), 0.0);
        match halt {
            Some(Halt::Change) => numbers[CHANGE] = 1.0,
            Some(Halt::Drain) => numbers[DRAIN] = 1.0,
            None => {}
        }
        numbers[NEWCOMER] = f32::from(u8::from(knows_newcomer));
        checkpoint.put(&mut numbers[SAVING]);
        numbers[WINDOW].copy_from_slice(&window.slots());
        numbers[WHOLE].copy_from_slice(&whole.slots());
        numbers[SQUARES] = square;
        for (index, seconds) in [useful, waited, summing].into_iter().enumerate() {
            numbers[SECONDS + index * world + rank] = seconds.as_secs_f32();
        }
    }
}

/// The added slots of all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sums<'a> {
    numbers: &'a [f32],
    world: usize,
}

impl<'a> Sums<'a> {
    /// Reads the added numbers of `world` ranks.
    pub(crate) fn of(numbers: &'a [f32], world: usize) -> Self {
        debug_assert_eq!(numbers.len(), slots(world), "the numbers of {world} ranks");
        Self { numbers, world }
    }

    /// Returns the reason for which all ranks stop after the next step. A drain outranks a change.
    pub(crate) fn halt(self) -> Option<Halt> {
        match (self.numbers[CHANGE] > 0.0, self.numbers[DRAIN] > 0.0) {
            (_, true) => Some(Halt::Drain),
            (true, false) => Some(Halt::Change),
            (false, false) => None,
        }
    }

    /// Returns true if every rank knows a newcomer.
    pub(crate) fn all_know_newcomer(self) -> bool {
        self.numbers[NEWCOMER] == self.world as f32
    }

    /// Returns the checkpoint flags that any rank set.
    pub(crate) fn checkpoint(self) -> CheckpointFlags {
        CheckpointFlags::of_sum(&self.numbers[SAVING])
    }

    /// Returns true if the state of every rank has these fingerprints. Otherwise at least two ranks
    /// see a difference.
    pub(crate) fn all_hold(self, window: Fingerprint, whole: Fingerprint) -> bool {
        let all = |fingerprint: Fingerprint, slots| fingerprint.is_that_of_all(&self.numbers[slots], self.world);
        all(window, WINDOW) && all(whole, WHOLE)
    }

    /// Returns the sum of the ranks' squared norms.
    pub(crate) fn squares(self) -> f64 {
        f64::from(self.numbers[SQUARES])
    }

    /// Returns the useful seconds of each rank.
    pub(crate) fn useful(self) -> &'a [f32] {
        self.seconds(0)
    }

    /// Returns the seconds that each rank waited for numbers of earlier steps.
    pub(crate) fn waited(self) -> &'a [f32] {
        self.seconds(1)
    }

    /// Returns the seconds in which each rank's sums were under way.
    pub(crate) fn summing(self) -> &'a [f32] {
        self.seconds(2)
    }

    fn seconds(self, index: usize) -> &'a [f32] {
        &self.numbers[SECONDS + index * self.world..][..self.world]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(all: &[Told]) -> Vec<f32> {
        sum_with(all, &[])
    }

    /// Adds the numbers of ranks that tell and train like this.
    fn sum_with(all: &[Told], trained: &[Trained]) -> Vec<f32> {
        let mut sums = vec![0.0; slots(all.len())];
        let mut numbers = vec![f32::NAN; 3];
        for (rank, told) in all.iter().enumerate() {
            told.put(&mut numbers, rank, all.len());
            if let Some(trained) = trained.get(rank) {
                trained.put(&mut numbers);
            }
            sums.iter_mut().zip(&numbers).for_each(|(sum, number)| *sum += number);
        }
        sums
    }

    #[test]
    fn each_fact_is_read_from_its_own_slots() {
        let (window, whole) = (Fingerprint::of(0x12_3456), Fingerprint::of(0x65_4321));
        let seconds = Duration::from_millis;
        let one = Told {
            halt: None,
            knows_newcomer: true,
            checkpoint: CheckpointFlags { writes: true, ..CheckpointFlags::default() },
            window,
            whole,
            square: 1.5,
            useful: seconds(500),
            waited: seconds(125),
            summing: seconds(750),
        };
        let other = Told { useful: seconds(250), waited: seconds(0), ..one };
        let trained = [
            Trained { loss: 1.5, taken: [1, 2, 3].into_iter().collect() },
            Trained { loss: 2.5, taken: [4].into_iter().collect() },
        ];
        let numbers = sum_with(&[one, other], &trained);
        assert_eq!(Trained::of_sums(&numbers), Trained { loss: 4.0, taken: (1..=4).collect() });
        let sums = Sums::of(&numbers, 2);
        assert!(sums.all_know_newcomer());
        assert_eq!(sums.checkpoint(), one.checkpoint);
        assert_eq!(sums.squares(), 3.0);
        assert_eq!((sums.useful(), sums.waited()), (&[0.5, 0.25][..], &[0.125, 0.0][..]));
        assert_eq!(sums.summing(), [0.75, 0.75]);
        assert!(sums.all_hold(window, whole));
        assert!(!sums.all_hold(whole, whole) && !sums.all_hold(window, window));
    }

    #[test]
    fn ranks_begin_to_send_to_a_newcomer_once_all_know_it() {
        let knows = Told { knows_newcomer: true, ..Told::default() };
        assert!(!Sums::of(&sum(&[knows, Told::default()]), 2).all_know_newcomer());
    }

    #[test]
    fn all_halt_if_one_was_asked_to_and_a_drain_outranks_a_change() {
        let asked = |halt| Told { halt, ..Told::default() };
        let (none, change, drain) = (asked(None), asked(Some(Halt::Change)), asked(Some(Halt::Drain)));
        for (all, halt) in [
            ([none, none, none], None),
            ([none, change, none], Some(Halt::Change)),
            ([none, none, drain], Some(Halt::Drain)),
            ([change, drain, change], Some(Halt::Drain)),
        ] {
            assert_eq!(Sums::of(&sum(&all), 3).halt(), halt);
        }
    }
}
