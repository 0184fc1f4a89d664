//! Within hosts, between them, and within them again.
//!
//! If the smallest host has k ranks, k ranks of every host own a part of the elements each. An
//! owner sums its part over its host and takes it round a ring of the hosts, or
//! [exchanges](super::direct) it directly. Then it hands the result to the others of its host.

use crate::Hosts;

use super::{AllReduce, Arrival, Builder, Terms, part};

/// Hops of the whole between two hops of a segment. Some segments travel between hosts while others
/// are summed within them.
const LAG: usize = 4;

pub(super) struct Scheme;

impl AllReduce for Scheme {
    fn code(&self) -> u8 {
        7
    }

    fn name(&self) -> &'static str {
        "hierarchical"
    }

    fn describe(&self, builder: &mut Builder, hosts: &Hosts, length: usize) {
        let count = hosts.count();
        // As in any ring, each host first passes on parts to which the next host adds, and later
        // complete parts.
        over_hosts(builder, hosts, length, |host, step| ((host + 2 * count - step - 1) % count, (host + 1) % count));
    }

    /// Costs of hosts with k ranks each. If k differs, the fullest host gathers the most, and the
    /// emptiest one has the fewest ranks to share that.
    fn seconds(&self, terms: &Terms<'_>) -> f64 {
        let [hosts, fullest, emptiest] =
            [terms.hosts.count(), terms.hosts.fullest(), terms.hosts.emptiest()].map(|count| count as f64);
        let (within, between) = ((fullest - 1.0) / emptiest, (hosts - 1.0) / hosts / emptiest);
        2.0 * (fullest + hosts - 2.0) * terms.message + (within + between) * terms.there_and_back()
    }

    fn crossings(&self, _: &Hosts) -> usize {
        1
    }

    fn is_worth_trying(&self, hosts: &Hosts) -> bool {
        hosts.are_mixed()
    }
}

/// Describes a hierarchy of H hosts. Each sums within itself, sends a part to another host in each
/// of 2(H−1) steps, and hands the result round within itself. In the first H−1 steps the parts are
/// terms, then they are sums. For a host and a step, `sends` returns the part and the receiving
/// host.
pub(super) fn over_hosts(
    builder: &mut Builder,
    hosts: &Hosts,
    length: usize,
    sends: impl Fn(usize, usize) -> (usize, usize),
) {
    let rows = hosts.ranks();
    let (count, owners) = (hosts.count(), hosts.emptiest());
    let segments = length.div_ceil(owners * count).div_ceil(builder.frame).max(1);
    let lag = LAG.min(segments);
    for index in 0..segments {
        let hop = |hop: usize| index + lag * hop;
        for owner in 0..owners {
            let owned = part(&(0..length), owners, owner);
            // The owner of an element does not depend on the number of segments.
            let passed = |number: usize| part(&part(&owned, count, number), segments, index);
            let gathered = if segments == 1 { vec![owned.clone()] } else { (0..count).map(passed).collect() };
            let mut within = |hop: usize, gathers: bool| {
                for row in &rows {
                    for rank in row.iter().filter(|rank| **rank != row[owner]) {
                        for elements in &gathered {
                            match gathers {
                                true => builder.transfer(hop, *rank, row[owner], elements, Arrival::Reduce),
                                false => builder.transfer(hop, row[owner], *rank, elements, Arrival::Copy),
                            }
                        }
                    }
                }
            };
            within(hop(0), true);
            within(hop(2 * count - 1), false);
            for step in 0..2 * (count - 1) {
                let arrival = if step < count - 1 { Arrival::Reduce } else { Arrival::Copy };
                for (host, row) in rows.iter().enumerate() {
                    let (number, next) = sends(host, step);
                    builder.transfer(hop(1 + step), row[owner], rows[next][owner], &passed(number), arrival);
                }
            }
        }
    }
}
