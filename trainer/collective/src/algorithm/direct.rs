//! Every rank reduces its own part of all others' elements and sends the result to each of them. It
//! takes two hops for any number of ranks, and no element travels more than twice. If ranks share
//! some of the hosts, they sum within hosts first, and this scheme runs between hosts.

use super::{AllReduce, Arrival, Builder, Terms, hierarchical, part};
use crate::Hosts;

pub(super) struct Scheme;

impl AllReduce for Scheme {
    fn code(&self) -> u8 {
        8
    }

    fn name(&self) -> &'static str {
        "direct"
    }

    fn describe(&self, builder: &mut Builder, hosts: &Hosts, length: usize) {
        if hosts.are_mixed() {
            let count = hosts.count();
            return hierarchical::over_hosts(builder, hosts, length, |host, step| {
                let other = (host + 1 + step % (count - 1)) % count;
                (if step < count - 1 { other } else { host }, other)
            });
        }
        let world = builder.world;
        // Each rank starts with another target, so that no rank gets everything at once.
        for distance in 1..world {
            for from in 0..world {
                let to = (from + distance) % world;
                builder.transfer(distance - 1, from, to, &part(&(0..length), world, to), Arrival::Reduce);
                builder.transfer(world + distance - 2, from, to, &part(&(0..length), world, from), Arrival::Copy);
            }
        }
    }

    fn seconds(&self, terms: &Terms<'_>) -> f64 {
        if terms.hosts.are_mixed() {
            return hierarchical::Scheme.seconds(terms);
        }
        terms.in_parts(2.0 * (terms.ranks() - 1.0))
    }

    fn crossings(&self, hosts: &Hosts) -> usize {
        if hosts.are_mixed() { 1 } else { hosts.fullest() }
    }

    fn rounds_between_hosts_only(&self, hosts: &Hosts) -> bool {
        hosts.are_mixed()
    }

    fn is_worth_trying(&self, _: &Hosts) -> bool {
        // It costs as much as a ring. Only rounded formats need it.
        false
    }
}
