//! Random numbers that are keyed, not drawn from a shared sequence: a sample's draws depend on its
//! key alone, whoever prepares it and in whatever order.

use crate::permutation::{GOLDEN, mix};

/// Keeps the draws for augmentation apart from all others of the same seed.
const AUGMENTATION: u64 = 0xA0_63_E7;

/// SplitMix64 (Steele, Lea and Flood, 2014), started from a key.
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// The draws of sample `index` under `seed`, independent of every other sample's.
    pub(crate) const fn keyed(seed: u64, index: u64) -> Self {
        Self { state: mix(mix(seed).wrapping_add(index.wrapping_mul(GOLDEN)) ^ GOLDEN) }
    }

    /// The draws that augment `sample` in `epoch`.
    pub(crate) const fn augmenting(seed: u64, epoch: u64, sample: u64) -> Self {
        Self::keyed(mix(mix(seed ^ AUGMENTATION) ^ epoch), sample)
    }

    /// Draws bytes.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for bytes in bytes.chunks_mut(8) {
            let drawn = self.next().to_le_bytes();
            bytes.copy_from_slice(&drawn[..bytes.len()]);
        }
    }

    /// Uniform in `least..most`.
    pub(crate) fn between(&mut self, least: f32, most: f32) -> f32 {
        // 24 bits are what an f32 holds exactly.
        let unit = (self.next() >> 40) as f32 / (1_u32 << 24) as f32;
        least + (most - least) * unit
    }

    /// Uniform in 0..1.
    pub(crate) const fn unit(&mut self) -> f64 {
        // 53 bits are what an f64 holds exactly.
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in `0..count`, but for 2⁻³² of bias.
    pub(crate) const fn below(&mut self, count: u32) -> u32 {
        (((self.next() >> 32) * count as u64) >> 32) as u32
    }

    /// True in one case of `cases`.
    pub(crate) const fn one_in(&mut self, cases: u64) -> bool {
        self.next().is_multiple_of(cases)
    }

    /// The sum of four uniform draws of ±½: bell-shaped around 0, variance ⅓.
    pub(crate) fn bell(&mut self) -> f32 {
        let draw = self.next();
        let sum: u64 = (0..4).map(|part| draw >> (16 * part) & 0xffff).sum();
        sum as f32 / 65_536.0 - 2.0
    }

    /// 64 uniform bits.
    pub(crate) const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_epoch_and_sample_each_give_other_draws() {
        let first = |seed, epoch, sample| Random::augmenting(seed, epoch, sample).next();
        let draws = [first(1, 2, 3), first(2, 2, 3), first(1, 3, 3), first(1, 2, 4), first(2, 1, 3), first(1, 3, 2)];
        let different: std::collections::BTreeSet<u64> = draws.into_iter().collect();
        assert_eq!(different.len(), draws.len());
        assert_eq!(first(1, 2, 3), draws[0]);
    }

    #[test]
    fn draws_below_a_count_are_spread_evenly() {
        let mut random = Random::keyed(4, 5);
        let mut counts = [0_i32; 7];
        (0..7000).for_each(|_| counts[random.below(7) as usize] += 1);
        // A deviation of 29 each.
        assert!(counts.iter().all(|count| (count - 1000).abs() < 130), "{counts:?}");
    }
}
