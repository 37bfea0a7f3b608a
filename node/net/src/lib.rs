//! The network of sandboxes.
//!
//! Every sandbox has a *slot*: an address, and a veth pair between the host and the sandbox's network namespace. What
//! may pass is decided on the host's side by one nftables table that this crate owns, so nothing inside a sandbox can
//! change it.
//!
//! ```text
//! sandbox netns                     host                                    outside
//! eth0 10.200.0.9/32 ── veth ── ht-7 10.200.0.1/32 ── nftables, masquerade ── uplink
//!        default via 10.200.0.1        └ DNS relay on 10.200.0.1:53 ── the host's resolvers
//! ```
//!
//! * **Policy is the interface's group**: the table denies everything from an interface that is not in the "allow"
//!   group, and interfaces are made in the "deny" group. Changing the policy of a sandbox is one netlink message,
//!   atomic, without touching the table, and it cuts established connections too.
//! * Private, link-local, loopback, multicast and other sandboxes' addresses, the networks the host itself is in, and
//!   every service of the host are denied always. So is IPv6, and any source address but the slot's own.
//! * All slots have the same gateway address, so the relay listens once, and so does the guest service (HTTP on port 80,
//!   [`Network::take_service`]), which sandboxes reach under every policy.
//! * Nothing is made ahead: moving a ready veth peer into a namespace waits for RCU grace periods (tens of
//!   milliseconds), making the pair in place takes about one.
//!
//! A host firewall that drops by default (Docker's `FORWARD`, ufw, firewalld) keeps dropping: a packet must pass every
//! table. [`NetSupport::detect`] names such chains.

mod config;
mod connections;
mod dns;
mod error;
mod links;
mod netlink;
mod netns;
mod network;
mod nft;
mod rules;
mod service;
mod slot;
mod sockets;
mod subnet;
mod support;
mod sysctl;

pub use config::NetConfig;
pub use dns::DnsStats;
pub use error::NetError;
pub use network::Network;
pub use slot::Slot;
pub use subnet::{Subnet, SubnetError};
pub use support::NetSupport;
