//! Queries over TCP: answers that do not fit into a datagram.
//!
//! Messages are relayed one by one rather than bytes copied, so that a sandbox cannot say anything but DNS messages to
//! the server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hutch_types::supervise::Supervisor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::Shared;
use super::message;

/// How long a client may take for its next query.
const IDLE: Duration = Duration::from_secs(10);

/// How long one server may take to connect and answer.
const SERVER_DEADLINE: Duration = Duration::from_secs(4);

/// How long a client may take to read an answer.
const WRITE_DEADLINE: Duration = Duration::from_secs(5);

/// Queries on one connection.
const MOST_QUERIES: usize = 64;

/// After an error of the listener, such as no descriptors left.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>, supervisor: Supervisor) {
    loop {
        let accepted = tokio::select! {
            () = supervisor.stopping() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "accept a DNS connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some(permit) = shared.client(from).and_then(|client| shared.connections.admit(client)) else {
            shared.count_dropped();
            continue;
        };
        let (shared, stopping) = (Arc::clone(&shared), supervisor.clone());
        supervisor.spawn("dns-connection", async move {
            tokio::select! {
                () = stopping.stopping() => {}
                ended = converse(stream, &shared) => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a DNS connection ended");
                    }
                }
            }
            drop(permit);
        });
    }
}

async fn converse(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    for _ in 0..MOST_QUERIES {
        let Some(query) = timeout(IDLE, read_message(&mut client)).await?? else { return Ok(()) };
        if !message::is_query(&query) {
            shared.count_dropped();
            return Ok(());
        }
        let answer = resolve(&query, shared).await;
        timeout(WRITE_DEADLINE, write_message(&mut client, &answer)).await??;
    }
    Ok(())
}

async fn resolve(query: &[u8], shared: &Shared) -> Vec<u8> {
    shared.asked.fetch_add(1, Ordering::Relaxed);
    for server in shared.upstreams.current() {
        match timeout(SERVER_DEADLINE, ask(server, query)).await {
            Ok(Ok(answer)) => return answer,
            Ok(Err(error)) => tracing::debug!(%server, %error, "a name server cannot be asked over TCP"),
            Err(_) => tracing::debug!(%server, "a name server does not answer over TCP"),
        }
    }
    shared.failed.fetch_add(1, Ordering::Relaxed);
    message::server_failure(query)
}

async fn ask(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    write_message(&mut stream, query).await?;
    match read_message(&mut stream).await? {
        Some(answer) if message::answers(&answer, query) => Ok(answer),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A message behind its length; `None` when the peer closed the connection.
async fn read_message(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let len = match stream.read_u16().await {
        Ok(len) => len,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut message = vec![0; usize::from(len)];
    stream.read_exact(&mut message).await?;
    Ok(Some(message))
}

async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let len = u16::try_from(message.len()).map_err(io::Error::other)?;
    let mut framed = len.to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed).await
}
