//! Where a group's ranks are, and what messages between them were found to cost.

use std::net::{IpAddr, SocketAddr};

use lockstep_collective::Costs;
use lockstep_elastic::Digest;
use serde::{Deserialize, Serialize};

/// Costs of so many groups are remembered.
const MAX_KNOWN: usize = 16;

/// The addresses of a group's hosts, as often as each has ranks. A rank that is restarted on its host changes none of it: neither ports nor
/// the order of the ranks are part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Places(Digest);

impl Places {
    /// Of ranks that listen at these addresses.
    pub(crate) fn of(addresses: &[SocketAddr]) -> Self {
        let mut hosts: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
        hosts.sort_unstable();
        let names: Vec<String> = hosts.iter().map(IpAddr::to_string).collect();
        Self(Digest::of(names.join(" ").as_bytes()))
    }
}

/// What one worker knows of costs: those of a group that shrinks and grows again need not be measured again.
#[derive(Debug, Default)]
pub(crate) struct KnownCosts {
    /// The newest last.
    of: Vec<(Places, Costs)>,
}

impl KnownCosts {
    /// Of messages between these places.
    pub(crate) fn between(&self, places: Places) -> Option<Costs> {
        self.of.iter().find(|(known, _)| *known == places).map(|(_, costs)| *costs)
    }

    /// Messages between these places cost so much, whatever they cost before.
    pub(crate) fn learn(&mut self, places: Places, costs: Costs) {
        self.of.retain(|(known, _)| *known != places);
        if self.of.len() == MAX_KNOWN {
            self.of.remove(0);
        }
        self.of.push((places, costs));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(addresses: &[&str]) -> Places {
        let addresses: Vec<_> = addresses.iter().map(|address| address.parse().expect("an address")).collect();
        Places::of(&addresses)
    }

    #[test]
    fn places_are_the_same_where_as_many_ranks_are_on_each_host() {
        let group = places(&["10.0.0.1:7001", "10.0.0.2:7001", "10.0.0.2:7002"]);
        for (situation, other, same) in [
            ("a rank that was restarted on its host", ["10.0.0.1:9009", "10.0.0.2:7001", "10.0.0.2:7002"], true),
            ("ranks in another order", ["10.0.0.2:7001", "10.0.0.1:7001", "10.0.0.2:7002"], true),
            ("a rank that was replaced on another host", ["10.0.0.1:7001", "10.0.0.2:7001", "10.0.0.3:7001"], false),
            ("the same hosts with other numbers of ranks", ["10.0.0.1:7001", "10.0.0.1:7002", "10.0.0.2:7001"], false),
        ] {
            assert_eq!(places(&other) == group, same, "{situation}");
        }
        let local = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"];
        assert_ne!(places(&local[..2]), places(&local), "4 ranks of one host, and 2 of them");
    }

    #[test]
    fn costs_are_known_again_in_a_group_as_before_and_in_no_other() {
        let costs = |message| Costs { message, ..Costs::default() };
        let [two, three] = [places(&["10.0.0.1:1", "10.0.0.2:1"]), places(&["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"])];
        let mut known = KnownCosts::default();
        known.learn(three, costs(1.0));
        assert_eq!(known.between(two), None);
        known.learn(two, costs(2.0));
        assert_eq!([three, two].map(|places| known.between(places)), [Some(costs(1.0)), Some(costs(2.0))]);
        known.learn(three, costs(3.0));
        assert_eq!(known.between(three), Some(costs(3.0)), "the newest counts");
        for host in 0..MAX_KNOWN {
            known.learn(places(&[&format!("10.0.1.{host}:1")]), costs(4.0));
        }
        assert_eq!((known.between(two), known.of.len()), (None, MAX_KNOWN));
    }
}
