//! Interfaces, addresses and routes, in terms of netlink requests.

use std::io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::netlink::{Answer, Client, Message, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Nested, u32_at};
use crate::subnet::Subnet;

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_OPERSTATE: u16 = 16;
const IF_OPER_UP: u8 = 6;
const IFLA_LINKINFO: u16 = 18;
const IFLA_GROUP: u16 = 27;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFF_UP: u32 = 1;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_TABLE: u16 = 15;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_BOOT: u8 = 3;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;

const AF_INET: u8 = 2;

/// Lengths of the fixed headers.
const LINK_BYTES: usize = 16;
const ROUTE_BYTES: usize = 12;

/// The loopback interface has this index in every namespace.
pub(crate) const LOOPBACK: u32 = 1;

fn link_header(index: u32, is_up: bool) -> Vec<u8> {
    let up = if is_up { IFF_UP } else { 0 };
    let mut header = vec![0; 4];
    for word in [index, up, up] {
        header.extend_from_slice(&word.to_ne_bytes());
    }
    header
}

/// A veth pair that is about to be made.
#[derive(Debug)]
pub(crate) struct Veth<'a> {
    /// The host's end.
    pub interface: &'a str,
    pub mac: [u8; 6],
    /// The group that the host's end is in from its first moment.
    pub group: u32,
    /// The other end, and the descriptor of the namespace that it is made in.
    pub peer: &'a str,
    pub peer_mac: [u8; 6],
    pub peer_namespace: u32,
    pub mtu: u32,
}

impl Veth<'_> {
    /// Makes both ends, down: going up gives an interface IPv6 addresses, unless that is turned off first.
    pub(crate) fn create(&self) -> Message {
        let mut peer_name = self.peer.as_bytes().to_vec();
        peer_name.push(0);
        let peer = Nested::new(&link_header(0, false))
            .attr(IFLA_IFNAME, &peer_name)
            .attr(IFLA_ADDRESS, &self.peer_mac)
            .attr(IFLA_MTU, &self.mtu.to_ne_bytes())
            .attr(IFLA_NET_NS_FD, &self.peer_namespace.to_ne_bytes());
        let info = Nested::default()
            .attr(IFLA_INFO_KIND, b"veth\0")
            .attr(IFLA_INFO_DATA, Nested::default().attr(VETH_INFO_PEER, peer.bytes()).bytes());
        Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &link_header(0, false))
            .attr_text(IFLA_IFNAME, self.interface)
            .attr(IFLA_ADDRESS, &self.mac)
            .attr_u32(IFLA_MTU, self.mtu)
            .attr_u32(IFLA_GROUP, self.group)
            .attr(IFLA_LINKINFO, info.bytes())
    }
}

