//! The plan that all ranks of a group share. Ranks that cut their gradients differently, or sum
//! them by different algorithms, would wait for each other.

use std::ops::Range;

use crate::algorithm::Algorithm;
use crate::choice::Choice;
use crate::costs::Costs;
use crate::hosts::Hosts;
use crate::limits::MAX_PENDING;
use crate::wire::Wire;

/// The most buckets of a plan. All of them may be pending at once, beside a few other sums.
pub(crate) const MAX_BUCKETS: usize = MAX_PENDING - 24;
/// Words before the hosts of the ranks and the ends of the buckets: the choice, and the number of
/// ranks.
pub(crate) const HEAD: usize = 5;
/// The first word holds the choice's kind, and above it the number of the wire's format.
const WIRE_SHIFT: u32 = 8;

/// How the gradients of a step are summed.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketPlan {
    /// Slices of the gradient arena, in elements, in the order of their sums. They tile the arena
    /// from its beginning.
    pub buckets: Vec<Range<usize>>,
    /// The rule that finds each bucket's algorithm.
    pub choice: Choice,
    /// The format of gradients between hosts. [`Algorithm::Direct`] carries a format other than
    /// `f32` if `choice` names no algorithm.
    pub wire: Wire,
    /// The hosts of the ranks as the sums see them. A replay takes them from the run that it
    /// repeats.
    pub hosts: Hosts,
}

/// A plan that all ranks of a group have. Only [`Group::agree`](crate::Group::agree) makes one,
/// from the proposal of rank 0, and a rank that is alone.
#[derive(Clone, Debug, PartialEq)]
pub struct AgreedPlan(BucketPlan);

impl AgreedPlan {
    /// Returns the plan on which the ranks agreed.
    pub(crate) fn of(plan: BucketPlan) -> Self {
        Self(plan)
    }

    /// Returns the slices of the gradient arena that are summed one by one.
    #[must_use]
    pub fn buckets(&self) -> &[Range<usize>] {
        &self.0.buckets
    }

    /// Returns the plan of a group of one.
    pub(crate) fn alone(plan: BucketPlan) -> Self {
        assert!(BucketPlan::from_words(&plan.to_words()).as_ref() == Some(&plan), "no plan: {plan:?}");
        Self(plan)
    }

    /// Returns the plan that was proposed.
    #[must_use]
    pub fn proposed(&self) -> &BucketPlan {
        &self.0
    }

    /// Returns the rule that finds each bucket's algorithm.
    #[must_use]
    pub fn choice(&self) -> Choice {
        self.0.choice
    }

    /// Returns the format of gradients between hosts.
    #[must_use]
    pub fn wire(&self) -> Wire {
        self.0.wire
    }

    /// Returns the plan in numbers, for [`BucketPlan::from_words`]. By these, a later run of as
    /// many ranks over the same kind of link repeats the bits of this one.
    #[must_use]
    pub fn to_words(&self) -> Vec<u64> {
        self.0.to_words()
    }
}

impl BucketPlan {
    /// Returns the plan that [`AgreedPlan::to_words`] gave, or `None` for other words.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let ([kind, parameters @ .., ranks], rest) = words.split_first_chunk::<HEAD>()?;
        let (hosts, ends) = rest.split_at_checked(usize::try_from(*ranks).ok()?)?;
        let hosts =
            hosts.iter().map(|host| u32::try_from(*host).ok()).collect::<Option<_>>().and_then(Hosts::counted)?;
        let wire = usize::try_from(kind >> WIRE_SHIFT).ok().and_then(|number| Wire::ALL.get(number)).copied()?;
        let choice = match kind & ((1 << WIRE_SHIFT) - 1) {
            0 => {
                let [message, wire_byte, reduced_byte] =
                    [parameters[0], parameters[1], parameters[2]].map(f64::from_bits);
                let known = [message, wire_byte, reduced_byte].iter().all(|cost| cost.is_finite() && *cost >= 0.0);
                known.then_some(Choice::Cheapest(Costs { message, wire_byte, reduced_byte }))
            }
            code => {
                let columns = usize::try_from(parameters[0]).ok()?;
                Algorithm::from_code(u8::try_from(code).ok()?, columns).map(Choice::Always)
            }
        }?;
        let mut start = 0;
        let mut buckets = Vec::with_capacity(ends.len().min(MAX_BUCKETS));
        for end in ends {
            let end = usize::try_from(*end).ok().filter(|end| *end > start && buckets.len() < MAX_BUCKETS)?;
            buckets.push(start..end);
            start = end;
        }
        Some(Self { buckets, choice, wire, hosts })
    }

    pub(crate) fn to_words(&self) -> Vec<u64> {
        let mut head = match self.choice {
            Choice::Cheapest(Costs { message, wire_byte, reduced_byte }) => {
                [0, message.to_bits(), wire_byte.to_bits(), reduced_byte.to_bits()]
            }
            Choice::Always(algorithm) => {
                let (code, columns) = algorithm.code();
                [u64::from(code), columns as u64, 0, 0]
            }
        };
        head[0] |= (self.wire as u64) << WIRE_SHIFT;
        let hosts = self.hosts.numbers().iter().map(|host| u64::from(*host));
        let ends = self.buckets.iter().map(|bucket| bucket.end as u64);
        head.into_iter().chain([self.hosts.world() as u64]).chain(hosts).chain(ends).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_its_words() {
        let costs = Costs { message: 1.0 / 3.0, wire_byte: 4e-10, reduced_byte: 0.0 };
        let named = Algorithm::PLAIN.into_iter().chain([Algorithm::Torus { columns: 4 }]);
        let hosts = Hosts::named(&[4, 5, 4]);
        for choice in named.map(Choice::Always).chain([Choice::Cheapest(costs)]) {
            for buckets in [vec![], vec![0..7, 7..8], vec![0..7, 7..8, 8..1000]] {
                for wire in Wire::ALL {
                    let plan = BucketPlan { buckets: buckets.clone(), choice, wire, hosts: hosts.clone() };
                    assert_eq!(BucketPlan::from_words(&plan.to_words()), Some(plan));
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "no plan")]
    fn buckets_with_a_gap_are_no_plan() {
        let hosts = Hosts::named(&[4]);
        AgreedPlan::alone(BucketPlan {
            buckets: vec![0..10, 20..30],
            choice: Choice::default(),
            wire: Wire::F32,
            hosts,
        });
    }

    #[test]
    fn words_of_no_plan_are_refused() {
        let nan = f64::NAN.to_bits();
        for words in [
            &[][..],
            &[1, 0, 0, 0],
            &[9, 0, 0, 0, 0],
            &[0x301, 0, 0, 0, 0],
            &[0, nan, 0, 0, 0],
            &[0, (-1.0_f64).to_bits(), 0, 0, 0],
            &[5, 0, 0, 0, 0],
            &[1, 0, 0, 0, 0, 0],
            &[1, 0, 0, 0, 0, 7, 7],
            &[1, 0, 0, 0, 0, 7, 5],
            &[1, 0, 0, 0, 2, 0],
            &[1, 0, 0, 0, 2, 0, 2],
            &[1, 0, 0, 0, u64::MAX, 0],
        ] {
            assert_eq!(BucketPlan::from_words(words), None, "{words:?}");
        }
    }
}
