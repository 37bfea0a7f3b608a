//! Which servers are asked.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::DNS_PORT;

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// How long what was read from the file is taken without looking again.
const FRESH_FOR: Duration = Duration::from_secs(2);

/// More servers are not tried: a query would have timed out long before.
const MOST_SERVERS: usize = 3;

/// The servers of the settings, or those of the host's `resolv.conf`, which changes as networks come and go.
#[derive(Debug)]
pub(super) struct Upstreams {
    fixed: Vec<SocketAddr>,
    path: PathBuf,
    /// Our own address, which would be a loop.
    own: Ipv4Addr,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    checked: Option<Instant>,
    modified: Option<SystemTime>,
    servers: Vec<SocketAddr>,
}

impl Upstreams {
    pub(super) fn new(fixed: Vec<SocketAddr>, own: Ipv4Addr) -> Self {
        Self { fixed, path: PathBuf::from(RESOLV_CONF), own, known: Mutex::default() }
    }

    /// The servers, in the order in which they are tried. Reads a small file now and then.
    pub(super) fn current(&self) -> Vec<SocketAddr> {
        if !self.fixed.is_empty() {
            return self.fixed.clone();
        }
        let mut known = self.known.lock();
        if known.checked.is_none_or(|at| at.elapsed() >= FRESH_FOR) {
            known.checked = Some(Instant::now());
            let modified = fs::metadata(&self.path).and_then(|meta| meta.modified()).ok();
            if modified.is_none() || modified != known.modified {
                known.modified = modified;
                let text = fs::read_to_string(&self.path).unwrap_or_default();
                known.servers = parse(&text, self.own);
                if known.servers.is_empty() {
                    tracing::warn!(path = %self.path.display(), "no name servers: names do not resolve in sandboxes");
                }
            }
        }
        known.servers.clone()
    }
}

fn parse(text: &str, own: Ipv4Addr) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            if words.next() != Some("nameserver") {
                return None;
            }
            // A zone (`fe80::1%eth0`) cannot be expressed in an address: such servers are left out.
            words.next()?.parse::<IpAddr>().ok()
        })
        .filter(|address| *address != IpAddr::V4(own))
        .map(|address| SocketAddr::new(address, DNS_PORT))
        .take(MOST_SERVERS)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);

    #[test]
    fn servers_are_read_in_order_and_nothing_else() {
        let text = "# nameserver 1.1.1.1\nsearch example.org\nnameserver 10.200.0.1\nnameserver  8.8.8.8 # x\n\
                    nameserver ::1\nnameserver fe80::1%eth0\nnameserver nonsense\nnameserver 9.9.9.9\nnameserver 1.0.0.1";
        let servers: Vec<String> = parse(text, OWN).iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["8.8.8.8:53", "[::1]:53", "9.9.9.9:53"]);
    }

    #[test]
    fn a_changed_file_is_followed() {
        let dir = tempfile::tempdir().expect("tempdir");
        let mut upstreams = Upstreams::new(Vec::new(), OWN);
        upstreams.path = dir.path().join("resolv.conf");
        assert_eq!(upstreams.current(), []);
        fs::write(&upstreams.path, "nameserver 8.8.8.8").expect("write");
        upstreams.known.lock().checked = None;
        assert_eq!(upstreams.current(), ["8.8.8.8:53".parse().expect("address")]);
        fs::remove_file(&upstreams.path).expect("remove");
        assert_eq!(upstreams.current().len(), 1, "not looked at again that soon");
        upstreams.known.lock().checked = None;
        assert_eq!(upstreams.current(), []);
    }

    #[test]
    fn configured_servers_come_before_the_file() {
        let fixed = vec!["127.0.0.1:5353".parse().expect("address")];
        assert_eq!(Upstreams::new(fixed.clone(), OWN).current(), fixed);
    }
}