/// The index of an interface by its name.
pub(crate) fn index_of(client: &mut Client, name: &str) -> io::Result<u32> {
    let answer =
        client.get(Message::new(RTM_GETLINK, 0, &link_header(0, false)).attr_text(IFLA_IFNAME, name))?;
    link_index(&answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn link_index(answer: &Answer) -> Option<u32> {
    u32_at(answer.fixed(4..8)?, 0)
}

/// Takes an interface up.
pub(crate) fn set_up(index: u32) -> Message {
    Message::new(RTM_SETLINK, 0, &link_header(index, true))
}

/// Waits until an interface that has just got its carrier really sends: the kernel does the last step a little later,
/// and drops what is sent before.
///
/// # Errors
/// `TimedOut` when that takes longer than `limit`.
pub(crate) fn wait_until_sending(client: &mut Client, index: u32, limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        // On recent kernels asking also makes the kernel do that step now.
        let answer = client.get(Message::new(RTM_GETLINK, 0, &link_header(index, false)))?;
        if answer.attr(LINK_BYTES, IFLA_OPERSTATE) == Some(&[IF_OPER_UP]) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Puts an interface into a group.
pub(crate) fn set_group(name: &str, group: u32) -> Message {
    Message::new(RTM_SETLINK, 0, &link_header(0, false))
        .attr_text(IFLA_IFNAME, name)
        .attr_u32(IFLA_GROUP, group)
}

/// Removes an interface, its veth peer included. True when there was one.
pub(crate) fn remove(client: &mut Client, name: &str) -> io::Result<bool> {
    let request = Message::new(RTM_DELLINK, 0, &link_header(0, false)).attr_text(IFLA_IFNAME, name);
    match client.apply_one(request) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives an interface a single address.
pub(crate) fn add_address(index: u32, address: Ipv4Addr) -> Message {
    single_address(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, index, address)
}

/// Takes it away again.
pub(crate) fn remove_address(index: u32, address: Ipv4Addr) -> Message {
    single_address(RTM_DELADDR, 0, index, address)
}

fn single_address(kind: u16, flags: u16, index: u32, address: Ipv4Addr) -> Message {
    let mut header = vec![AF_INET, 32, 0, RT_SCOPE_UNIVERSE];
    header.extend_from_slice(&index.to_ne_bytes());
    Message::new(kind, flags, &header).attr(IFA_LOCAL, &address.octets()).attr(IFA_ADDRESS, &address.octets())
}

fn route(prefix: u8, scope: u8) -> Message {
    let mut header = vec![AF_INET, prefix, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT, scope, RTN_UNICAST];
    header.extend_from_slice(&0u32.to_ne_bytes());
    Message::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &header)
}

/// A route to a single address that is directly behind an interface.
pub(crate) fn add_host_route(index: u32, address: Ipv4Addr) -> Message {
    route(32, RT_SCOPE_LINK).attr(RTA_DST, &address.octets()).attr_u32(RTA_OIF, index)
}

/// The default route.
pub(crate) fn add_default_route(index: u32, gateway: Ipv4Addr) -> Message {
    route(0, RT_SCOPE_UNIVERSE).attr(RTA_GATEWAY, &gateway.octets()).attr_u32(RTA_OIF, index)
}

/// Fixes the hardware address that belongs to an address. Such entries are not counted against the kernel's limit of
/// neighbours (1024 by default), and nobody can claim the address by ARP.
pub(crate) fn add_neighbour(index: u32, address: Ipv4Addr, mac: [u8; 6]) -> Message {
    let mut header = vec![AF_INET, 0, 0, 0];
    header.extend_from_slice(&index.to_ne_bytes());
    header.extend_from_slice(&NUD_PERMANENT.to_ne_bytes());
    header.extend_from_slice(&[0, 0]);
    Message::new(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &header)
        .attr(NDA_DST, &address.octets())
        .attr(NDA_LLADDR, &mac)
}

/// One interface of this namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub index: u32,
    pub name: String,
    pub mtu: u32,
    pub group: u32,
}

/// All interfaces.
pub(crate) fn list(client: &mut Client) -> io::Result<Vec<Link>> {
    let answers = client.dump(Message::new(RTM_GETLINK, 0, &link_header(0, false)))?;
    let link = |answer: &Answer| {
        Some(Link {
            index: link_index(answer)?,
            name: answer.attr_text(LINK_BYTES, IFLA_IFNAME)?,
            mtu: answer.attr_u32(LINK_BYTES, IFLA_MTU)?,
            group: answer.attr_u32(LINK_BYTES, IFLA_GROUP).unwrap_or(0),
        })
    };
    Ok(answers.iter().filter_map(link).collect())
}

/// A unicast IPv4 route of the main table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pub to: Subnet,
    pub interface: u32,
    /// Whether its addresses are directly behind the interface.
    pub is_direct: bool,
    pub priority: u32,
}

/// All unicast IPv4 routes of the main table that lead out of one interface.
pub(crate) fn routes(client: &mut Client) -> io::Result<Vec<Route>> {
    let mut header = vec![AF_INET];
    header.resize(ROUTE_BYTES, 0);
    let answers = client.dump(Message::new(RTM_GETROUTE, 0, &header))?;
    Ok(answers.iter().filter_map(parse_route).collect())
}

fn parse_route(answer: &Answer) -> Option<Route> {
    let table =
        answer.attr_u32(ROUTE_BYTES, RTA_TABLE).or_else(|| answer.byte(4).map(u32::from)).unwrap_or(0);
    if answer.byte(0)? != AF_INET || table != u32::from(RT_TABLE_MAIN) || answer.byte(7)? != RTN_UNICAST {
        return None;
    }
    let to = match answer.attr(ROUTE_BYTES, RTA_DST) {
        Some(bytes) => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?),
        None => Ipv4Addr::UNSPECIFIED,
    };
    Some(Route {
        to: Subnet::new(to, answer.byte(1)?),
        interface: answer.attr_u32(ROUTE_BYTES, RTA_OIF)?,
        is_direct: answer.attr(ROUTE_BYTES, RTA_GATEWAY).is_none(),
        priority: answer.attr_u32(ROUTE_BYTES, RTA_PRIORITY).unwrap_or(0),
    })
}
