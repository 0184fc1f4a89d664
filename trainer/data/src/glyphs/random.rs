use crate::permutation::{GOLDEN, mix};

/// SplitMix64 (Steele, Lea and Flood, 2014), started from a key.
pub(super) struct Random {
    state: u64,
}

impl Random {
    /// The draws of sample `index` under `seed`, independent of every other sample's.
    pub(super) const fn keyed(seed: u64, index: u64) -> Self {
        Self { state: mix(mix(seed).wrapping_add(index.wrapping_mul(GOLDEN)) ^ GOLDEN) }
    }

    /// Uniform in `least..most`.
    pub(super) fn between(&mut self, least: f32, most: f32) -> f32 {
        // 24 bits are what an f32 holds exactly.
        let unit = (self.next() >> 40) as f32 / (1_u32 << 24) as f32;
        least + (most - least) * unit
    }

    /// True in one case of `cases`.
    pub(super) const fn one_in(&mut self, cases: u64) -> bool {
        self.next().is_multiple_of(cases)
    }

    /// The sum of four uniform draws of ±½: bell-shaped around 0, variance ⅓.
    pub(super) fn bell(&mut self) -> f32 {
        let draw = self.next();
        let sum: u64 = (0..4).map(|part| draw >> (16 * part) & 0xffff).sum();
        sum as f32 / 65_536.0 - 2.0
    }

    const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }
}
