//! Settings.

use std::net::{Ipv4Addr, SocketAddr};

use crate::error::NetError;
use crate::subnet::Subnet;

/// An interface name has at most 15 characters: this many, a dash, and an index of 8 digits.
const MOST_PREFIX_CHARS: usize = 6;

/// Settings of a [`crate::Network`]. Daemons on the same host need different `subnet`, `prefix` and `table`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetConfig {
    /// Addresses of sandboxes; the first one is every sandbox's gateway. At least a /24.
    pub subnet: Subnet,
    /// Host interfaces are called `<prefix>-<slot index>`. 1 to 6 lower-case letters and digits.
    pub prefix: String,
    /// Name of the nftables table (family `inet`). Replaced when opening.
    pub table: String,
    /// Where the DNS relay asks. Empty: the servers in the host's `/etc/resolv.conf`, followed as it changes.
    pub dns_upstreams: Vec<SocketAddr>,
    /// Most slots at a time.
    pub max_slots: u32,
    /// MTU inside sandboxes. `None`: that of the host's default route, at most 1500.
    pub mtu: Option<u32>,
    /// Denied always, beyond the private and special ranges.
    pub denied: Vec<Subnet>,
    /// Whether networks that the host is directly connected to are denied too, public ones included: what lives there
    /// is the host's neighbour rather than the internet. They are looked up when opening.
    pub deny_host_networks: bool,
    /// Most tracked connections of one sandbox to the outside, DNS included, so that one cannot fill the host's table.
    /// New ones beyond it are dropped.
    pub max_connections: u32,
}

impl Default for NetConfig {
    fn default() -> Self {
        Self {
            subnet: Subnet::new(Ipv4Addr::new(10, 200, 0, 0), 16),
            prefix: "ht".to_owned(),
            table: "hutch".to_owned(),
            dns_upstreams: Vec::new(),
            max_slots: 4096,
            mtu: None,
            denied: Vec::new(),
            deny_host_networks: true,
            max_connections: 8192,
        }
    }
}

impl NetConfig {
    /// Settings for the `n`th daemon of a host: 0 has the defaults, up to 55 more do not clash with it nor one another.
    pub fn numbered(n: u8) -> Self {
        let defaults = Self::default();
        if n == 0 {
            return defaults;
        }
        Self {
            subnet: Subnet::new(Ipv4Addr::new(10, 200 + n.min(55), 0, 0), 16),
            prefix: format!("ht{n}"),
            table: format!("hutch{n}"),
            ..defaults
        }
    }

    /// Every sandbox's gateway and name server.
    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.subnet.network().to_bits() | 1)
    }

    /// The address of slot `index`, unless the subnet is too small for it.
    pub(crate) fn address(&self, index: u32) -> Option<Ipv4Addr> {
        (index < self.capacity()).then(|| Ipv4Addr::from_bits(self.subnet.network().to_bits() + 2 + index))
    }

    /// How many slots the subnet has addresses for.
    pub(crate) fn capacity(&self) -> u32 {
        (self.subnet.last().to_bits() - self.subnet.network().to_bits()).saturating_sub(2)
    }

    /// The group of interfaces that may send nothing. Different for different subnets, so that several daemons do not
    /// share it; below 2^31, since the kernel keeps it as a signed number.
    pub(crate) fn deny_group(&self) -> u32 {
        self.subnet.network().to_bits() & 0x7fff_ff00
    }

    /// The group of interfaces that may reach the outside.
    pub(crate) fn allow_group(&self) -> u32 {
        self.deny_group() + 1
    }

    /// The host's interface of slot `index`.
    pub(crate) fn interface(&self, index: u32) -> String {
        format!("{}-{index}", self.prefix)
    }

    /// The slot that `interface` belongs to.
    pub(crate) fn index_of(&self, interface: &str) -> Option<u32> {
        let index = interface.strip_prefix(self.prefix.as_str())?.strip_prefix('-')?.parse().ok()?;
        (self.interface(index) == interface).then_some(index)
    }

    pub(crate) fn check(&self) -> Result<(), NetError> {
        let bad = |what: String| Err(NetError::Config { what });
        if !(8..=24).contains(&self.subnet.prefix()) {
            return bad(format!("the sandbox subnet {} must be a /8 to /24", self.subnet));
        }
        let first = self.subnet.network();
        let is_unusable =
            first.is_loopback() || first.is_link_local() || first.octets()[0] == 0 || first >= MULTICAST;
        if is_unusable || !SPECIAL_RANGES.iter().any(|range| range.covers(self.subnet)) {
            return bad(format!("the sandbox subnet {} is not in a private range", self.subnet));
        }
        let is_name = |name: &str, most: usize| {
            (1..=most).contains(&name.len())
                && name.starts_with(|c: char| c.is_ascii_lowercase())
                && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        if !is_name(&self.prefix, MOST_PREFIX_CHARS) {
            return bad(format!("{:?} is not usable as a prefix of interface names", self.prefix));
        }
        if !is_name(&self.table, 32) {
            return bad(format!("{:?} is not usable as a table name", self.table));
        }
        if self.max_slots == 0 || self.max_slots > self.capacity() {
            return bad(format!(
                "{} has addresses for {} slots, not {}",
                self.subnet,
                self.capacity(),
                self.max_slots
            ));
        }
        if self.mtu.is_some_and(|mtu| !(576..=65_535).contains(&mtu)) {
            return bad("the MTU of sandboxes must be 576 to 65535".to_owned());
        }
        if self.max_connections == 0 {
            return bad("sandboxes need at least one connection".to_owned());
        }
        if self.denied.iter().any(|subnet| subnet.prefix() == 0) {
            return bad("0.0.0.0/0 cannot be denied for everybody".to_owned());
        }
        Ok(())
    }
}

