//! The network of one daemon.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hutch_types::NetworkPolicy;
use hutch_types::supervise::Supervisor;
use parking_lot::Mutex;

use crate::config::NetConfig;
use crate::dns::{DnsRelay, DnsStats};
use crate::error::{Attempt, NetError};
use crate::links::{self, Link, Route};
use crate::netlink::Client;
use crate::netns::{self, on_own_thread};
use crate::service::ServiceSocket;
use crate::slot::{Indexes, Slot};
use crate::subnet::Subnet;
use crate::{nft, rules, sysctl};

/// The kernel's lock on network configuration is one for the whole host, so a step can wait for others.
const DEADLINE: Duration = Duration::from_secs(10);

/// A child that a daemon had just forked when it died holds the daemon's lock until it runs its program.
const CLAIM_PATIENCE: Duration = Duration::from_millis(500);

/// What Ethernet carries; larger uplinks gain little, and paths beyond them seldom carry more.
const MOST_MTU: u32 = 1500;

/// Slots, rules and the DNS relay of one daemon. Clones share the same network. Dropping it leaves everything as it is:
/// sandboxes outlive the daemon.
#[derive(Debug, Clone)]
pub struct Network {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: NetConfig,
    mtu: u32,
    indexes: Mutex<Indexes>,
    dns: DnsRelay,
    service: ServiceSocket,
    /// Held as long as this network is in use.
    _own: UnixDatagram,
}

/// What the host's own network looks like.
struct Host {
    networks: Vec<Subnet>,
    mtu: u32,
}

