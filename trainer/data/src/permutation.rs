//! The order of an epoch without a table: a Feistel network over the smallest square power of two
//! that holds the samples, walked until it lands inside (cycle walking; Black and Rogaway, 2002).
//! Any member computes any position alone.

/// Feistel rounds; four make a pseudo-random permutation (Luby and Rackoff, 1988), two more for
/// small domains.
const ROUNDS: usize = 6;

/// A shuffle of `0..len`, the same on every machine for the same seed, epoch and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The order of `epoch` under `seed`.
    #[must_use]
    pub fn new(seed: u64, epoch: u64, len: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let start = mix(mix(seed) ^ epoch);
        let keys = std::array::from_fn(|round| mix(start.wrapping_add((round as u64 + 1).wrapping_mul(GOLDEN))));
        Self { len, half_bits: bits.div_ceil(2), keys }
    }

    /// The sample at position `i`: each of `0..len` once.
    ///
    /// # Panics
    /// When `i` is not below the length.
    #[must_use]
    pub fn at(&self, i: u64) -> u64 {
        assert!(i < self.len, "position {i} of a permutation of {}", self.len);
        // The network permutes a domain of less than four times the length, so the walk takes four
        // rounds on average at most, and it ends: the cycle leads back to `i`, which lies inside.
        let mut place = self.network(i);
        while place >= self.len {
            place = self.network(place);
        }
        place
    }

    fn network(&self, place: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (place >> self.half_bits, place & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }
}

/// 2⁶⁴ divided by the golden ratio, odd: the increment of SplitMix64.
pub(crate) const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit reaches every output
/// bit.
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_bijection(seed: u64, epoch: u64, len: u64) -> bool {
        let order = Permutation::new(seed, epoch, len);
        let mut seen = vec![false; len as usize];
        (0..len).all(|i| !std::mem::replace(&mut seen[order.at(i) as usize], true))
    }

    #[test]
    fn every_short_length_and_the_usual_ones_are_permuted() {
        for len in (1..=260).chain([997, 1024, 1025, 4095, 4096, 4097, 9_000, 10_007, 60_000, 65_536, 65_537]) {
            assert!(is_bijection(7, 3, len), "length {len}");
        }
    }

    proptest! {
        #[test]
        fn any_seed_epoch_and_length_give_a_bijection(seed: u64, epoch: u64, len in 1_u64..5000) {
            prop_assert!(is_bijection(seed, epoch, len));
        }

        #[test]
        fn the_longest_lengths_stay_inside(seed: u64, i: u64, len in (1_u64 << 62)..=u64::MAX) {
            let i = i % len;
            prop_assert!(Permutation::new(seed, 0, len).at(i) < len);
        }
    }

    #[test]
    fn seed_and_epoch_change_the_order() {
        let order = |seed, epoch| {
            let permutation = Permutation::new(seed, epoch, 1000);
            (0..1000).map(|i| permutation.at(i)).collect::<Vec<_>>()
        };
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 2), order(2, 1));
    }

    #[test]
    fn neighbours_are_scattered_evenly() {
        // Mean |π(i+1) − π(i)| of a random permutation of n is (n+1)/3, with a deviation of about
        // n/√(18n)·√(8/5).
        let (n, order) = (60_000_u64, Permutation::new(0, 0, 60_000));
        let total: u64 = (1..n).map(|i| order.at(i).abs_diff(order.at(i - 1))).sum();
        let mean = total as f64 / (n - 1) as f64;
        assert!((mean - 20_000.0).abs() < 400.0, "mean distance {mean}");
    }

    #[test]
    fn an_order_never_changes_between_versions() {
        let order = Permutation::new(42, 1, 10);
        assert_eq!((0..10).map(|i| order.at(i)).collect::<Vec<_>>(), [6, 4, 1, 7, 5, 2, 9, 3, 0, 8]);
    }
}
