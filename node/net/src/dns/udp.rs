//! Queries over UDP.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hutch_types::supervise::Supervisor;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::Shared;
use super::message::{self, MOST_BYTES};

/// How long one server may take. Guests ask again after 3 s.
const SERVER_DEADLINE: Duration = Duration::from_secs(2);

/// After an error that is not about one packet.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn serve(socket: UdpSocket, shared: Arc<Shared>, supervisor: Supervisor) {
    let socket = Arc::new(socket);
    let mut buffer = vec![0; MOST_BYTES];
    loop {
        let received = tokio::select! {
            () = supervisor.stopping() => return,
            received = socket.recv_from(&mut buffer) => received,
        };
        let (query, from) = match received {
            Ok((len, from)) => (buffer.get(..len).unwrap_or_default(), from),
            Err(error) => {
                tracing::debug!(%error, "receive a DNS query");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let permit = shared.client(from).and_then(|client| shared.queries.admit(client));
        let (true, Some(permit)) = (message::is_query(query), permit) else {
            shared.count_dropped();
            continue;
        };
        let (query, socket, shared) = (query.to_vec(), Arc::clone(&socket), Arc::clone(&shared));
        supervisor.spawn("dns-query", async move {
            let answer = resolve(&query, &shared).await;
            if let Err(error) = socket.send_to(&answer, from).await {
                tracing::debug!(%error, "answer a DNS query");
            }
            drop(permit);
        });
    }
}

/// Asks one server after the other; when none answers, the answer says so.
async fn resolve(query: &[u8], shared: &Shared) -> Vec<u8> {
    shared.asked.fetch_add(1, Ordering::Relaxed);
    for server in shared.upstreams.current() {
        match timeout(SERVER_DEADLINE, ask(server, query)).await {
            Ok(Ok(answer)) => return answer,
            Ok(Err(error)) => tracing::debug!(%server, %error, "a name server cannot be asked"),
            Err(_) => tracing::debug!(%server, "a name server does not answer"),
        }
    }
    shared.failed.fetch_add(1, Ordering::Relaxed);
    message::server_failure(query)
}

async fn ask(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    // A connected socket takes packets from that server alone.
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; MOST_BYTES];
    loop {
        let len = socket.recv(&mut buffer).await?;
        if buffer.get(..len).is_some_and(|answer| message::answers(answer, query)) {
            buffer.truncate(len);
            return Ok(buffer);
        }
    }
}
