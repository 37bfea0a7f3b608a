//! `GET /tunnel?port=N` (internal): the host's way to servers that listen on the sandbox's loopback only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, Request, State as Shared};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::auth;
use crate::error::HttpError;
use crate::state::State;

const PROTOCOL: &str = "hutch-tunnel";
/// For one address; loopback answers at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const BUFFER: usize = 16 * 1024;

/// The query of `GET /tunnel`.
#[derive(Debug, Deserialize)]
pub(crate) struct Params {
    port: u16,
}

/// Connects to the port and, having switched protocols, passes bytes both ways; the end of one direction is passed on
/// while the other goes on. 502 when nothing listens.
pub(crate) async fn tunnel(
    Shared(state): Shared<Arc<State>>,
    Query(Params { port }): Query<Params>,
    mut request: Request,
) -> Result<Response, HttpError> {
    auth::require_host(&state, request.headers())?;
    if port == 0 || !asks_for_tunnel(request.headers()) {
        return Err(HttpError::bad_request(format!("a port and 'Upgrade: {PROTOCOL}' are expected")));
    }
    let Some(mut server) = connect(port).await else {
        return Err(HttpError::new(StatusCode::BAD_GATEWAY, format!("nothing listens on port {port}")));
    };
    let upgrade = hyper::upgrade::on(&mut request);
    let tasks = state.tasks.clone();
    state.tasks.spawn("tunnel", async move {
        let passing = async {
            // A client that leaves before the switch has nothing to pass.
            let Ok(client) = upgrade.await else { return };
            let mut client = TokioIo::new(client);
            // Either side may break the connection at any time; both learn it by the close.
            tokio::io::copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER, BUFFER).await.ok();
            client.shutdown().await.ok();
        };
        tokio::select! {
            () = passing => {}
            () = tasks.stopping() => {}
        }
    });
    let headers = [
        (header::CONNECTION, HeaderValue::from_static("upgrade")),
        (header::UPGRADE, HeaderValue::from_static(PROTOCOL)),
    ];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

fn asks_for_tunnel(headers: &HeaderMap) -> bool {
    headers.get(header::UPGRADE).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(PROTOCOL.as_bytes()))
}

/// Loopback first, then the addresses of the sandbox's own interfaces: a server may be bound to one of them alone.
async fn connect(port: u16) -> Option<TcpStream> {
    for address in
        [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].into_iter().chain(own_addresses())
    {
        let connecting = TcpStream::connect(SocketAddr::new(address, port));
        if let Ok(Ok(stream)) = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            // Whoever tunnels has done its own buffering.
            stream.set_nodelay(true).ok();
            return Some(stream);
        }
    }
    None
}

/// The addresses of all interfaces but loopback, read from /proc so that no resolver or netlink is needed.
fn own_addresses() -> Vec<IpAddr> {
    let trie = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let v6 = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let mut all: Vec<IpAddr> = Vec::new();
    for address in
        v4_of_trie(&trie).into_iter().map(IpAddr::V4).chain(v6_of_table(&v6).into_iter().map(IpAddr::V6))
    {
        if !address.is_loopback() && !all.contains(&address) {
            all.push(address);
        }
    }
    all
}

/// Local addresses: a leaf `|-- a.b.c.d` followed by `/32 host LOCAL`.
fn v4_of_trie(trie: &str) -> Vec<Ipv4Addr> {
    let mut last: Option<Ipv4Addr> = None;
    let mut found = Vec::new();
    for line in trie.lines().map(str::trim) {
        if let Some(leaf) = line.strip_prefix("|-- ") {
            last = leaf.trim().parse().ok();
        } else if line.starts_with("/32 host LOCAL") {
            found.extend(last);
        }
    }
    found
}

/// Global addresses: 32 hex digits, index, prefix length, scope `00`. Link-local ones need a scope id to connect to.
fn v6_of_table(table: &str) -> Vec<Ipv6Addr> {
    let parse = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (digits, scope) = (words.first()?, words.get(3)?);
        (*scope == "00").then(|| u128::from_str_radix(digits, 16).ok().map(Ipv6Addr::from)).flatten()
    };
    table.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_the_local_leaves() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.9.8.0\n        /30 link UNICAST\n     |-- 10.9.8.2\n        \
                    /32 host LOCAL\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 10.9.8.3\n        /32 link BROADCAST\n";
        let addresses: Vec<String> = v4_of_trie(trie).iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.9.8.2", "127.0.0.1"]);
    }

    #[test]
    fn only_global_v6_addresses_are_tried() {
        let table = "fe800000000000000000000000000001 02 40 20 80 eth0\n20010db8000000000000000000000002 02 40 00 80 eth0\nbad\n";
        assert_eq!(v6_of_table(table), ["2001:db8::2".parse::<Ipv6Addr>().unwrap()]);
    }
}
