//! The address by which other workers reach this one.

use std::net::IpAddr;

use lockstep_launch::{Launch, NetworkSelector};

use crate::failure::Failure;

/// An address of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    interface: String,
    address: IpAddr,
}

/// Returns this host's address in the first of the job's networks that it is in. If the job names
/// none, returns the address of the process.
pub(crate) fn data_address(launch: &Launch) -> Result<IpAddr, Failure> {
    let wanted = &launch.task.communication().interfaces;
    if wanted.is_empty() {
        return Ok(launch.address);
    }
    let interfaces = if_addrs::get_if_addrs()
        .map_err(|error| Failure::fatal(format!("cannot list this host's network interfaces: {error}")))?;
    let found = interfaces.into_iter().map(|found| Found { address: found.ip(), interface: found.name });
    choose(wanted, &found.collect::<Vec<_>>(), launch.address).map_err(Failure::fatal)
}

/// Chooses an address in a network. Among several, one of the same kind as `own` is preferred.
fn choose(wanted: &[NetworkSelector], found: &[Found], own: IpAddr) -> Result<IpAddr, String> {
    let useful = |found: &&Found| !matches!(found.address, IpAddr::V6(address) if address.is_unicast_link_local());
    let chosen = wanted.iter().find_map(|network| {
        let inside = found.iter().filter(useful).filter(|found| network.holds(&found.interface, found.address));
        inside.map(|found| found.address).min_by_key(|address| address.is_ipv4() != own.is_ipv4())
    });
    chosen.ok_or_else(|| {
        let list = |texts: Vec<String>| texts.join(", ");
        format!(
            "spec.communication.interfaces: {}: this host is in none of these networks; it has {}",
            list(wanted.iter().map(ToString::to_string).collect()),
            list(found.iter().map(|Found { interface, address }| format!("{interface} ({address})")).collect()),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Vec<Found> {
        [
            ("lo", "127.0.0.1"),
            ("eth0", "10.0.0.7"),
            ("eth1", "fe80::7"),
            ("eth1", "fd00::7"),
            ("eth1", "10.20.0.7"),
            ("eth2", "10.20.0.8"),
        ]
        .map(|(interface, address)| Found {
            interface: interface.to_owned(),
            address: address.parse().expect("an address"),
        })
        .to_vec()
    }

    fn chosen(wanted: &[&str], own: &str) -> Result<String, String> {
        let wanted: Vec<NetworkSelector> = wanted.iter().map(|text| text.parse().expect("a network")).collect();
        choose(&wanted, &found(), own.parse().expect("an address")).map(|address| address.to_string())
    }

    #[test]
    fn a_worker_is_reached_by_the_first_network_that_it_is_in() {
        let cases = [
            (&["eth1"][..], "10.0.0.7", "10.20.0.7"),
            (&["eth1"], "fd01::1", "fd00::7"),
            (&["10.20.0.8/32"], "10.0.0.7", "10.20.0.8"),
            (&["ib0", "eth2", "eth1"], "10.0.0.7", "10.20.0.8"),
            (&["fd00::/64"], "10.0.0.7", "fd00::7"),
        ];
        for (wanted, own, expected) in cases {
            assert_eq!(chosen(wanted, own).as_deref(), Ok(expected), "{wanted:?}");
        }
    }

    #[test]
    fn a_worker_in_none_of_the_networks_names_its_own() {
        let error = chosen(&["ib0", "192.168.0.0/16"], "10.0.0.7").expect_err("none");
        assert_eq!(
            error,
            "spec.communication.interfaces: ib0, 192.168.0.0/16: this host is in none of these networks; it has \
             lo (127.0.0.1), eth0 (10.0.0.7), eth1 (fe80::7), eth1 (fd00::7), eth1 (10.20.0.7), eth2 (10.20.0.8)"
        );
    }
}
