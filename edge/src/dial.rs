//! Connects to a server inside a sandbox.
//!
//! Servers that listen on all addresses answer at the guest's own address. Those that listen on localhost only are
//! reached through a tunnel that envd opens on request, so that they need no scanning and answer at once.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use hutch_node_api::{Route, RouteSource};
use rustls::pki_types::ServerName;

use crate::inside_tls::{Inside, InsideTls};
use crate::keepalive::keep_alive;
use crate::target::ENVD_PORT;

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const TUNNEL_LIMIT: Duration = Duration::from_secs(5);
/// A server that was just started gets this long before its port counts as closed.
const BACKOFF: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];
const TUNNEL_HEAD_MAX: usize = 8 * 1024;

/// Why no connection came about.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Nothing listens.
    #[error("port {0} is closed")]
    Closed(u16),
    /// The sandbox does not answer at all.
    #[error("the sandbox does not answer")]
    Unreachable(#[source] std::io::Error),
    /// The server does not speak TLS.
    #[error("the server does not speak TLS")]
    Tls(#[source] std::io::Error),
    /// The sandbox ended meanwhile.
    #[error("the sandbox is gone")]
    Gone,
}

/// Connects to `port` of the sandbox at `route`.
///
/// # Errors
/// [`DialError::Closed`] after about 0.75 s of refusals, [`DialError::Unreachable`] after 2 s without an answer.
pub async fn dial(route: &Route, port: u16) -> Result<TcpStream, DialError> {
    let mut waits = BACKOFF.iter();
    loop {
        match attempt(route, port).await {
            Err(DialError::Closed(port)) => match waits.next() {
                Some(wait) => tokio::time::sleep(*wait).await,
                None => return Err(DialError::Closed(port)),
            },
            other => return other,
        }
    }
}

async fn attempt(route: &Route, port: u16) -> Result<TcpStream, DialError> {
    let direct = if port == ENVD_PORT { route.envd_port } else { port };
    match connect(SocketAddr::new(route.address, direct)).await {
        Ok(stream) => Ok(stream),
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused && port == ENVD_PORT => {
            Err(DialError::Closed(port))
        }
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
            match tokio::time::timeout(TUNNEL_LIMIT, tunnel(route, port)).await {
                Ok(Ok(Some(stream))) => Ok(stream),
                Ok(Ok(None) | Err(_)) | Err(_) => Err(DialError::Closed(port)),
            }
        }
        Err(e) => Err(DialError::Unreachable(e)),
    }
}

async fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(address))
        .await
        .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    keep_alive(&stream)?;
    Ok(stream)
}

/// Asks envd for a tunnel to its localhost. `None`: nothing listens there either.
async fn tunnel(route: &Route, port: u16) -> std::io::Result<Option<TcpStream>> {
    let mut stream = connect(SocketAddr::new(route.address, route.envd_port)).await?;
    let head = format!(
        "GET /tunnel?port={port} HTTP/1.1\r\nHost: envd\r\nConnection: Upgrade\r\nUpgrade: hutch-tunnel\r\n\
         x-hutch-secret: {}\r\n\r\n",
        route.secret.expose()
    );
    stream.write_all(head.as_bytes()).await?;
    // Byte by byte up to the blank line: what follows belongs to the tunnelled server.
    let mut answer = Vec::with_capacity(256);
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= TUNNEL_HEAD_MAX {
            return Err(std::io::Error::other("the tunnel's answer has no end"));
        }
        answer.push(stream.read_u8().await?);
    }
    Ok(answer.starts_with(b"HTTP/1.1 101").then_some(stream))
}

/// Dials for the connection pool. A pool key is a sandbox id with a port, so an address that is given to a new sandbox
/// never meets a connection of an old one.
#[derive(Clone)]
pub struct Connector {
    routes: Arc<dyn RouteSource>,
    tls: InsideTls,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connector")
    }
}

impl Connector {
    /// Dials sandboxes that `routes` knows.
    pub fn new(routes: Arc<dyn RouteSource>) -> Self {
        Self { routes, tls: InsideTls::new() }
    }
}

impl tower::Service<Uri> for Connector {
    type Response = Io;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<Io, DialError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (routes, tls) = (Arc::clone(&self.routes), self.tls.clone());
        Box::pin(async move {
            let host = uri.host().unwrap_or_default();
            let (id, name) = host.split_once('.').map_or((host, None), |(id, name)| (id, Some(name)));
            let id = id.parse().map_err(|_| DialError::Gone)?;
            let route = routes.route(&id).await.ok_or(DialError::Gone)?;
            let stream = dial(&route, uri.port_u16().unwrap_or(0)).await?;
            let stream = if uri.scheme() == Some(&Scheme::HTTPS) {
                let name = name.and_then(|name| ServerName::try_from(name.to_owned()).ok());
                Inside::Tls(Box::new(tls.connect(name, stream).await.map_err(DialError::Tls)?))
            } else {
                Inside::Plain(stream)
            };
            Ok(Io { stream: TokioIo::new(stream), served: Served::default() })
        })
    }
}

/// A pooled connection.
#[derive(Debug)]
pub struct Io {
    stream: TokioIo<Inside>,
    served: Served,
}

/// Whether a connection has served a request already. Each answer that comes over it carries this as an extension.
#[derive(Debug, Clone, Default)]
pub(crate) struct Served(pub(crate) Arc<AtomicBool>);

impl Connection for Io {
    fn connected(&self) -> Connected {
        Connected::new().extra(self.served.clone())
    }
}

impl hyper::rt::Read for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl hyper::rt::Write for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    // Without it every byte of an upload would be copied once more, into one buffer.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