/// The first multicast address; all above are multicast, reserved or broadcast.
const MULTICAST: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 0);

/// Never reachable from a sandbox: "this network", private, shared (CGNAT), loopback, link-local (cloud metadata
/// included), protocol assignments, benchmarking, multicast, reserved and broadcast.
pub(crate) const SPECIAL_RANGES: [Subnet; 11] = [
    Subnet::new(Ipv4Addr::new(0, 0, 0, 0), 8),
    Subnet::new(Ipv4Addr::new(10, 0, 0, 0), 8),
    Subnet::new(Ipv4Addr::new(100, 64, 0, 0), 10),
    Subnet::new(Ipv4Addr::new(127, 0, 0, 0), 8),
    Subnet::new(Ipv4Addr::new(169, 254, 0, 0), 16),
    Subnet::new(Ipv4Addr::new(172, 16, 0, 0), 12),
    Subnet::new(Ipv4Addr::new(192, 0, 0, 0), 24),
    Subnet::new(Ipv4Addr::new(192, 168, 0, 0), 16),
    Subnet::new(Ipv4Addr::new(198, 18, 0, 0), 15),
    Subnet::new(Ipv4Addr::new(224, 0, 0, 0), 4),
    Subnet::new(Ipv4Addr::new(240, 0, 0, 0), 4),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lie_between_the_gateway_and_the_broadcast_address() {
        let config = NetConfig {
            subnet: "10.7.3.0/24".parse().expect("subnet"),
            max_slots: 10,
            ..NetConfig::default()
        };
        assert_eq!(config.gateway(), Ipv4Addr::new(10, 7, 3, 1));
        assert_eq!(config.address(0), Some(Ipv4Addr::new(10, 7, 3, 2)));
        assert_eq!(config.address(252), Some(Ipv4Addr::new(10, 7, 3, 254)));
        assert_eq!(config.address(253), None);
    }

    #[test]
    fn daemons_of_different_numbers_share_nothing() {
        for n in 1..=55 {
            let (a, b) = (NetConfig::numbered(n - 1), NetConfig::numbered(n));
            a.check().expect("valid");
            b.check().expect("valid");
            assert!(!a.subnet.covers(b.subnet));
            assert_ne!(a.table, b.table);
            assert_ne!(a.deny_group(), b.deny_group());
            assert_eq!(a.index_of(&b.interface(3)), None);
            assert_eq!(b.index_of(&a.interface(3)), None);
        }
    }

    #[test]
    fn interface_names_fit_and_are_read_back() {
        let config = NetConfig { prefix: "hutch9".to_owned(), ..NetConfig::default() };
        assert!(config.interface(16_777_213).len() <= 15);
        assert_eq!(config.index_of("hutch9-12"), Some(12));
        for other in ["hutch9-", "hutch9-012", "hutch9-+1", "hutch9-1x", "hutch-1", "eth0"] {
            assert_eq!(config.index_of(other), None, "{other}");
        }
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let refused = |change: fn(&mut NetConfig)| {
            let mut config = NetConfig::default();
            change(&mut config);
            assert!(matches!(config.check(), Err(NetError::Config { .. })), "{config:?}");
        };
        refused(|c| c.prefix = "a; flush ruleset".to_owned());
        refused(|c| c.prefix = "toolong".to_owned());
        refused(|c| c.table = "x {".to_owned());
        refused(|c| c.subnet = Subnet::new(Ipv4Addr::new(8, 8, 0, 0), 16));
        refused(|c| c.subnet = Subnet::new(Ipv4Addr::new(127, 1, 0, 0), 16));
        refused(|c| c.subnet = Subnet::new(Ipv4Addr::new(240, 1, 0, 0), 16));
        refused(|c| c.subnet = Subnet::new(Ipv4Addr::new(10, 0, 0, 0), 30));
        refused(|c| c.max_slots = 0);
        refused(|c| c.max_slots = 100_000);
        refused(|c| c.mtu = Some(100));
        refused(|c| c.denied = vec![Subnet::new(Ipv4Addr::UNSPECIFIED, 0)]);
        NetConfig::default().check().expect("the defaults work");
    }
}
