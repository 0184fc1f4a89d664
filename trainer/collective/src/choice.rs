//! The choice of the cheapest all-reduce for a length, by the model of [`Costs`].

use crate::algorithm::Algorithm;
use crate::costs::Costs;
use crate::hosts::Hosts;

/// The rule that finds the algorithm of an all-reduce. It is the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// Always this algorithm.
    Always(Algorithm),
    /// The cheapest algorithm for each length. A [`Communicator`](crate::Communicator) goes through
    /// shared memory instead if its group has it, as
    /// [`Group::all_reduce_in_memory`](crate::Group::all_reduce_in_memory) does.
    Cheapest(Costs),
}

impl Choice {
    /// Returns the algorithm that reduces `bytes` over the ranks of `hosts`.
    #[must_use]
    pub fn algorithm(&self, hosts: &Hosts, bytes: usize) -> Algorithm {
        match self {
            Self::Always(algorithm) => *algorithm,
            Self::Cheapest(costs) => costs.cheapest(hosts, bytes),
        }
    }
}

impl Default for Choice {
    fn default() -> Self {
        Self::Cheapest(Costs::default())
    }
}

impl Costs {
    /// Returns the seconds in which `algorithm` reduces `bytes` over the ranks of `hosts`, by the
    /// formulas of [`Algorithm`]. One rank takes none.
    ///
    /// On mixed hosts, all ranks of a host send over one line. β is then the cost in a ring, which
    /// crosses the line [`Hosts::crossings`] times. A hierarchy crosses it once. An algorithm that
    /// ignores hosts crosses it as often as the fullest host has ranks.
    #[must_use]
    pub fn seconds(&self, algorithm: Algorithm, hosts: &Hosts, bytes: usize) -> f64 {
        if hosts.world() < 2 { 0.0 } else { algorithm.seconds(self, hosts, bytes) }
    }

    /// Returns these costs with the cost of a byte on the wire at which `sums` take `seconds`
    /// altogether. Each sum has an algorithm and a length in bytes.
    ///
    /// If messages and reductions alone would take as long, all costs are too high: they fall in
    /// the proportion in which the sums took less. Returns `None` if nothing was summed.
    #[must_use]
    pub fn seen_in(&self, sums: &[(Algorithm, usize)], hosts: &Hosts, seconds: f64) -> Option<Self> {
        let all =
            |costs: Self| sums.iter().map(|(algorithm, bytes)| costs.seconds(*algorithm, hosts, *bytes)).sum::<f64>();
        // Every formula is a constant plus a multiple of β.
        let without = all(Self { wire_byte: 0.0, ..*self });
        let wire_byte = (seconds - without) / (all(Self { wire_byte: 1.0, ..*self }) - without);
        let part = seconds / all(*self);
        let lower = || [self.message, self.wire_byte, self.reduced_byte].map(|cost| cost * part);
        let [message, wire_byte, reduced_byte] =
            if wire_byte > 0.0 { [self.message, wire_byte, self.reduced_byte] } else { lower() };
        let found = Self { message, wire_byte, reduced_byte };
        (part.is_finite() && part > 0.0).then_some(found)
    }

