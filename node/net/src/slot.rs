//! Slots and which indexes are free.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::config::NetConfig;
use crate::error::NetError;

/// The addresses of one sandbox. A plain value: keep `index` to take the slot over after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slot {
    /// Names the slot on this host.
    pub index: u32,
    /// The sandbox's address: its servers answer there from this host.
    pub address: Ipv4Addr,
    /// The sandbox's default gateway and name server.
    pub gateway: Ipv4Addr,
    /// The host's end of the veth pair.
    pub interface: String,
}

impl Slot {
    pub(crate) fn new(config: &NetConfig, index: u32) -> Option<Self> {
        Some(Self {
            index,
            address: config.address(index)?,
            gateway: config.gateway(),
            interface: config.interface(index),
        })
    }

    /// The sandbox's own hardware address: the same in every life of the slot, so that nobody's neighbour table is
    /// ever wrong.
    pub(crate) fn guest_mac(&self) -> [u8; 6] {
        let [a, b, c, d] = self.address.octets();
        [0x02, 0x48, a, b, c, d]
    }

    /// The host's end of the pair.
    pub(crate) fn host_mac(&self) -> [u8; 6] {
        let [a, b, c, d] = self.address.octets();
        [0x02, 0x49, a, b, c, d]
    }
}

/// Hands out indexes round and round, so that an address is used again only after all others: whatever the kernel still
/// tracks about its last use is long forgotten then.
#[derive(Debug)]
pub(crate) struct Indexes {
    next: u32,
    used: HashSet<u32>,
}

impl Indexes {
    /// `start` should be random: a daemon that was restarted does not know where the last one was.
    pub(crate) fn new(start: u32) -> Self {
        Self { next: start, used: HashSet::new() }
    }

    pub(crate) fn take(&mut self, config: &NetConfig) -> Result<u32, NetError> {
        let exhausted = NetError::Exhausted { limit: config.max_slots };
        if u32::try_from(self.used.len()).is_ok_and(|used| used >= config.max_slots) {
            return Err(exhausted);
        }
        let capacity = config.capacity().max(1);
        for _ in 0..capacity {
            let index = self.next % capacity;
            self.next = (index + 1) % capacity;
            if self.used.insert(index) {
                return Ok(index);
            }
        }
        Err(exhausted)
    }

    /// False when it is in use already.
    pub(crate) fn take_exactly(&mut self, index: u32) -> bool {
        self.used.insert(index)
    }

    pub(crate) fn give_back(&mut self, index: u32) {
        self.used.remove(&index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(max_slots: u32) -> NetConfig {
        NetConfig { subnet: "10.9.9.0/24".parse().expect("subnet"), max_slots, ..NetConfig::default() }
    }

    #[test]
    fn an_index_comes_back_only_after_all_others() {
        let config = config(2);
        let mut indexes = Indexes::new(251);
        let mut seen = Vec::new();
        for _ in 0..253 {
            let index = indexes.take(&config).expect("free");
            assert!(Slot::new(&config, index).is_some());
            seen.push(index);
            indexes.give_back(index);
        }
        assert_eq!(&seen[..3], &[251, 252, 0]);
        assert_eq!(seen.iter().collect::<HashSet<_>>().len(), 253);
        assert_eq!(indexes.take(&config).expect("free"), 251);
    }

    #[test]
    fn the_limit_is_named_and_taken_indexes_are_skipped() {
        let config = config(2);
        let mut indexes = Indexes::new(0);
        assert!(indexes.take_exactly(0));
        assert!(!indexes.take_exactly(0));
        assert_eq!(indexes.take(&config).expect("free"), 1);
        let error = indexes.take(&config).expect_err("full");
        assert!(error.is_exhausted());
        assert!(error.to_string().contains("limit 2"), "{error}");
    }

    #[test]
    fn hardware_addresses_are_local_unicast_and_all_different() {
        let config = config(253);
        let mut seen = HashSet::new();
        for slot in (0..253).filter_map(|n| Slot::new(&config, n)) {
            for mac in [slot.guest_mac(), slot.host_mac()] {
                assert_eq!(mac[0] & 3, 2);
                assert!(seen.insert(mac));
            }
        }
    }
}
