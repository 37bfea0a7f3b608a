//! The listener of the guest service: what sandboxes reach over HTTP on their gateway address.
//!
//! Only the socket is made here. Whoever takes it answers, and tells callers apart by their address alone: the firewall
//! lets a packet through only with the source address of the slot that it comes from.

use std::io;
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use rustix::net::SocketType;

use crate::config::NetConfig;
use crate::error::{Attempt, NetError};
use crate::sockets::bind_one;

/// The port as sandboxes see it.
pub(crate) const SERVICE_PORT: u16 = 80;

/// Connections that wait to be accepted; more are refused by the kernel.
const BACKLOG: i32 = 128;

/// One listening socket for all slots.
#[derive(Debug)]
pub(crate) struct ServiceSocket {
    port: u16,
    listener: Mutex<Option<TcpListener>>,
}

impl ServiceSocket {
    /// Binds the socket. Where a server of the host has port 80 of all addresses, any other port is taken.
    pub(crate) fn bind(config: &NetConfig) -> Result<Self, NetError> {
        let gateway = config.gateway();
        let bind = |port| -> io::Result<OwnedFd> {
            let socket = bind_one(SocketType::STREAM, SocketAddrV4::new(gateway, port))?;
            rustix::net::listen(&socket, BACKLOG)?;
            Ok(socket)
        };
        let bound = match bind(SERVICE_PORT) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => bind(0),
            other => other,
        };
        let bound = bound.and_then(|socket| {
            let address = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
            Ok((address.port(), TcpListener::from(socket)))
        });
        let (port, listener) = bound.attempting(|| format!("bind the guest service to {gateway}"))?;
        Ok(Self { port, listener: Mutex::new(Some(listener)) })
    }

    /// The port on the gateway address.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The socket, once.
    pub(crate) fn take(&self) -> Option<TcpListener> {
        self.listener.lock().take()
    }
}
