//! Merges gradients so that their sums end as early as possible.

use std::ops::Range;

/// The length of a gradient, and the time at which it is ready to be summed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadyGradient {
    /// Seconds after any fixed moment, such as the beginning of backward.
    pub seconds: f64,
    /// Length in bytes.
    pub bytes: usize,
}

/// Returns the merging of neighbours whose last sum ends first, as ranges of `gradients`. Among
/// equally good ones it prefers a coarse one.
///
/// `gradients` come in the order in which they are ready, and the sums are formed in that order,
/// one after another. A sum begins once the previous one has ended and all gradients of its range
/// are ready. It takes `seconds` of its length in bytes.
///
/// MG-WFBP (Shi, Chu and Li, IEEE INFOCOM 2019, arXiv 1811.11141) merges greedily, which is optimal
/// if `seconds` is a latency and a rate. This function compares all mergings in L² steps for L
/// gradients. So it is optimal for any costs, including algorithms that change with the length.
pub fn merge(gradients: &[ReadyGradient], seconds: impl Fn(usize) -> f64) -> Vec<Range<usize>> {
    // An earlier end of the first gradients never delays the rest. So the best merging of all
    // extends the best merging of a beginning.
    let mut ends = vec![0.0_f64];
    let mut starts = vec![0];
    for (index, last) in gradients.iter().enumerate() {
        let (mut best, mut bytes) = ((f64::INFINITY, index), 0);
        for start in (0..=index).rev() {
            bytes += gradients[start].bytes;
            let end = ends[start].max(last.seconds) + seconds(bytes);
            if end <= best.0 {
                best = (end, start);
            }
        }
        ends.push(best.0);
        starts.push(best.1);
    }
    let mut ranges = Vec::new();
    let mut end = gradients.len();
    while end > 0 {
        ranges.push(starts[end]..end);
        end = starts[end];
    }
    ranges.reverse();
    ranges
}

/// Returns the end of the last sum, in seconds after the same moment, if `ranges` of `gradients`
/// are summed in this order.
pub fn last_end(gradients: &[ReadyGradient], ranges: &[Range<usize>], seconds: impl Fn(usize) -> f64) -> f64 {
    ranges.iter().fold(0.0, |end, range| {
        let merged = &gradients[range.clone()];
        let ready = merged.iter().map(|gradient| gradient.seconds).fold(end, f64::max);
        ready + seconds(merged.iter().map(|gradient| gradient.bytes).sum())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::Algorithm;
    use crate::{Costs, Hosts};

    fn gradients(times_and_sizes: &[(f64, usize)]) -> Vec<ReadyGradient> {
        let mut seconds = 0.0;
        let ready = times_and_sizes.iter().map(|(took, bytes)| {
            seconds += took;
            ReadyGradient { seconds, bytes: *bytes }
        });
        ready.collect()
    }

    /// Returns every way to cut 0..length into ranges.
    fn mergings(length: usize) -> impl Iterator<Item = Vec<Range<usize>>> {
        (0_u32..1 << (length - 1)).map(move |cuts| {
            let ends = (1..length).filter(|end| cuts >> (end - 1) & 1 == 1).chain([length]);
            let mut start = 0;
            ends.map(|end| std::mem::replace(&mut start, end)..end).collect()
        })
    }

    #[test]
    fn sums_without_latency_are_not_merged_if_that_would_wait() {
        let gradients = gradients(&[(1.0, 10), (1.0, 10), (1.0, 10)]);
        assert_eq!(merge(&gradients, |bytes| bytes as f64 / 20.0), [0..1, 1..2, 2..3]);
    }

    #[test]
    fn sums_that_cost_only_latency_are_merged_into_one() {
        let gradients = gradients(&[(0.1, 10), (0.1, 1000), (0.1, 10)]);
        assert_eq!(merge(&gradients, |_| 1.0), vec![0..3; 1]);
    }

    #[test]
    fn gradients_that_become_ready_during_a_sum_are_merged() {
        // The first sum takes 10 s, in which all others become ready. A sum of the last one alone
        // would cost another second of latency.
        let gradients = gradients(&[(1.0, 9), (1.0, 1), (1.0, 1), (1.0, 1)]);
        let ranges = merge(&gradients, |bytes| 1.0 + bytes as f64);
        assert_eq!(ranges, [0..1, 1..4]);
        assert_eq!(last_end(&gradients, &ranges, |bytes| 1.0 + bytes as f64), 15.0);
    }

    #[test]
    fn no_gradients_merge_into_no_ranges() {
        assert!(merge(&[], |_| 1.0).is_empty());
    }

    fn some_gradients() -> impl Strategy<Value = Vec<ReadyGradient>> {
        proptest::collection::vec((0.0..5e-3, 0usize..4 << 20), 1..=10).prop_map(|layers| gradients(&layers))
    }

    proptest! {
        #[test]
        fn no_merging_ends_earlier(
            gradients in some_gradients(),
            message in 0.0..2e-3,
            wire_byte in 0.0..2e-8,
            world in 2usize..33,
        ) {
            let costs = Costs { message, wire_byte, reduced_byte: 1e-10 };
            let hosts = Hosts::apart(world);
            let of_a_ring = |bytes| costs.seconds(Algorithm::Ring, &hosts, bytes);
            let of_the_cheapest = |bytes| costs.seconds(costs.cheapest(&hosts, bytes), &hosts, bytes);
            for seconds in [&of_a_ring as &dyn Fn(usize) -> f64, &of_the_cheapest] {
                let found = last_end(&gradients, &merge(&gradients, seconds), seconds);
                let best = mergings(gradients.len()).map(|ranges| last_end(&gradients, &ranges, seconds));
                let best = best.fold(f64::INFINITY, f64::min);
                prop_assert!(found <= best * (1.0 + 1e-12), "{found} s, possible {best} s");
            }
        }

        #[test]
        fn the_ranges_tile_the_gradients(gradients in some_gradients(), latency in 0.0..1e-2) {
            let ranges = merge(&gradients, |bytes| latency + bytes as f64 * 1e-9);
            let tiled: Vec<usize> = ranges.iter().cloned().flatten().collect();
            prop_assert_eq!(tiled, (0..gradients.len()).collect::<Vec<_>>());
        }
    }
}
