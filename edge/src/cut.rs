//! Cutting a connection off, so that the client can tell it from an orderly end.
//!
//! When a server inside a sandbox is gone in the middle of its answer (the sandbox was killed while a command ran), an HTTP/1.1
//! client must learn that the answer is not complete. Closing the connection in order says so only between the lines, by a missing
//! last chunk; some clients, such as E2B's Python SDK 2.45, take that for a fault of the protocol rather than for a lost
//! connection, and then do not ask whether the sandbox is gone. So the connection is reset.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A client's connection as [`crate::Front`] serves it: plain, or what TLS leaves of it.
pub trait ClientStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// From now on, dropping the stream resets the connection, so that the client sees it break off. What the kernel has sent
    /// already still arrives before the reset.
    ///
    /// # Errors
    /// The socket's; the connection is gone already then.
    fn reset_when_dropped(&self) -> io::Result<()>;
}

impl ClientStream for TcpStream {
    fn reset_when_dropped(&self) -> io::Result<()> {
        self.set_zero_linger()
    }
}

impl<S: ClientStream> ClientStream for TlsStream<S> {
    fn reset_when_dropped(&self) -> io::Result<()> {
        self.get_ref().0.reset_when_dropped()
    }
}

/// Says that a connection is to be cut off rather than closed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cut(Arc<AtomicBool>);

impl Cut {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A client's connection that is reset when it is dropped after its [`Cut`] was set, and closed in order otherwise.
#[derive(Debug)]
pub(crate) struct Cuttable<S: ClientStream> {
    stream: S,
    cut: Cut,
}

impl<S: ClientStream> Cuttable<S> {
    pub(crate) fn new(stream: S, cut: Cut) -> Self {
        Self { stream, cut }
    }
}

impl<S: ClientStream> Drop for Cuttable<S> {
    fn drop(&mut self) {
        if self.cut.is_set()
            && let Err(error) = self.stream.reset_when_dropped()
        {
            tracing::debug!(%error, "a connection could not be reset");
        }
    }
}

impl<S: ClientStream> AsyncRead for Cuttable<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: ClientStream> AsyncWrite for Cuttable<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.cut.is_set() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