    /// Returns the cheapest algorithm.
    #[must_use]
    pub fn cheapest(&self, hosts: &Hosts, bytes: usize) -> Algorithm {
        Algorithm::worth_trying(hosts)
            .min_by(|one, other| self.seconds(*one, hosts, bytes).total_cmp(&self.seconds(*other, hosts, bytes)))
            .unwrap_or(Algorithm::Ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Costs = Costs { message: 50e-6, wire_byte: 8e-9, reduced_byte: 0.1e-9 };

    #[test]
    fn short_slices_take_few_messages_and_long_ones_few_bytes() {
        let cheapest = |world, bytes| SLOW.cheapest(&Hosts::apart(world), bytes);
        assert_eq!(cheapest(2, 1000), Algorithm::RecursiveDoubling);
        assert_eq!(cheapest(8, 1000), Algorithm::RecursiveDoubling);
        assert_eq!(cheapest(2, 100 << 20), Algorithm::Ring);
        assert_eq!(cheapest(7, 100 << 20), Algorithm::Ring);
        // It sends as few bytes as the ring, in fewer messages.
        assert_eq!(cheapest(8, 100 << 20), Algorithm::HalvingDoubling);
        assert_eq!(cheapest(15, 100 << 20), Algorithm::Torus { columns: 3 });
    }

    #[test]
    fn long_slices_cross_between_mixed_hosts_once() {
        for names in [&[1, 1, 2, 2][..], &[1, 2, 1, 2, 1, 2, 1, 2], &[1, 2, 1, 1, 2]] {
            let hosts = Hosts::named(names);
            assert_eq!(SLOW.cheapest(&hosts, 100 << 20), Algorithm::Hierarchical, "{names:?}");
            assert_eq!(SLOW.cheapest(&hosts, 100), Algorithm::RecursiveDoubling, "{names:?}");
        }
        assert_ne!(SLOW.cheapest(&Hosts::named(&[1, 1, 1, 1]), 100 << 20), Algorithm::Hierarchical);
        // The smaller host's two ranks would gather more bytes for the larger one than a ring
        // sends.
        assert_eq!(SLOW.cheapest(&Hosts::named(&[1, 1, 1, 1, 2, 2]), 100 << 20), Algorithm::Ring);
    }

    #[test]
    fn every_length_has_the_cheapest_algorithm_by_the_formulas() {
        for world in 2..=33 {
            for bits in 2..30 {
                let hosts = Hosts::apart(world);
                let chosen = SLOW.seconds(SLOW.cheapest(&hosts, 1 << bits), &hosts, 1 << bits);
                for other in
                    [Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::HalvingDoubling, Algorithm::DoubleTree]
                {
                    assert!(chosen <= SLOW.seconds(other, &hosts, 1 << bits), "{world} ranks, {} bytes", 1 << bits);
                }
            }
        }
    }

    #[test]
    fn sums_of_any_kind_reveal_the_rate_of_the_line() {
        for hosts in [Hosts::apart(2), Hosts::apart(7), Hosts::named(&[1, 1, 2, 2])] {
            let sums =
                [(Algorithm::Ring, 5 << 20), (Algorithm::RecursiveDoubling, 1000), (Algorithm::Hierarchical, 1 << 20)];
            let seconds = sums.iter().map(|(algorithm, bytes)| SLOW.seconds(*algorithm, &hosts, *bytes)).sum();
            let thought = Costs { wire_byte: SLOW.wire_byte / 8.0, ..SLOW };
            let found = thought.seen_in(&sums, &hosts, seconds).expect("a rate");
            assert!((found.wire_byte / SLOW.wire_byte - 1.0).abs() < 1e-9, "{found:?}");
            assert_eq!(thought.seen_in(&[], &hosts, 1.0), None);
        }
    }

    #[test]
    fn sums_faster_than_the_assumed_messages_lower_all_costs() {
        let (hosts, sums) = (Hosts::apart(4), [(Algorithm::Ring, 1000), (Algorithm::Ring, 5 << 20)]);
        let found = SLOW.seen_in(&sums, &hosts, 1e-6).expect("costs");
        let part = found.message / SLOW.message;
        for (found, before) in [(found.wire_byte, SLOW.wire_byte), (found.reduced_byte, SLOW.reduced_byte)] {
            assert!((found / before / part - 1.0).abs() < 1e-9, "{found}");
        }
        let seconds: f64 = sums.iter().map(|(algorithm, bytes)| found.seconds(*algorithm, &hosts, *bytes)).sum();
        assert!((seconds / 1e-6 - 1.0).abs() < 1e-9, "{seconds}");
        assert_eq!(SLOW.seen_in(&sums, &hosts, 0.0), None);
    }
}
