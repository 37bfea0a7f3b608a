//! How long the listener waits for a client that sends nothing, or sends its request drop by drop.
//!
//! A plain read timeout would cut uploads and idle keep-alive connections alike. This stream wrapper knows which of the three it
//! is in: *idle* between requests (long patience: SDKs keep connections for minutes), in the middle of a request's *head* (short
//! patience, against slow-header attacks), or *busy* with a request (none: streams live as long as both sides want).

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// How many requests of a connection are being served.
#[derive(Debug, Clone, Default)]
pub(crate) struct Busy(Arc<Requests>);

#[derive(Debug, Default)]
struct Requests {
    served: AtomicUsize,
    /// Who reads from the connection; it must look at the time again when the last request is done.
    reader: Mutex<Option<Waker>>,
}

/// Marks one request as being served until it is dropped with the response's body.
#[derive(Debug)]
pub(crate) struct BusyGuard(Busy);

impl Busy {
    pub(crate) fn enter(&self) -> BusyGuard {
        self.0.served.fetch_add(1, Ordering::Relaxed);
        BusyGuard(self.clone())
    }

    fn is_busy(&self) -> bool {
        self.0.served.load(Ordering::Relaxed) > 0
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        let requests = &self.0.0;
        if requests.served.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(reader) = requests.reader.lock().take()
        {
            reader.wake();
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Head,
    Busy,
}

/// A stream that gives up on clients as the module says.
#[derive(Debug)]
pub(crate) struct Patient<S> {
    stream: S,
    sleep: Pin<Box<Sleep>>,
    busy: Busy,
    phase: Phase,
    head: Duration,
    idle: Duration,
    multiplexed: Option<bool>,
}

impl<S> Patient<S> {
    pub(crate) fn new(stream: S, busy: Busy, head: Duration, idle: Duration) -> Self {
        Self {
            stream,
            sleep: Box::pin(tokio::time::sleep(head)),
            busy,
            phase: Phase::Head,
            head,
            idle,
            multiplexed: None,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        let got = buf.filled().get(before..).unwrap_or_default();
        if this.multiplexed.is_none() && !got.is_empty() {
            // The HTTP/2 preface; such connections carry frames of their own at any time and have their own pings.
            this.multiplexed = Some(got.starts_with(b"PRI"));
        }
        let now_busy = this.busy.is_busy() || this.multiplexed == Some(true);
        let next = match (this.phase, now_busy, got.is_empty()) {
            (_, true, _) => Phase::Busy,
            (Phase::Busy, false, true) => Phase::Idle,
            (Phase::Busy | Phase::Idle, false, false) => Phase::Head,
            (phase, false, _) => phase,
        };
        if next != this.phase {
            this.phase = next;
            let patience = if next == Phase::Head { this.head } else { this.idle };
            this.sleep.as_mut().reset(Instant::now() + patience);
        }
        if read.is_pending() && this.phase == Phase::Busy && this.multiplexed != Some(true) {
            *this.busy.0.reader.lock() = Some(cx.waker().clone());
            if !this.busy.is_busy() {
                // It became idle since it was looked at.
                cx.waker().wake_by_ref();
            }
        }
        if read.is_pending() && this.phase != Phase::Busy && this.sleep.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn pair() -> (Patient<tokio::io::DuplexStream>, tokio::io::DuplexStream, Busy) {
        let (a, b) = tokio::io::duplex(64);
        let busy = Busy::default();
        (Patient::new(a, busy.clone(), Duration::from_secs(15), Duration::from_secs(600)), b, busy)
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_drips_is_given_up() {
        let (mut s, mut client, _busy) = pair();
        client.write_all(b"GET").await.unwrap();
        let started = Instant::now();
        let mut buf = [0; 16];
        assert_eq!(s.read(&mut buf).await.unwrap(), 3);
        let error = s.read(&mut buf).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), 15);
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_connection_may_be_silent_for_hours() {
        let (mut s, mut client, busy) = pair();
        let guard = busy.enter();
        let mut buf = [0; 16];
        assert!(tokio::time::timeout(Duration::from_secs(7200), s.read(&mut buf)).await.is_err());
        client.write_all(b"x").await.unwrap();
        assert_eq!(s.read(&mut buf).await.unwrap(), 1);
        let started = Instant::now();
        // The reader waits already when the request ends.
        let end = async {
            tokio::task::yield_now().await;
            drop(guard);
        };
        let (read, ()) = tokio::join!(s.read(&mut buf), end);
        assert!(read.is_err());
        assert_eq!(started.elapsed().as_secs(), 600, "idle patience once nothing is being served");
    }
}
