//! The sockets.
//!
//! Bounds, and what happens beyond them: queries being passed on (dropped: resolvers ask again), TCP connections (closed at once).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hutch_types::supervise::Supervisor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::forward::{Transport, forward, may_forward};
use crate::zone::{Verdict, Zone};

/// Queries that are being passed on at a time.
const MOST_FORWARDED: usize = 256;
/// TCP connections at a time.
const MOST_CONNECTIONS: usize = 64;
/// Queries on one connection.
const MOST_PER_CONNECTION: usize = 64;
/// How long a client may take for its next query, and to read an answer.
const IDLE: Duration = Duration::from_secs(10);
/// After an error of a socket that is not about one packet.
const PAUSE: Duration = Duration::from_millis(50);
/// Largest query that is read from a datagram.
const MOST_QUERY: usize = 4096;

/// The address cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another program has it.
    #[error(
        "{address} is in use for DNS: stop what listens there, or choose another address with --dns, such as 127.0.0.2:53"
    )]
    InUse {
        /// Which one.
        address: SocketAddr,
    },
    /// Any other reason.
    #[error("cannot listen for DNS on {address}")]
    Other {
        /// Which one.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A name server that has its address.
#[derive(Debug)]
pub struct DnsServer {
    udp: UdpSocket,
    tcp: TcpListener,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    zone: Zone,
    forward: Vec<SocketAddr>,
}

impl DnsServer {
    /// Takes `address` for UDP and TCP. Queries about names outside of `zone` go to `forward`, in this order; without any they are
    /// refused, which makes resolvers ask their next server.
    ///
    /// # Errors
    /// [`BindError`] when the address cannot be had.
    pub async fn bind(address: SocketAddr, zone: Zone, forward: Vec<SocketAddr>) -> Result<Self, BindError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse { address },
            _ => BindError::Other { address, source },
        };
        let tcp = TcpListener::bind(address).await.map_err(failed)?;
        // The same port, also when the kernel has chosen it.
        let udp = UdpSocket::bind(tcp.local_addr().map_err(failed)?).await.map_err(failed)?;
        Ok(Self { udp, tcp, shared: Arc::new(Shared { zone, forward }) })
    }

    /// Its address.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Serves until `supervisor` stops.
    pub fn start(self, supervisor: &Supervisor) {
        supervisor.spawn("dns-udp", serve_udp(self.udp, Arc::clone(&self.shared), supervisor.clone()));
        supervisor.spawn("dns-tcp", serve_tcp(self.tcp, self.shared, supervisor.clone()));
    }
}

async fn serve_udp(socket: UdpSocket, shared: Arc<Shared>, supervisor: Supervisor) {
    let socket = Arc::new(socket);
    let free = Arc::new(Semaphore::new(MOST_FORWARDED));
    let mut buffer = vec![0; MOST_QUERY];
    loop {
        let received = tokio::select! {
            () = supervisor.stopping() => return,
            received = socket.recv_from(&mut buffer) => received,
        };
        let (query, from) = match received {
            Ok((length, from)) => (buffer.get(..length).unwrap_or_default(), from),
            Err(error) => {
                tracing::debug!(%error, "receive a DNS query");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        match shared.zone.judge(query) {
            Verdict::Elsewhere(_) if !shared.forward.is_empty() && may_forward(from.ip()) => {
                let Ok(permit) = Arc::clone(&free).try_acquire_owned() else {
                    tracing::debug!("too many DNS queries to pass on; one was dropped");
                    continue;
                };
                let (query, socket, shared) = (query.to_vec(), Arc::clone(&socket), Arc::clone(&shared));
                supervisor.spawn("dns-forward", async move {
                    let answer = forward(&shared.forward, &query, Transport::Udp).await;
                    send(&socket, &answer, from).await;
                    drop(permit);
                });
            }
            Verdict::Answer(answer) | Verdict::Elsewhere(answer) => send(&socket, &answer, from).await,
            Verdict::Ignore => {}
        }
    }
}

async fn send(socket: &UdpSocket, answer: &[u8], to: SocketAddr) {
    if let Err(error) = socket.send_to(answer, to).await {
        tracing::debug!(%error, "answer a DNS query");
    }
}

async fn serve_tcp(listener: TcpListener, shared: Arc<Shared>, supervisor: Supervisor) {
    let free = Arc::new(Semaphore::new(MOST_CONNECTIONS));
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
        let Ok(permit) = Arc::clone(&free).try_acquire_owned() else { continue };
        let (shared, stopping) = (Arc::clone(&shared), supervisor.clone());
        supervisor.spawn("dns-connection", async move {
            tokio::select! {
                () = stopping.stopping() => {}
                ended = converse(stream, from, &shared) => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a DNS connection ended");
                    }
                }
            }
            drop(permit);
        });
    }
}

