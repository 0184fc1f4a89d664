//! The numbers of a step: what ranks tell each other while they train, in a slot for each, and sum.
//!
//! What was trained on is told with the gradients of the step itself where these are not rounded, what else there is to tell of a step once
//! it is done. Slots of both may travel together, of two steps.

use std::{ops::Range, time::Duration};

use lockstep_data::Tally;

use crate::{compute::fingerprint::Fingerprint, membership::session::Halt, step::step_sync::checkpoint_flags::Word};

/// Where a replica puts it, behind its gradients.
pub(crate) const LOSS: usize = 0;
/// How many ranks were asked to halt for a change.
const CHANGE: usize = 1;
/// How many were asked to drain.
const DRAIN: usize = 2;
/// How many know of a newcomer.
const NEWCOMER: usize = 3;
const SAVING: Range<usize> = 4..4 + Word::SLOTS;
const TAKEN: Range<usize> = SAVING.end..SAVING.end + Tally::SLOTS;
const WINDOW: Range<usize> = TAKEN.end..TAKEN.end + Fingerprint::SLOTS;
const WHOLE: Range<usize> = WINDOW.end..WINDOW.end + Fingerprint::SLOTS;
/// Each rank's useful seconds, then how long each waited.
const SECONDS: usize = WHOLE.end;

/// How many numbers a step of so many ranks has.
pub(crate) const fn slots(world: usize) -> usize {
    SECONDS + 2 * world
}

/// What was trained on in a step: by one rank, or by all together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Trained {
    /// The sum over the samples.
    pub loss: f64,
    /// Which samples.
    pub taken: Tally,
}

impl Trained {
    /// Puts what one rank trained on into its slots of `numbers`.
    pub(crate) fn put(self, numbers: &mut [f32]) {
        numbers[LOSS] = self.loss as f32;
        numbers[TAKEN].copy_from_slice(&self.taken.slots());
    }

    /// What all ranks did, whose numbers were added up.
    pub(crate) fn of_sums(numbers: &[f32]) -> Self {
        Self { loss: f64::from(numbers[LOSS]), taken: Tally::of_sums(&numbers[TAKEN]) }
    }
}

/// What one rank tells of a step that it has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    pub halt: Option<Halt>,
    pub knows_newcomer: bool,
    pub word: Word,
    /// What a window of its state looks like after the step.
    pub window: Fingerprint,
    /// What all of it looks like, where it is to be saved.
    pub whole: Fingerprint,
    /// Forward, backward and update.
    pub useful: Duration,
    /// For the numbers of steps before, where they were summed by themselves.
    pub waited: Duration,
}

impl Told {
    /// Puts it into `numbers`, whatever they were, as `rank` of `world`; nothing trained on.
    pub(crate) fn put(self, numbers: &mut Vec<f32>, rank: usize, world: usize) {
        let Self { halt, knows_newcomer, word, window, whole, useful, waited } = self;
        numbers.clear();
        numbers.resize(slots(world), 0.0);
        match halt {
            Some(Halt::Change) => numbers[CHANGE] = 1.0,
            Some(Halt::Drain) => numbers[DRAIN] = 1.0,
            None => {}
        }
        numbers[NEWCOMER] = f32::from(u8::from(knows_newcomer));
        word.put(&mut numbers[SAVING]);
        numbers[WINDOW].copy_from_slice(&window.slots());
        numbers[WHOLE].copy_from_slice(&whole.slots());
        numbers[SECONDS + rank] = useful.as_secs_f32();
        numbers[SECONDS + world + rank] = waited.as_secs_f32();
    }
}

/// What all ranks told of a step that they have done, added up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sums<'a> {
    numbers: &'a [f32],
    world: usize,
}

impl<'a> Sums<'a> {
    /// Of the numbers of `world` ranks.
    pub(crate) fn of(numbers: &'a [f32], world: usize) -> Self {
        debug_assert_eq!(numbers.len(), slots(world), "the numbers of {world} ranks");
        Self { numbers, world }
    }

    /// Why all are to stop after the next step, if any rank was asked to.
    pub(crate) fn halt(self) -> Option<Halt> {
        match (self.numbers[CHANGE] > 0.0, self.numbers[DRAIN] > 0.0) {
            (_, true) => Some(Halt::Drain),
            (true, false) => Some(Halt::Change),
            (false, false) => None,
        }
    }

    pub(crate) fn all_know_newcomer(self) -> bool {
        self.numbers[NEWCOMER] == self.world as f32
    }

    /// What any rank told of checkpoints.
    pub(crate) fn word(self) -> Word {
        Word::of_sum(&self.numbers[SAVING])
    }

    /// Whether the state of each looks like this. Where not, at least two ranks see it.
    pub(crate) fn all_hold(self, window: Fingerprint, whole: Fingerprint) -> bool {
        let all = |fingerprint: Fingerprint, place| fingerprint.is_that_of_all(&self.numbers[place], self.world);
        all(window, WINDOW) && all(whole, WHOLE)
    }

    /// Each rank's useful seconds.
    pub(crate) fn useful(self) -> &'a [f32] {
        &self.numbers[SECONDS..SECONDS + self.world]
    }

    /// How many seconds each waited for the numbers of steps before.
    pub(crate) fn waited(self) -> &'a [f32] {
        &self.numbers[SECONDS + self.world..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(all: &[Told]) -> Vec<f32> {
        sum_with(all, &[])
    }

    /// Of what ranks tell, and of what they trained on.
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
    fn what_each_tells_comes_out_where_it_belongs() {
        let (window, whole) = (Fingerprint::of(0x12_3456), Fingerprint::of(0x65_4321));
        let seconds = Duration::from_millis;
        let one = Told {
            halt: None,
            knows_newcomer: true,
            word: Word { writes: true, ..Word::default() },
            window,
            whole,
            useful: seconds(500),
            waited: seconds(125),
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
        assert_eq!(sums.word(), one.word);
        assert_eq!((sums.useful(), sums.waited()), (&[0.5, 0.25][..], &[0.125, 0.0][..]));
        assert!(sums.all_hold(window, whole));
        assert!(!sums.all_hold(whole, whole) && !sums.all_hold(window, window));
    }

    #[test]
    fn a_newcomer_is_fed_only_once_all_know_of_it() {
        let knows = Told { knows_newcomer: true, ..Told::default() };
        assert!(!Sums::of(&sum(&[knows, Told::default()]), 2).all_know_newcomer());
    }

    #[test]
    fn all_halt_when_one_was_asked_to_and_drain_rather_than_change() {
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
