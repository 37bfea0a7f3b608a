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
pub(crate) struct Cuttable {
    stream: TcpStream,
    cut: Cut,
}

impl Cuttable {
    pub(crate) fn new(stream: TcpStream, cut: Cut) -> Self {
        Self { stream, cut }
    }
}

impl Drop for Cuttable {
    fn drop(&mut self) {
        // What the kernel has sent already still arrives before the reset.
        if self.cut.is_set()
            && let Err(error) = self.stream.set_zero_linger()
        {
            tracing::debug!(%error, "a connection could not be reset");
        }
    }
}

impl AsyncRead for Cuttable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Cuttable {
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
