//! Within hosts, between them, and within them again: as many ranks of each host as the smallest one has own a part of the elements each.
//! They sum it up over their host, go round a ring of the hosts with it (or [exchange](super::direct) it directly), and hand it to the others
//! of their host.

use crate::Hosts;

use super::{AllReduce, Arrival, Builder, Terms, part};

/// Hops of the whole between two hops of a segment: segments are on their way between hosts while others are summed up within them.
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
        // As in any ring: first each passes on the part to which its next one has yet to add, then what is complete.
        over_hosts(builder, hosts, length, |host, step| ((host + 2 * count - step - 1) % count, (host + 1) % count));
    }

    /// Of k ranks per host, where those differ, the fullest host's for what it gathers and the emptiest one's for how many share that.
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

/// Of H hosts each sums up within itself, then sends in each of 2(H−1) steps a part to another host, and hands everything round within itself.
/// In the first H−1 steps parts are terms, then sums; `sends` says of a host and a step which part goes to which host.
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
            // Whose part an element is in does not depend on how many segments there are.
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
