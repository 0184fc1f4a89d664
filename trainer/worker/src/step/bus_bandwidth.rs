//! The bandwidth of the group's sums of gradients, as nccl-tests define it
//! (NVIDIA/nccl-tests, doc/PERFORMANCE.md).
//!
//! ```text
//! bus bandwidth = bytes of a step's gradients in f32 × 2(n − 1)/n / seconds of their sums
//! ```
//!
//! So a link of a given speed has the same bus bandwidth for any number n of ranks. The seconds
//! are those in which a sum was under way, averaged over the ranks. They include waits for slower
//! ranks, so this is the least that the links carry: without clocks that agree, no rank can tell a
//! wait from a transfer.

use std::collections::VecDeque;

/// The number of steps over which the bandwidth is averaged.
const WINDOW: usize = 50;

/// The newest steps' seconds of sums.
#[derive(Debug)]
pub(crate) struct BusBandwidth {
    /// Bytes that pass the slowest link in a step; 0 in a group of one.
    bytes: f64,
    seconds: VecDeque<f64>,
}

impl BusBandwidth {
    /// Each step sums `gradients` values over `world` ranks.
    pub(crate) fn new(gradients: usize, world: usize) -> Self {
        let share = 2.0 * (world as f64 - 1.0) / world as f64;
        Self { bytes: (gradients * size_of::<f32>()) as f64 * share, seconds: VecDeque::with_capacity(WINDOW) }
    }

    /// Takes one more step, whose sums took so many seconds on each rank.
    pub(crate) fn record(&mut self, summing: &[f32]) {
        if self.seconds.len() == WINDOW {
            self.seconds.pop_front();
        }
        self.seconds.push_back(summing.iter().copied().map(f64::from).sum::<f64>() / summing.len() as f64);
    }

    /// Returns the average in bytes per second. `None` before the first sum and in a group of one.
    pub(crate) fn bytes_per_second(&self) -> Option<f64> {
        let seconds: f64 = self.seconds.iter().sum();
        (self.bytes > 0.0 && seconds > 0.0).then(|| self.bytes * self.seconds.len() as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ranks_have_the_bytes_of_the_gradients_a_second_and_many_nearly_twice_as_many() {
        for (world, expected) in [(2, 4e6), (4, 6e6), (1000, 7.992e6)] {
            let mut bandwidth = BusBandwidth::new(100_000, world);
            assert_eq!(bandwidth.bytes_per_second(), None);
            bandwidth.record(&[0.08, 0.02]);
            bandwidth.record(&[0.15, 0.15]);
            let found = bandwidth.bytes_per_second().expect("known");
            assert!((found - expected).abs() < 1.0, "{world}: {found}");
        }
    }

    #[test]
    fn one_rank_has_none() {
        let mut bandwidth = BusBandwidth::new(100_000, 1);
        bandwidth.record(&[0.05]);
        assert_eq!(bandwidth.bytes_per_second(), None);
    }

    #[test]
    fn only_the_newest_steps_count() {
        let mut bandwidth = BusBandwidth::new(250_000, 2);
        bandwidth.record(&[1000.0, 1000.0]);
        (0..WINDOW).for_each(|_| bandwidth.record(&[0.5, 1.5]));
        assert_eq!(bandwidth.bytes_per_second(), Some(1e6));
    }
}
