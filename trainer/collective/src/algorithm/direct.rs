//! Every rank reduces its own part of all others' elements and sends the result to each of them: two hops, whatever their number, and
//! no element is on its way more than twice.

use super::{AllReduce, Arrival, Builder, Terms, part};
use crate::Hosts;

pub(super) struct Scheme;

impl AllReduce for Scheme {
    fn code(&self) -> u8 {
        6
    }

    fn name(&self) -> &'static str {
        "direct"
    }

    fn describe(&self, builder: &mut Builder, _: &Hosts, length: usize) {
        let world = builder.world;
        // In turns, so that no rank is everyone's target at once.
        for distance in 1..world {
            for from in 0..world {
                let to = (from + distance) % world;
                builder.transfer(distance - 1, from, to, &part(&(0..length), world, to), Arrival::Reduce);
                builder.transfer(world + distance - 2, from, to, &part(&(0..length), world, from), Arrival::Copy);
            }
        }
    }

    fn seconds(&self, terms: &Terms<'_>) -> f64 {
        terms.in_parts(2.0 * (terms.ranks() - 1.0))
    }

    fn is_worth_trying(&self, _: &Hosts) -> bool {
        // It costs what a ring costs; only what is rounded on its way needs it.
        false
    }
}
