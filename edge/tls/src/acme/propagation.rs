//! Waiting until the text records can be seen. An authority that looks too early counts a failure, and some remember for an hour that
//! there was nothing.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_proto::rr::{Name, RData, RecordType};
use tokio::time::Instant;

use super::lookup::ask;

/// How often is looked.
const EVERY: Duration = Duration::from_secs(2);
const DNS_PORT: u16 = 53;
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// More authoritative servers are not asked.
const MOST_SERVERS: usize = 8;

/// The records cannot be seen.
#[derive(Debug, thiserror::Error)]
pub enum PropagationError {
    /// The name is none.
    #[error("{0} is not a name for a text record")]
    BadName(String),
    /// Some server does not have them, or none answers.
    #[error("the text record {record} was not seen within {} s: {}", timeout.as_secs(), states.join(", "))]
    NotSeen {
        /// Its name.
        record: String,
        /// How long was waited.
        timeout: Duration,
        /// What each server answered last.
        states: Vec<String>,
    },
}

/// Waits until every server that answers, and at least one, shows all `values` at `record`. Without `servers`, the authoritative ones
/// are found through the host's resolvers; where that is not possible, the authority is left to look for itself.
pub(super) async fn wait(
    record: &str,
    values: &[String],
    servers: &[SocketAddr],
    timeout: Duration,
) -> Result<(), PropagationError> {
    let mut name = Name::from_ascii(record).map_err(|_| PropagationError::BadName(record.to_owned()))?;
    name.set_fqdn(true);
    let servers = if servers.is_empty() {
        let resolvers = resolvers(&std::fs::read_to_string(RESOLV_CONF).unwrap_or_default());
        authoritative(&name, &resolvers).await
    } else {
        servers.to_vec()
    };
    if servers.is_empty() {
        tracing::warn!(
            record,
            "the authoritative servers are not found: whether the record can be seen is not checked"
        );
        return Ok(());
    }
    let deadline = Instant::now() + timeout;
    loop {
        let mut states = Vec::new();
        let (mut seen, mut missing) = (0, 0);
        for &server in &servers {
            let state = match ask(server, &name, RecordType::TXT).await {
                Ok(answer) if has_all(&answer.answers, values) => {
                    seen += 1;
                    "has it"
                }
                Ok(_) => {
                    missing += 1;
                    "does not have it"
                }
                Err(_) => "does not answer",
            };
            states.push(format!("{server} {state}"));
        }
        if seen > 0 && missing == 0 {
            return Ok(());
        }
        if Instant::now() + EVERY > deadline {
            return Err(PropagationError::NotSeen { record: record.to_owned(), timeout, states });
        }
        tokio::time::sleep(EVERY).await;
    }
}

fn has_all(records: &[hickory_proto::rr::Record], values: &[String]) -> bool {
    let texts: Vec<Vec<u8>> = records
        .iter()
        .filter_map(|record| match &record.data {
            RData::TXT(txt) => Some(txt.txt_data.concat()),
            _ => None,
        })
        .collect();
    values.iter().all(|value| texts.iter().any(|text| text == value.as_bytes()))
}

/// The servers of the zone that `name` is in, as the first of `resolvers` knows them.
async fn authoritative(name: &Name, resolvers: &[SocketAddr]) -> Vec<SocketAddr> {
    let Some(&resolver) = resolvers.first() else { return Vec::new() };
    let mut zone = name.base_name();
    while !zone.is_root() {
        let hosts: Vec<Name> = match ask(resolver, &zone, RecordType::NS).await {
            Ok(answer) => answer
                .answers
                .iter()
                .filter_map(|record| match &record.data {
                    RData::NS(host) => Some(host.0.clone()),
                    _ => None,
                })
                .collect(),
            Err(_) => return Vec::new(),
        };
        if !hosts.is_empty() {
            return addresses(resolver, &hosts).await;
        }
        zone = zone.base_name();
    }
    Vec::new()
}

async fn addresses(resolver: SocketAddr, hosts: &[Name]) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for host in hosts.iter().take(MOST_SERVERS) {
        let Ok(answer) = ask(resolver, host, RecordType::A).await else { continue };
        // One address of each is enough: its others show the same data.
        let address = answer.answers.iter().find_map(|record| match &record.data {
            RData::A(a) => Some(IpAddr::V4(a.0)),
            _ => None,
        });
        found.extend(address.map(|ip| SocketAddr::new(ip, DNS_PORT)));
    }
    found
}

fn resolvers(text: &str) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some("nameserver")).then(|| words.next()?.parse::<IpAddr>().ok())?
        })
        .map(|ip| SocketAddr::new(ip, DNS_PORT))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_are_read() {
        let found =
            resolvers("# nameserver 1.1.1.1\nnameserver 10.0.0.2\nsearch x\nnameserver ::1\nnameserver bad");
        assert_eq!(found, ["10.0.0.2:53".parse().unwrap(), "[::1]:53".parse().unwrap()]);
    }

    #[tokio::test]
    async fn the_servers_of_the_zone_are_found() {
        let zone = hutch_dns::Zone::new("hutch.test", "10.1.2.3".parse().unwrap()).unwrap();
        let server =
            hutch_dns::DnsServer::bind("127.0.0.1:0".parse().unwrap(), zone, Vec::new()).await.unwrap();
        let resolver = server.local_addr().unwrap();
        server.start(&hutch_types::supervise::Supervisor::new());
        let find = async |name: &str| authoritative(&Name::from_ascii(name).unwrap(), &[resolver]).await;
        assert_eq!(find("_acme-challenge.a.b.hutch.test.").await, ["10.1.2.3:53".parse().unwrap()]);
        assert_eq!(find("_acme-challenge.example.com.").await, []);
        assert_eq!(authoritative(&Name::from_ascii("a.hutch.test.").unwrap(), &[]).await, []);
    }

    #[tokio::test(start_paused = true)]
    async fn servers_that_are_silent_are_told() {
        let gone = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let error = wait("_acme-challenge.a.test", &["v".to_owned()], &[gone], Duration::from_secs(10))
            .await
            .unwrap_err();
        assert!(error.to_string().ends_with(&format!("within 10 s: {gone} does not answer")), "{error}");
    }
}
