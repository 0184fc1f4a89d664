//! The usual cost model of messages, in seconds: α for a message, β for a byte on the wire, γ for a
//! byte to reduce.

/// The costs of messages among the ranks of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// α: seconds for a message.
    pub message: f64,
    /// β: seconds for a byte on the wire.
    pub wire_byte: f64,
    /// γ: seconds for a byte to reduce.
    pub reduced_byte: f64,
}

impl Default for Costs {
    /// Returns the costs among ranks of one host: 20 µs, 2.5 GB/s, 10 GB/s.
    fn default() -> Self {
        Self { message: 20e-6, wire_byte: 0.4e-9, reduced_byte: 0.1e-9 }
    }
}

impl Costs {
    /// Fits α and β to ring all-reduces over `world` ranks, each `(bytes, seconds)` in `measured`.
    /// The caller knows γ, which is `reduced_byte`. The fit minimises the squares of relative
    /// errors, so short and long messages count alike. Returns `None` if no positive costs fit.
    #[must_use]
    pub fn fit(world: usize, measured: &[(usize, f64)], reduced_byte: f64) -> Option<Self> {
        if world < 2 {
            return None;
        }
        let ranks = world as f64;
        let (messages, share) = (2.0 * (ranks - 1.0), (ranks - 1.0) / ranks);
        // An all-reduce of S bytes takes t = messages·α + 2·share·S·β + share·S·γ. Divided by t,
        // this is a·α + b·β = y with y = 1 − share·S·γ/t. The sums below are its normal equations.
        let (mut aa, mut ab, mut bb, mut ay, mut by) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for &(bytes, seconds) in measured {
            let size = bytes as f64;
            let (a, b, y) =
                (messages / seconds, 2.0 * share * size / seconds, 1.0 - share * size * reduced_byte / seconds);
            (aa, ab, bb, ay, by) = (aa + a * a, ab + a * b, bb + b * b, ay + a * y, by + b * y);
        }
        let determinant = aa * bb - ab * ab;
        // If all lengths are similar, they do not tell α from β.
        if determinant <= 1e-6 * aa * bb {
            return None;
        }
        let costs = Self {
            message: (ay * bb - by * ab) / determinant,
            wire_byte: (by * aa - ay * ab) / determinant,
            reduced_byte,
        };
        [costs.message, costs.wire_byte].iter().all(|cost| cost.is_finite() && *cost > 0.0).then_some(costs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hosts;
    use crate::algorithm::Algorithm;

    const SLOW: Costs = Costs { message: 50e-6, wire_byte: 8e-9, reduced_byte: 0.1e-9 };

    #[test]
    fn a_fit_recovers_the_costs_behind_the_times() {
        for world in [2, 3, 8] {
            let measured: Vec<(usize, f64)> = (0..6)
                .map(|step| 1000 << (2 * step))
                .map(|bytes| (bytes, SLOW.seconds(Algorithm::Ring, &Hosts::apart(world), bytes)))
                .collect();
            let found = Costs::fit(world, &measured, SLOW.reduced_byte).expect("positive costs");
            assert!((found.message / SLOW.message - 1.0).abs() < 1e-6, "{found:?}");
            assert!((found.wire_byte / SLOW.wire_byte - 1.0).abs() < 1e-6, "{found:?}");
        }
    }

    #[test]
    fn times_that_fall_with_the_length_fit_no_costs() {
        assert_eq!(Costs::fit(2, &[(1000, 1.0), (1_000_000, 0.1)], 0.0), None);
    }

    #[test]
    fn one_length_does_not_separate_the_costs() {
        assert_eq!(Costs::fit(2, &[(1000, 1.0)], 0.0), None);
    }
}
