//! Finding out that the other end of a silent connection is gone, without ever ending one whose other end is there.
//!
//! An event stream or a WebSocket may be silent for hours. No timer of ours ends it: the kernel asks the other end now and then,
//! which also keeps translators and firewalls in between from forgetting the connection, and resets it when there is no answer.

use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
use std::time::Duration;
use tokio::net::TcpStream;

/// Silence before the first question: below the 60 s after which the most impatient load balancers forget a connection.
const IDLE: Duration = Duration::from_secs(45);
const INTERVAL: Duration = Duration::from_secs(15);
const QUESTIONS: u32 = 4;

/// Lets the kernel ask.
///
/// # Errors
/// The socket's; the connection is gone already then.
pub(crate) fn keep_alive(stream: &TcpStream) -> std::io::Result<()> {
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, IDLE)?;
    set_tcp_keepintvl(stream, INTERVAL)?;
    set_tcp_keepcnt(stream, QUESTIONS)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt::{socket_keepalive, tcp_keepidle};

    use super::*;

    #[tokio::test]
    async fn the_kernel_is_told() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(!socket_keepalive(&stream).unwrap());
        keep_alive(&stream).unwrap();
        assert!(socket_keepalive(&stream).unwrap());
        assert_eq!(tcp_keepidle(&stream).unwrap(), IDLE);
    }
}
