//! Random numbers that a seed repeats.

use std::time::Duration;

/// SplitMix64 (Steele et al., 2014).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Returns a time between two numbers of microseconds.
    pub(crate) fn micros(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_micros(least + self.below(most - least))
    }

    pub(crate) fn millis(&mut self, least: u64, most: u64) -> Duration {
        self.micros(least * 1000, most * 1000)
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}