impl Network {
    /// Puts the rules in place, atomically replacing those of an earlier daemon, makes the host forward packets, and
    /// starts the DNS relay as a task of `supervisor`. Interfaces that exist already are not touched.
    ///
    /// # Errors
    /// [`NetError::Config`] and [`NetError::SubnetInUse`] for settings that do not fit, or a failed step.
    pub async fn open(config: NetConfig, supervisor: &Supervisor) -> Result<Self, NetError> {
        config.check()?;
        let own = claim(&config.table).await?;
        let probed = config.clone();
        let host = within(
            "look at the host's network",
            on_own_thread("look at the host's network", move || look(&probed)),
        )
        .await?;
        let dns = DnsRelay::bind(&config)?;
        let service = ServiceSocket::bind(&config)?;
        let denied = if config.deny_host_networks { host.networks } else { Vec::new() };
        nft::load(&rules::render(&config, &denied, dns.port(), service.port())).await?;
        enable_forwarding()?;
        dns.start(supervisor)?;
        let mut start = [0u8; 4];
        hutch_types::ids::fill_random(&mut start);
        let inner = Inner {
            mtu: config.mtu.unwrap_or(host.mtu),
            indexes: Mutex::new(Indexes::new(u32::from_ne_bytes(start))),
            config,
            dns,
            service,
            _own: own,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Reserves a slot. Nothing exists in the kernel until [`Self::attach`].
    ///
    /// # Errors
    /// [`NetError::Exhausted`].
    pub fn acquire(&self) -> Result<Slot, NetError> {
        let index = self.inner.indexes.lock().take(&self.inner.config)?;
        Slot::new(&self.inner.config, index).ok_or(NetError::NoSlot { index })
    }

    /// Connects the network namespace of process `pid`: makes `eth0` in it with the slot's address and a default route,
    /// and takes `lo` up. Everything is denied until [`Self::set_policy`]; this host reaches the sandbox at once.
    ///
    /// `pid` must stay that process until this returns. Dropping the future leaves the work to finish on its own:
    /// release the slot then.
    ///
    /// # Errors
    /// [`NetError::NoNamespace`], or a failed step. Then nothing is left of it; the slot is still to be released.
    pub async fn attach(&self, slot: &Slot, pid: i32) -> Result<(), NetError> {
        let what = format!("attach {} to process {pid}", slot.interface);
        let (group, mtu, slot) = (self.inner.config.deny_group(), self.inner.mtu, slot.clone());
        within(&what, on_own_thread(&what, move || netns::attach(&slot, pid, group, mtu))).await
    }

    /// Puts a policy in force: one atomic change, for established connections too.
    pub async fn set_policy(&self, slot: &Slot, policy: &NetworkPolicy) -> Result<(), NetError> {
        let config = &self.inner.config;
        let group = if policy.allow_internet_access { config.allow_group() } else { config.deny_group() };
        let name = slot.interface.clone();
        blocking(format!("set the network policy of {name}"), move |client| {
            client.apply_one(links::set_group(&name, group))
        })
        .await
    }

    /// Gives the sandbox of process `pid` addresses that it had on earlier slots, or takes them away: while it is restored, since
    /// it may still hold ends of connections that were cut then. What it sends from them is filtered all the same.
    ///
    /// # Errors
    /// [`NetError::NoNamespace`], or a failed step.
    pub async fn set_former_addresses(
        &self,
        pid: i32,
        addresses: &[Ipv4Addr],
        there: bool,
    ) -> Result<(), NetError> {
        if addresses.is_empty() {
            return Ok(());
        }
        let what = format!("set former addresses of process {pid}");
        let addresses = addresses.to_vec();
        within(&what, on_own_thread(&what, move || netns::set_former_addresses(pid, &addresses, there))).await
    }

    /// Cuts all TCP connections between the sandbox of process `pid` and the outside, as a reset would. Returns how many
    /// there were.
    ///
    /// # Errors
    /// [`NetError::NoNamespace`], or a kernel that cannot (`CONFIG_INET_DIAG_DESTROY`).
    pub async fn cut_connections(&self, pid: i32) -> Result<usize, NetError> {
        let what = format!("cut the connections of process {pid}");
        within(&what, on_own_thread(&what, move || netns::cut_connections(pid))).await
    }

    /// Removes the slot's interfaces, wherever the sandbox's end is, and gives the slot back. May be called again.
    pub async fn release(&self, slot: &Slot) -> Result<(), NetError> {
        let name = slot.interface.clone();
        blocking(format!("remove interface {name}"), move |client| links::remove(client, &name).map(drop))
            .await?;
        self.inner.indexes.lock().give_back(slot.index);
        Ok(())
    }

    /// Takes over a slot that an earlier daemon attached. Its policy stays in force.
    ///
    /// # Errors
    /// [`NetError::NoSlot`] when its interface is gone or it is in use already.
    pub async fn adopt(&self, index: u32) -> Result<Slot, NetError> {
        let slot = Slot::new(&self.inner.config, index).ok_or(NetError::NoSlot { index })?;
        let name = slot.interface.clone();
        let exists = blocking(format!("look for interface {name}"), move |client| {
            Ok(links::list(client)?.iter().any(|link| link.name == name))
        })
        .await?;
        if !exists || !self.inner.indexes.lock().take_exactly(index) {
            return Err(NetError::NoSlot { index });
        }
        Ok(slot)
    }

    /// Removes the interfaces of all slots that are not in `keep`. For the start of a daemon, before it attaches
    /// anything. Returns how many there were.
    pub async fn sweep(&self, keep: &HashSet<u32>) -> Result<usize, NetError> {
        let (config, keep) = (self.inner.config.clone(), keep.clone());
        blocking("remove left-over interfaces".to_owned(), move |client| {
            let mut removed = 0;
            for link in links::list(client)? {
                if config.index_of(&link.name).is_some_and(|index| !keep.contains(&index)) {
                    removed += usize::from(links::remove(client, &link.name)?);
                }
            }
            Ok(removed)
        })
        .await
    }

    /// Removes all interfaces and the rules. Forwarding stays as it is: others may rely on it by now.
    pub async fn teardown(&self) -> Result<(), NetError> {
        self.sweep(&HashSet::new()).await?;
        nft::load(&rules::render_removal(&self.inner.config.table)).await
    }

    /// What `/etc/resolv.conf` inside sandboxes should say.
    pub fn resolv_conf(&self) -> String {
        format!("nameserver {}\noptions timeout:3 attempts:2\n", self.inner.config.gateway())
    }

    /// The listening socket of the guest service, for whoever answers it; `None` when it was taken before. Peers are
    /// sandboxes by their slots' addresses, or processes of this host. It does not block.
    pub fn take_service(&self) -> Option<std::net::TcpListener> {
        self.inner.service.take()
    }

    /// What the DNS relay did so far.
    pub fn dns_stats(&self) -> DnsStats {
        self.inner.dns.stats()
    }

    /// The settings in force.
    pub fn config(&self) -> &NetConfig {
        &self.inner.config
    }
}

/// Keeps a second daemon from replacing our rules and sweeping our interfaces. An abstract socket is a lock that belongs
/// to the network namespace and ends with the process.
async fn claim(table: &str) -> Result<UnixDatagram, NetError> {
    let bind = || UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(format!("hutch-net-{table}"))?);
    let deadline = Instant::now() + CLAIM_PATIENCE;
    loop {
        match bind() {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                if Instant::now() >= deadline {
                    return Err(NetError::InUse { table: table.to_owned() });
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            other => return other.attempting(|| format!("take the use of nftables table {table}")),
        }
    }
}

/// Runs a blocking netlink step on the host's side.
async fn blocking<T: Send + 'static>(
    what: String,
    step: impl FnOnce(&mut Client) -> std::io::Result<T> + Send + 'static,
) -> Result<T, NetError> {
    let attempted = what.clone();
    let work = async {
        let done = tokio::task::spawn_blocking(move || step(&mut Client::open()?)).await;
        done.unwrap_or_else(|error| Err(std::io::Error::other(error))).attempting(|| attempted)
    };
    within(&what, work).await
}

async fn within<T>(what: &str, work: impl Future<Output = Result<T, NetError>>) -> Result<T, NetError> {
    tokio::time::timeout(DEADLINE, work)
        .await
        .unwrap_or_else(|_| Err(NetError::TimedOut { attempted: what.to_owned(), limit_ms: 10_000 }))
}

fn look(config: &NetConfig) -> Result<Host, NetError> {
    let read = || {
        let mut client = Client::open()?;
        Ok::<_, std::io::Error>((links::list(&mut client)?, links::routes(&mut client)?))
    };
    let (links, routes) = read().attempting(|| "read the host's interfaces and routes".to_owned())?;
    judge(config, &links, &routes)
}

/// What the host's interfaces and routes mean for us.
fn judge(config: &NetConfig, links: &[Link], routes: &[Route]) -> Result<Host, NetError> {
    let is_ours = |index| links.iter().any(|l| l.index == index && config.index_of(&l.name).is_some());
    let foreign: Vec<&Route> = routes.iter().filter(|route| !is_ours(route.interface)).collect();
    // A larger network that merely contains ours (a VPN's 10.0.0.0/8, the default route) goes on working, since our
    // routes are more exact.
    if let Some(route) = foreign.iter().find(|route| config.subnet.covers(route.to)) {
        return Err(NetError::SubnetInUse { subnet: config.subnet, used: route.to });
    }
    let uplink = foreign.iter().filter(|r| r.to.prefix() == 0).min_by_key(|r| r.priority);
    let mtu = uplink.and_then(|r| links.iter().find(|l| l.index == r.interface)).map_or(MOST_MTU, |l| l.mtu);
    Ok(Host {
        networks: foreign.iter().filter(|r| r.is_direct && r.to.prefix() > 0).map(|r| r.to).collect(),
        mtu: mtu.clamp(576, MOST_MTU),
    })
}

/// Written only when it is off: writing resets other settings of the host.
fn enable_forwarding() -> Result<(), NetError> {
    const NAME: &str = "ipv4/ip_forward";
    let is_on = sysctl::read(NAME).attempting(|| "read net.ipv4.ip_forward".to_owned())? == "1";
    if is_on {
        Ok(())
    } else {
        sysctl::write(NAME, "1").attempting(|| "set net.ipv4.ip_forward to 1".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, mtu: u32) -> Link {
        Link { index, name: name.to_owned(), mtu, group: 0 }
    }

    fn route(to: &str, interface: u32, is_direct: bool, priority: u32) -> Route {
        Route { to: to.parse().expect("net"), interface, is_direct, priority }
    }

    #[test]
    fn the_hosts_neighbours_are_denied_and_the_uplinks_mtu_is_taken() {
        let links = [link(2, "eth0", 1400), link(3, "ht-5", 1500), link(4, "wlan0", 9000)];
        let routes = [
            route("0.0.0.0/0", 2, false, 100),
            route("0.0.0.0/0", 4, false, 600),
            route("203.0.113.0/24", 2, true, 0),
            route("10.200.0.7/32", 3, true, 0),
            route("10.0.0.0/8", 2, false, 0),
        ];
        let host = judge(&NetConfig::default(), &links, &routes).expect("fits");
        assert_eq!(host.mtu, 1400);
        assert_eq!(host.networks, ["203.0.113.0/24".parse().expect("net")]);
        assert_eq!(judge(&NetConfig::default(), &[], &[]).expect("fits").mtu, 1500);
    }

    #[test]
    fn a_subnet_that_the_host_uses_is_refused_by_name() {
        let routes = [route("10.200.3.0/24", 2, true, 0)];
        let error =
            judge(&NetConfig::default(), &[link(2, "docker0", 1500)], &routes).err().expect("refused");
        assert!(error.to_string().contains("10.200.3.0/24"), "{error}");
    }
}
