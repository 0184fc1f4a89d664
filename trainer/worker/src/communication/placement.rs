//! The placement of a group's ranks on hosts, and the costs of messages in it.

use std::net::{IpAddr, SocketAddr};

use lockstep_collective::Costs;
use lockstep_elastic::Digest;
use serde::{Deserialize, Serialize};

/// The number of placements whose costs are remembered.
const MAX_KNOWN: usize = 16;

/// The addresses of a group's hosts, each as often as it has ranks. A rank that restarts on its
/// host does not change the placement: it includes neither ports nor the order of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Placement(Digest);

impl Placement {
    /// Returns the placement of ranks that listen at these addresses.
    pub(crate) fn of(addresses: &[SocketAddr]) -> Self {
        let mut hosts: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
        hosts.sort_unstable();
        let names: Vec<String> = hosts.iter().map(IpAddr::to_string).collect();
        Self(Digest::of(names.join(" ").as_bytes()))
    }
}

/// The costs that one worker knows. A group that shrinks and grows again need not measure again.
#[derive(Debug)]
pub(crate) struct KnownCosts {
    /// The placement of the present group.
    here: Placement,
    /// The newest last.
    of: Vec<(Placement, Costs)>,
}

impl KnownCosts {
    /// Moves to the placement of another group.
    pub(crate) fn move_to(&mut self, placement: Placement) {
        self.here = placement;
    }

    /// Returns the costs of messages in the present placement, if they are known.
    pub(crate) fn here(&self) -> Option<Costs> {
        self.of.iter().find(|(known, _)| *known == self.here).map(|(_, costs)| *costs)
    }

    /// Learns the costs of messages in the present placement. They replace earlier ones.
    pub(crate) fn learn(&mut self, costs: Costs) {
        self.of.retain(|(known, _)| *known != self.here);
        if self.of.len() == MAX_KNOWN {
            self.of.remove(0);
        }
        self.of.push((self.here, costs));
    }
}

impl Default for KnownCosts {
    fn default() -> Self {
        Self { here: Placement::of(&[]), of: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(addresses: &[&str]) -> Placement {
        let addresses: Vec<_> = addresses.iter().map(|address| address.parse().expect("an address")).collect();
        Placement::of(&addresses)
    }

    #[test]
    fn a_placement_is_the_same_if_each_host_has_as_many_ranks() {
        let group = placement(&["10.0.0.1:7001", "10.0.0.2:7001", "10.0.0.2:7002"]);
        for (situation, other, same) in [
            ("a rank that was restarted on its host", ["10.0.0.1:9009", "10.0.0.2:7001", "10.0.0.2:7002"], true),
            ("ranks in another order", ["10.0.0.2:7001", "10.0.0.1:7001", "10.0.0.2:7002"], true),
            ("a rank that was replaced on another host", ["10.0.0.1:7001", "10.0.0.2:7001", "10.0.0.3:7001"], false),
            ("the same hosts with other numbers of ranks", ["10.0.0.1:7001", "10.0.0.1:7002", "10.0.0.2:7001"], false),
        ] {
            assert_eq!(placement(&other) == group, same, "{situation}");
        }
        let local = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"];
        assert_ne!(placement(&local[..2]), placement(&local), "4 ranks of one host, and 2 of them");
    }

    #[test]
    fn costs_are_known_again_in_the_same_placement_and_in_no_other() {
        let costs = |message| Costs { message, ..Costs::default() };
        let [two, three] =
            [placement(&["10.0.0.1:1", "10.0.0.2:1"]), placement(&["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"])];
        let mut known = KnownCosts::default();
        let learn = |known: &mut KnownCosts, placement, costs| {
            known.move_to(placement);
            known.learn(costs);
        };
        let found = |known: &mut KnownCosts, placement| {
            known.move_to(placement);
            known.here()
        };
        learn(&mut known, three, costs(1.0));
        assert_eq!(found(&mut known, two), None);
        learn(&mut known, two, costs(2.0));
        assert_eq!([three, two].map(|there| found(&mut known, there)), [Some(costs(1.0)), Some(costs(2.0))]);
        learn(&mut known, three, costs(3.0));
        assert_eq!(found(&mut known, three), Some(costs(3.0)), "the newest counts");
        for host in 0..MAX_KNOWN {
            learn(&mut known, placement(&[&format!("10.0.1.{host}:1")]), costs(4.0));
        }
        assert_eq!((found(&mut known, two), known.of.len()), (None, MAX_KNOWN));
    }
}
