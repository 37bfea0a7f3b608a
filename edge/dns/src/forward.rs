//! Passing on queries about other names, so that this can be a machine's only name server.
//!
//! Messages go on and come back as they are. Each query has a socket and so a random port of its own.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::serve::{read_message, write_message};
use crate::zone::server_failure;

/// How long one server may take. Clients ask again after 5 s.
const DEADLINE: Duration = Duration::from_secs(2);

/// The largest message that there can be.
const MOST_BYTES: usize = 65_535;

/// How a query came, and so how it goes on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

/// Whether queries of `client` are passed on: those of this machine and of private networks. An open resolver on the internet is
/// abused within hours.
pub(crate) fn may_forward(client: IpAddr) -> bool {
    match client.to_canonical() {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_private() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

/// Asks one server after the other; when none answers, the answer says so.
pub(crate) async fn forward(servers: &[SocketAddr], query: &[u8], transport: Transport) -> Vec<u8> {
    for &server in servers {
        let asked = async {
            match transport {
                Transport::Udp => ask_udp(server, query).await,
                Transport::Tcp => ask_tcp(server, query).await,
            }
        };
        match timeout(DEADLINE, asked).await {
            Ok(Ok(answer)) => return answer,
            Ok(Err(error)) => tracing::debug!(%server, %error, "a name server cannot be asked"),
            Err(_) => tracing::debug!(%server, "a name server does not answer"),
        }
    }
    server_failure(query)
}

async fn ask_udp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    // A connected socket takes packets from that server alone.
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; MOST_BYTES];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if buffer.get(..length).is_some_and(|answer| answers(answer, query)) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn ask_tcp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    write_message(&mut stream, query).await?;
    match read_message(&mut stream).await? {
        Some(answer) if answers(&answer, query) => Ok(answer),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Whether `message` is a response with the id of `query`.
fn answers(message: &[u8], query: &[u8]) -> bool {
    const IS_RESPONSE: u8 = 0x80;
    message.get(2).is_some_and(|flags| flags & IS_RESPONSE != 0) && message.get(..2) == query.get(..2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_not_served() {
        for near in ["127.0.0.1", "10.1.1.1", "192.168.4.4", "::1", "fd00::9", "::ffff:10.0.0.1", "fe80::1"] {
            assert!(may_forward(near.parse().unwrap()), "{near}");
        }
        for far in ["8.8.8.8", "2001:4860::1", "::ffff:8.8.8.8"] {
            assert!(!may_forward(far.parse().unwrap()), "{far}");
        }
    }
}
