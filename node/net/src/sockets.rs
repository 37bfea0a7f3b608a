//! Sockets on the gateway address: what sandboxes reach of this host.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// A socket on the gateway address, which need not exist yet: it appears with the first slot.
pub(crate) fn bind_one(kind: SocketType, address: SocketAddrV4) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)?;
    sockopt::set_ip_freebind(&socket, true)?;
    if kind == SocketType::STREAM {
        // Connections of an earlier daemon that linger are no reason to fail.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}
