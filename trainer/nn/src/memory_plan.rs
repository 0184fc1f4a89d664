//! Where values lie that are not all needed at once: each has an interval of time, and those whose
//! intervals overlap lie apart.

use std::ops::RangeInclusive;

use crate::arena::LINE_ELEMENTS;

/// A need for memory, and its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) elements: usize,
    pub(crate) when: RangeInclusive<usize>,
}

/// The first element of each, and how many there are in all. The largest is placed first, each as
/// low as it can be.
pub(crate) fn place(needs: &[Need]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..needs.len()).collect();
    order.sort_by_key(|index| (std::cmp::Reverse(needs[*index].elements), *index));
    let mut starts = vec![0; needs.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for index in order {
        let Need { elements, when } = &needs[index];
        let meets = |other: &&usize| {
            let other = &needs[**other].when;
            other.start() <= when.end() && when.start() <= other.end()
        };
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(meets)
            .map(|other| (starts[*other], starts[*other] + needs[*other].elements))
            .collect();
        taken.sort_unstable();
        let mut start: usize = 0;
        for (first, end) in taken {
            if start + elements <= first {
                break;
            }
            start = start.max(end.next_multiple_of(LINE_ELEMENTS));
        }
        starts[index] = start;
        placed.push(index);
        total = total.max(start + elements);
    }
    (starts, total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_chain_of_values_needs_the_memory_of_two() {
        let needs: Vec<Need> = (0..10).map(|time| Need { elements: 64, when: time..=time + 1 }).collect();
        assert_eq!(place(&needs).1, 128);
    }

    proptest! {
        #[test]
        fn what_is_needed_at_once_lies_apart(
            sizes in proptest::collection::vec((1usize..100, 0usize..20, 0usize..10), 1..40),
        ) {
            let needs: Vec<Need> =
                sizes.iter().map(|(elements, start, length)| Need { elements: *elements, when: *start..=start + length }).collect();
            let (starts, total) = place(&needs);
            for one in 0..needs.len() {
                prop_assert!(starts[one] + needs[one].elements <= total && starts[one].is_multiple_of(LINE_ELEMENTS));
                for other in 0..one {
                    let together = needs[one].when.start() <= needs[other].when.end()
                        && needs[other].when.start() <= needs[one].when.end();
                    let apart = starts[one] + needs[one].elements <= starts[other]
                        || starts[other] + needs[other].elements <= starts[one];
                    prop_assert!(!together || apart);
                }
            }
        }
    }
}
