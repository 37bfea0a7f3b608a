//! Cutting a sandbox's TCP connections to the outside.
//!
//! Before a sandbox is saved: what the other ends think of the connections cannot be saved with it, so they end the way a
//! reset does. Listening sockets and connections inside the sandbox (to a loopback address) stay.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::{Answer, Client, Message};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

/// Every state but `TIME_WAIT` (6), `CLOSE` (7) and `LISTEN` (10), as bits.
const CONNECTED: u32 = 0b1_1011_0011_1110;

/// Bytes of `struct inet_diag_sockid`, which names a socket.
const ID_BYTES: usize = 48;
/// Where it is in `struct inet_diag_msg`.
const ID_AT: usize = 4;

/// Cuts the connections of the network namespace that this thread is in. Returns how many there were.
pub(crate) fn cut_outside() -> io::Result<usize> {
    let mut client = Client::open_sock_diag()?;
    let mut destroy = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let all = request(SOCK_DIAG_BY_FAMILY, family, CONNECTED, &[0; ID_BYTES]);
        for socket in client.dump(all)? {
            if let Some(id) = outside(family, &socket) {
                destroy.push(request(SOCK_DESTROY, family, CONNECTED, id));
            }
        }
    }
    let mut cut = 0;
    // In pieces, so that the answers fit into the socket's buffer.
    for some in destroy.chunks(64) {
        for result in client.apply(some)? {
            match result {
                Ok(()) => cut += 1,
                // It ended by itself.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(cut)
}

/// `struct inet_diag_req_v2`.
fn request(kind: u16, family: u8, states: u32, id: &[u8]) -> Message {
    let mut fixed = vec![family, IPPROTO_TCP, 0, 0];
    fixed.extend_from_slice(&states.to_ne_bytes());
    fixed.extend_from_slice(id);
    Message::new(kind, 0, &fixed)
}

/// The name of the socket in a `struct inet_diag_msg`, when its other end is not on a loopback address.
fn outside(family: u8, socket: &Answer) -> Option<&[u8]> {
    let id = socket.fixed(ID_AT..ID_AT + ID_BYTES)?;
    // Ports (4 bytes), source address (16), destination address (16).
    let peer: IpAddr = match family {
        AF_INET => <[u8; 4]>::try_from(id.get(20..24)?).map(Ipv4Addr::from).ok()?.into(),
        _ => <[u8; 16]>::try_from(id.get(20..36)?).map(Ipv6Addr::from).ok()?.into(),
    };
    (!peer.to_canonical().is_loopback()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(peer: &[u8]) -> Answer {
        let mut body = vec![0; ID_AT + 20];
        body.extend_from_slice(peer);
        body.resize(72, 0);
        Answer::of(body)
    }

    #[test]
    fn loopback_of_every_kind_is_inside() {
        let mapped = |v4: [u8; 4]| Ipv4Addr::from(v4).to_ipv6_mapped().octets();
        assert!(outside(AF_INET, &socket(&[127, 0, 0, 1])).is_none());
        assert!(outside(AF_INET, &socket(&[127, 9, 0, 1])).is_none());
        assert!(outside(AF_INET6, &socket(&Ipv6Addr::LOCALHOST.octets())).is_none());
        assert!(outside(AF_INET6, &socket(&mapped([127, 0, 0, 1]))).is_none());
        assert!(outside(AF_INET, &socket(&[10, 0, 0, 1])).is_some());
        assert!(outside(AF_INET6, &socket(&mapped([10, 0, 0, 1]))).is_some());
    }

    #[test]
    fn a_cut_answer_names_no_socket() {
        assert!(outside(AF_INET, &Answer::of(vec![0; 20])).is_none());
    }

    #[test]
    fn the_states_are_those_of_a_connection() {
        for state in [1, 2, 3, 4, 5, 8, 9, 11, 12] {
            assert_ne!(CONNECTED & (1 << state), 0, "{state}");
        }
        for state in [6, 7, 10] {
            assert_eq!(CONNECTED & (1 << state), 0, "{state}");
        }
    }
}