async fn converse(mut client: TcpStream, from: SocketAddr, shared: &Shared) -> io::Result<()> {
    for _ in 0..MOST_PER_CONNECTION {
        let Some(query) = timeout(IDLE, read_message(&mut client)).await?? else { return Ok(()) };
        let answer = match shared.zone.judge(&query) {
            Verdict::Elsewhere(_) if !shared.forward.is_empty() && may_forward(from.ip()) => {
                forward(&shared.forward, &query, Transport::Tcp).await
            }
            Verdict::Answer(answer) | Verdict::Elsewhere(answer) => answer,
            Verdict::Ignore => return Ok(()),
        };
        timeout(IDLE, write_message(&mut client, &answer)).await??;
    }
    Ok(())
}

/// A message behind its length; `None` when the peer closed the connection.
pub(crate) async fn read_message(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let length = match stream.read_u16().await {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut message = vec![0; usize::from(length)];
    stream.read_exact(&mut message).await?;
    Ok(Some(message))
}

pub(crate) async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::op::{Message, Query, ResponseCode};
    use hickory_proto::rr::{Name, RecordType};

    async fn server(domain: &str, forward: Vec<SocketAddr>) -> (SocketAddr, Supervisor) {
        let zone = Zone::new(domain, "10.1.2.3".parse().unwrap()).unwrap();
        let server = DnsServer::bind("127.0.0.1:0".parse().unwrap(), zone, forward).await.unwrap();
        let address = server.local_addr().unwrap();
        let supervisor = Supervisor::new();
        server.start(&supervisor);
        (address, supervisor)
    }

    fn query(name: &str) -> Vec<u8> {
        let mut query = Message::query();
        query.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
        query.to_vec().unwrap()
    }

    async fn over_udp(server: SocketAddr, query: &[u8]) -> Message {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(query, server).await.unwrap();
        let mut buffer = [0; 4096];
        let length = timeout(IDLE, socket.recv(&mut buffer)).await.expect("an answer").unwrap();
        Message::from_vec(&buffer[..length]).unwrap()
    }

    async fn over_tcp(server: SocketAddr, queries: &[Vec<u8>]) -> Vec<Message> {
        let mut stream = TcpStream::connect(server).await.unwrap();
        let mut answers = Vec::new();
        for query in queries {
            write_message(&mut stream, query).await.unwrap();
            let answer = timeout(IDLE, read_message(&mut stream)).await.unwrap().unwrap().unwrap();
            answers.push(Message::from_vec(&answer).unwrap());
        }
        answers
    }

    #[tokio::test]
    async fn both_transports_answer_and_refuse() {
        let (address, supervisor) = server("hutch.test", Vec::new()).await;
        let (ours, theirs) = (query("api.hutch.test."), query("example.com."));
        assert_eq!(over_udp(address, &ours).await.answers.len(), 1);
        assert_eq!(over_udp(address, &theirs).await.metadata.response_code, ResponseCode::Refused);
        let answers = over_tcp(address, &[ours, theirs]).await;
        assert_eq!(answers[0].answers.len(), 1);
        assert_eq!(answers[1].metadata.response_code, ResponseCode::Refused);
        assert_eq!(supervisor.shutdown(IDLE).await, 0);
    }

    #[tokio::test]
    async fn other_names_go_to_the_configured_servers() {
        let (upstream, _other) = server("example.com", Vec::new()).await;
        let (address, _ours) = server("hutch.test", vec![upstream]).await;
        let theirs = query("www.example.com.");
        assert_eq!(over_udp(address, &theirs).await.answers.len(), 1);
        assert_eq!(over_tcp(address, &[theirs]).await[0].answers.len(), 1);
        let nobodys = over_udp(address, &query("example.org.")).await;
        assert_eq!(nobodys.metadata.response_code, ResponseCode::Refused, "as the server there says");
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_said() {
        let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let (address, _supervisor) = server("hutch.test", vec![gone]).await;
        let answer = over_udp(address, &query("example.com.")).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    }

    #[tokio::test]
    async fn an_address_in_use_is_said() {
        let (address, _supervisor) = server("hutch.test", Vec::new()).await;
        let zone = Zone::new("hutch.test", "10.1.2.3".parse().unwrap()).unwrap();
        let error = DnsServer::bind(address, zone, Vec::new()).await.unwrap_err();
        assert!(matches!(error, BindError::InUse { .. }), "{error}");
    }
}
