use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

/// Longest name that Linux gives to a network interface, in bytes.
const MAX_INTERFACE: usize = 15;

/// A network of a host: an interface's name, such as `eth1`, or a subnet, such as `10.20.0.0/16`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum NetworkSelector {
    /// All addresses of an interface.
    Interface(String),
    /// All addresses that begin with the same bits.
    Subnet {
        /// One address of the subnet.
        address: IpAddr,
        /// Number of bits that all its addresses share.
        bits: u8,
    },
}

/// A text that is neither an interface's name nor a subnet.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no network: write an interface's name such as eth1, or a subnet such as 10.20.0.0/16")]
pub struct NetworkSelectorError(String);

impl NetworkSelector {
    /// Returns true if the network contains this address of this interface.
    #[must_use]
    pub fn holds(&self, interface: &str, address: IpAddr) -> bool {
        match (self, address) {
            (Self::Interface(name), _) => name == interface,
            (Self::Subnet { address: IpAddr::V4(own), bits }, IpAddr::V4(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.leading_zeros() >= u32::from(*bits)
            }
            (Self::Subnet { address: IpAddr::V6(own), bits }, IpAddr::V6(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.leading_zeros() >= u32::from(*bits)
            }
            (Self::Subnet { address: IpAddr::V4(_), .. }, IpAddr::V6(_))
            | (Self::Subnet { address: IpAddr::V6(_), .. }, IpAddr::V4(_)) => false,
        }
    }
}

impl FromStr for NetworkSelector {
    type Err = NetworkSelectorError;

    fn from_str(text: &str) -> Result<Self, NetworkSelectorError> {
        let wrong = || NetworkSelectorError(text.to_owned());
        let Some((address, bits)) = text.split_once('/') else {
            let is_name = (1..=MAX_INTERFACE).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
            return if is_name { Ok(Self::Interface(text.to_owned())) } else { Err(wrong()) };
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = match address {
            IpAddr::V4(_) => Ipv4Addr::BITS,
            IpAddr::V6(_) => Ipv6Addr::BITS,
        };
        let bits: u8 = bits.parse().map_err(|_| wrong())?;
        if u32::from(bits) <= most { Ok(Self::Subnet { address, bits }) } else { Err(wrong()) }
    }
}

impl fmt::Display for NetworkSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(name) => f.write_str(name),
            Self::Subnet { address, bits } => write!(f, "{address}/{bits}"),
        }
    }
}

impl From<NetworkSelector> for String {
    fn from(network: NetworkSelector) -> Self {
        network.to_string()
    }
}

impl TryFrom<String> for NetworkSelector {
    type Error = NetworkSelectorError;

    fn try_from(text: String) -> Result<Self, NetworkSelectorError> {
        text.parse()
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for NetworkSelector {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NetworkSelector".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "maxLength": 43,
            "pattern": "^([!-.0-~]{1,15}|[0-9a-fA-F.:]+/[0-9]{1,3})$",
        })
    }

    fn inline_schema() -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_an_interface_or_a_subnet() {
        let cases = [
            ("eth1", "eth1", "10.0.0.7", true),
            ("eth1", "eth10", "10.0.0.7", false),
            ("10.20.0.0/16", "eth1", "10.20.3.4", true),
            ("10.20.3.4/16", "eth1", "10.20.9.9", true),
            ("10.20.0.0/16", "eth1", "10.21.0.1", false),
            ("0.0.0.0/0", "eth1", "10.21.0.1", true),
            ("0.0.0.0/0", "eth1", "fd00::1", false),
            ("10.20.3.4/32", "eth1", "10.20.3.5", false),
            ("fd00:1::/32", "eth1", "fd00:1:2::3", true),
            ("fd00:1::/32", "eth1", "fd00:2::3", false),
        ];
        for (network, interface, address, expected) in cases {
            let network: NetworkSelector = network.parse().expect("a network");
            assert_eq!(network.holds(interface, address.parse().expect("an address")), expected, "{network} {address}");
        }
    }

    #[test]
    fn a_text_that_is_no_network_is_quoted() {
        for text in
            ["", "an interface", "a-name-of-16-chars", "10.0.0.0/33", "10.0.0/8", "fd00::/129", "eth0/8", "10.0.0.0/"]
        {
            let error = text.parse::<NetworkSelector>().expect_err(text).to_string();
            assert!(error.starts_with(&format!("`{text}` is no network")), "{error}");
        }
    }
}
