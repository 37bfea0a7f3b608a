//! Asking name servers directly.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// How long a server may take.
pub(super) const DEADLINE: Duration = Duration::from_secs(3);

/// A server did not answer, or not sensibly.
#[derive(Debug, thiserror::Error)]
#[error("{server} cannot be asked")]
pub(super) struct LookupError {
    server: SocketAddr,
    #[source]
    source: io::Error,
}

/// What `server` answers about `name`. A truncated answer is asked for again over TCP.
pub(super) async fn ask(server: SocketAddr, name: &Name, kind: RecordType) -> Result<Message, LookupError> {
    let mut query = Message::query();
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(name.clone(), kind));
    let failed = |source| LookupError { server, source };
    let bytes = query.to_vec().map_err(|e| failed(io::Error::other(e)))?;
    let asked = async {
        let answer = over_udp(server, &query, &bytes).await?;
        if !answer.metadata.truncation {
            return Ok(answer);
        }
        Message::from_vec(&exchange(server, &bytes).await?).map_err(io::Error::other)
    };
    match tokio::time::timeout(DEADLINE, asked).await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
    }
}

async fn over_udp(server: SocketAddr, query: &Message, bytes: &[u8]) -> io::Result<Message> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    // A connected socket takes packets from that server alone.
    socket.connect(server).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; 65_535];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let Ok(answer) = Message::from_vec(buffer.get(..length).unwrap_or_default()) else { continue };
        if answer.metadata.id == query.metadata.id && answer.queries == query.queries {
            return Ok(answer);
        }
    }
}

/// Sends one message over TCP and returns the answer as it came. The caller sets the deadline.
pub(super) async fn exchange(server: SocketAddr, message: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}
