//! The DNS relay: what sandboxes have as name server.
//!
//! Queries are passed on to the host's own servers and answers back, as they are: nothing is parsed beyond the header's
//! id. Each query to a server has a socket and so a random port of its own, and takes answers from that server alone.
//!
//! Bounds, and what happens beyond them: queries in flight in total and per sandbox (dropped and counted; resolvers ask
//! again), TCP connections in total and per sandbox (closed at once).

mod message;
mod sources;
mod tcp;
mod udp;
mod upstreams;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hutch_types::supervise::Supervisor;
use parking_lot::Mutex;
use rustix::net::SocketType;
use tokio::net::{TcpListener, UdpSocket};

use crate::config::NetConfig;
use crate::error::{Attempt, NetError};
use crate::sockets::bind_one;
use crate::subnet::Subnet;
use sources::Sources;
use upstreams::Upstreams;

const DNS_PORT: u16 = 53;

/// Queries in flight.
const MOST_QUERIES: usize = 1024;
const MOST_QUERIES_PER_SANDBOX: usize = 64;

/// TCP connections.
const MOST_CONNECTIONS: usize = 256;
const MOST_CONNECTIONS_PER_SANDBOX: usize = 8;

/// What the relay did so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DnsStats {
    /// Queries passed on, over UDP and TCP.
    pub queries: u64,
    /// Queries and connections dropped, because a bound was reached or they were malformed.
    pub dropped: u64,
    /// Queries that no server answered in time.
    pub failed: u64,
}

/// Sockets on the gateway address and what their tasks share.
#[derive(Debug)]
pub(crate) struct DnsRelay {
    port: u16,
    /// Taken by [`DnsRelay::start`].
    sockets: Mutex<Option<(OwnedFd, OwnedFd)>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    clients: Subnet,
    gateway: Ipv4Addr,
    upstreams: Upstreams,
    queries: Arc<Sources>,
    connections: Arc<Sources>,
    asked: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

impl DnsRelay {
    /// Binds the sockets. The gateway address need not exist yet: it appears with the first slot.
    ///
    /// Where another server has port 53 of all addresses, any other port is taken.
    pub(crate) fn bind(config: &NetConfig) -> Result<Self, NetError> {
        let gateway = config.gateway();
        let bind = |port| bind_both(gateway, port);
        let bound = match bind(DNS_PORT) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => bind(0),
            other => other,
        };
        let (udp, tcp, port) = bound.attempting(|| format!("bind the DNS relay to {gateway}"))?;
        let shared = Shared {
            clients: config.subnet,
            gateway,
            upstreams: Upstreams::new(config.dns_upstreams.clone(), gateway),
            queries: Arc::new(Sources::new(MOST_QUERIES, MOST_QUERIES_PER_SANDBOX)),
            connections: Arc::new(Sources::new(MOST_CONNECTIONS, MOST_CONNECTIONS_PER_SANDBOX)),
            asked: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        };
        Ok(Self { port, sockets: Mutex::new(Some((udp, tcp))), shared: Arc::new(shared) })
    }

    /// The port on the gateway address.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Serves until `supervisor` stops. The first call alone has an effect.
    pub(crate) fn start(&self, supervisor: &Supervisor) -> Result<(), NetError> {
        let Some((udp, tcp)) = self.sockets.lock().take() else { return Ok(()) };
        let adopt = || -> io::Result<_> {
            Ok((UdpSocket::from_std(udp.into())?, TcpListener::from_std(tcp.into())?))
        };
        let (udp, tcp) = adopt().attempting(|| "start the DNS relay".to_owned())?;
        supervisor.spawn("dns-udp", udp::serve(udp, Arc::clone(&self.shared), supervisor.clone()));
        supervisor.spawn("dns-tcp", tcp::serve(tcp, Arc::clone(&self.shared), supervisor.clone()));
        Ok(())
    }

    pub(crate) fn stats(&self) -> DnsStats {
        DnsStats {
            queries: self.shared.asked.load(Ordering::Relaxed),
            dropped: self.shared.dropped.load(Ordering::Relaxed),
            failed: self.shared.failed.load(Ordering::Relaxed),
        }
    }
}

impl Shared {
    /// The sandbox that a packet comes from. The firewall lets nobody else through; processes of the host are refused
    /// here.
    fn client(&self, from: SocketAddr) -> Option<Ipv4Addr> {
        match from.ip() {
            IpAddr::V4(address) if address != self.gateway && self.clients.contains(address) => Some(address),
            _ => None,
        }
    }

    fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// A UDP and a TCP socket on the same port; `port` 0 lets the kernel choose.
fn bind_both(address: Ipv4Addr, port: u16) -> io::Result<(OwnedFd, OwnedFd, u16)> {
    let tcp = bind_one(SocketType::STREAM, SocketAddrV4::new(address, port))?;
    rustix::net::listen(&tcp, 128)?;
    let bound = SocketAddr::try_from(rustix::net::getsockname(&tcp)?)?;
    let udp = bind_one(SocketType::DGRAM, SocketAddrV4::new(address, bound.port()))?;
    Ok((udp, tcp, bound.port()))
}
