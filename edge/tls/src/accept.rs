//! The handshake.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::identity::{Current, provider};

/// Bounds of the handshake.
#[derive(Debug, Clone, Copy)]
pub struct TlsBounds {
    /// Handshakes at a time; further connections are closed at once. A handshake costs a signature, so this bounds what strangers
    /// can make the server compute.
    pub max_handshakes: usize,
    /// How long a client may take from connecting until the handshake is done.
    pub handshake_timeout: Duration,
}

impl Default for TlsBounds {
    fn default() -> Self {
        Self { max_handshakes: 512, handshake_timeout: Duration::from_secs(10) }
    }
}

/// Why there is no TLS connection. Clients cause all of these; none is worth more than a debug line.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// [`TlsBounds::max_handshakes`] is reached.
    #[error("too many handshakes at a time")]
    Busy,
    /// [`TlsBounds::handshake_timeout`] is over.
    #[error("the client did not finish the handshake in time")]
    TimedOut,
    /// The client does not speak TLS, does not trust the certificate, or is gone.
    #[error("the handshake failed")]
    Failed(#[source] io::Error),
}

/// Makes TLS connections out of plain ones, with the certificate in force, offering `h2` and `http/1.1`.
#[derive(Clone)]
pub struct Accept {
    acceptor: TlsAcceptor,
    free: Arc<Semaphore>,
    bounds: TlsBounds,
}

impl fmt::Debug for Accept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accept").field("bounds", &self.bounds).finish_non_exhaustive()
    }
}

impl Accept {
    /// Serves what `current` holds at the time of each handshake. TLS 1.2 and 1.3.
    ///
    /// # Errors
    /// When the algorithms of this build do not fit these versions, which they do.
    pub fn new(current: Current, bounds: TlsBounds) -> Result<Self, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(current));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            free: Arc::new(Semaphore::new(bounds.max_handshakes)),
            bounds,
        })
    }

    /// Shakes hands on `stream`. Not cancellation-safe: the stream is gone when this is dropped.
    ///
    /// # Errors
    /// [`HandshakeError`]; the stream is closed then.
    pub async fn accept<S>(&self, stream: S) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let _permit = self.free.try_acquire().map_err(|_| HandshakeError::Busy)?;
        match tokio::time::timeout(self.bounds.handshake_timeout, self.acceptor.accept(stream)).await {
            Ok(shaken) => shaken.map_err(HandshakeError::Failed),
            Err(_) => Err(HandshakeError::TimedOut),
        }
    }

    /// The bounds in force.
    pub fn bounds(&self) -> TlsBounds {
        self.bounds
    }
}
