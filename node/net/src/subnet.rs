//! IPv4 networks.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An IPv4 network in CIDR notation. The host bits are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subnet {
    network: Ipv4Addr,
    prefix: u8,
}

/// A text that is not an IPv4 network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an IPv4 network like 10.200.0.0/16")]
pub struct SubnetError;

impl Subnet {
    /// The network of `prefix` bits that `address` is in. `prefix` above 32 counts as 32.
    pub const fn new(address: Ipv4Addr, prefix: u8) -> Self {
        let prefix = if prefix > 32 { 32 } else { prefix };
        let network = address.to_bits() & Self::mask(prefix);
        Self { network: Ipv4Addr::from_bits(network), prefix }
    }

    const fn mask(prefix: u8) -> u32 {
        if prefix == 0 { 0 } else { u32::MAX << (32 - prefix as u32) }
    }

    /// Its first address.
    pub const fn network(self) -> Ipv4Addr {
        self.network
    }

    /// Its last address.
    pub const fn last(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network.to_bits() | !Self::mask(self.prefix))
    }

    /// Bits that all its addresses share.
    pub const fn prefix(self) -> u8 {
        self.prefix
    }

    /// Whether `address` is in it.
    pub const fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & Self::mask(self.prefix) == self.network.to_bits()
    }

    /// Whether all of `other` is in it.
    pub const fn covers(self, other: Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.network)
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl FromStr for Subnet {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Self, SubnetError> {
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        let address: Ipv4Addr = address.parse().map_err(|_| SubnetError)?;
        let prefix: u8 = prefix.parse().map_err(|_| SubnetError)?;
        let subnet = Self::new(address, prefix);
        // Host bits that are set are more likely a mistake than a wish.
        if prefix > 32 || subnet.network != address { Err(SubnetError) } else { Ok(subnet) }
    }
}

impl TryFrom<String> for Subnet {
    type Error = SubnetError;

    fn try_from(text: String) -> Result<Self, SubnetError> {
        text.parse()
    }
}

impl From<Subnet> for String {
    fn from(subnet: Subnet) -> String {
        subnet.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Subnet {
        text.parse().expect("a network")
    }

    #[test]
    fn both_ends_of_a_network_are_in_it_and_their_neighbours_are_not() {
        for (text, first, last, below, above) in [
            ("10.200.0.0/16", "10.200.0.0", "10.200.255.255", "10.199.255.255", "10.201.0.0"),
            ("172.16.0.0/12", "172.16.0.0", "172.31.255.255", "172.15.255.255", "172.32.0.0"),
            ("100.64.0.0/10", "100.64.0.0", "100.127.255.255", "100.63.255.255", "100.128.0.0"),
            ("8.8.8.8/32", "8.8.8.8", "8.8.8.8", "8.8.8.7", "8.8.8.9"),
        ] {
            let subnet = net(text);
            let address = |t: &str| t.parse::<Ipv4Addr>().expect("an address");
            assert_eq!((subnet.network(), subnet.last()), (address(first), address(last)));
            assert!(subnet.contains(address(first)) && subnet.contains(address(last)), "{text}");
            assert!(!subnet.contains(address(below)) && !subnet.contains(address(above)), "{text}");
        }
        assert_eq!(net("240.0.0.0/4").last(), Ipv4Addr::BROADCAST);
        assert!(net("0.0.0.0/0").contains(Ipv4Addr::BROADCAST));
    }

    #[test]
    fn covering_is_not_symmetric() {
        assert!(net("10.0.0.0/8").covers(net("10.200.0.0/16")));
        assert!(!net("10.200.0.0/16").covers(net("10.0.0.0/8")));
        assert!(net("10.0.0.0/8").covers(net("10.0.0.0/8")));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for bad in ["", "10.0.0.0/33", "10.0.0.1/8", "10.0.0/8", "::/0", "10.0.0.0/-1", "10.0.0.0/8/8"] {
            assert_eq!(bad.parse::<Subnet>(), Err(SubnetError), "{bad}");
        }
        assert_eq!(net("1.2.3.4").prefix(), 32);
    }
}
