//! Attaching a slot to a network namespace.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::thread::LinkNameSpaceType;
use tokio::sync::oneshot;

use crate::connections;
use crate::error::{Attempt, NetError};
use crate::links::{self, Veth};
use crate::netlink::Client;
use crate::slot::Slot;
use crate::sysctl;

/// The name of the interface inside.
const GUEST_INTERFACE: &str = "eth0";

/// How long the host's end may take until it sends, once the other end is up.
const CARRIER_DEADLINE: Duration = Duration::from_secs(5);

/// Runs `work` on a thread of its own that ends afterwards, since the thread may enter another network namespace: no
/// thread of the async runtime ever does.
///
/// Dropping the future does not stop the work.
pub(crate) async fn on_own_thread<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> Result<T, NetError> + Send + 'static,
) -> Result<T, NetError> {
    let (done, result) = oneshot::channel();
    std::thread::Builder::new()
        .name("hutch-netns".to_owned())
        .spawn(move || {
            let outcome = work();
            if done.send(outcome).is_err() {
                tracing::debug!("nobody waits for a network step any more");
            }
        })
        .attempting(|| format!("start a thread to {what}"))?;
    // The sender is only dropped unused when the thread panicked.
    result
        .await
        .unwrap_or_else(|_| Err(io::Error::other("the thread ended early")).attempting(|| what.to_owned()))
}

/// Makes the veth pair of `slot` with its peer in the namespace of process `pid`, and configures both ends. The host's
/// end is in `group` from its first moment. Blocks; leaves the calling thread in the other namespace.
pub(crate) fn attach(slot: &Slot, pid: i32, group: u32, mtu: u32) -> Result<(), NetError> {
    let namespace = open_namespace(pid)?;
    let mut host = Client::open().attempting(|| "open a netlink socket".to_owned())?;
    let pair = Veth {
        interface: &slot.interface,
        mac: slot.host_mac(),
        group,
        peer: GUEST_INTERFACE,
        peer_mac: slot.guest_mac(),
        peer_namespace: u32::try_from(namespace.as_raw_fd()).unwrap_or(0),
        mtu,
    };
    host.apply_one(pair.create()).attempting(|| format!("create interface {}", slot.interface))?;
    let configured = configure_host(&mut host, slot).and_then(|index| {
        configure_guest(&namespace, slot)?;
        links::wait_until_sending(&mut host, index, CARRIER_DEADLINE)
            .attempting(|| format!("wait for the carrier of {}", slot.interface))
    });
    if configured.is_err()
        && let Err(error) = links::remove(&mut host, &slot.interface)
    {
        tracing::warn!(interface = slot.interface, %error, "a half-made interface is left for the next sweep");
    }
    configured
}

/// Gives the namespace of process `pid` addresses on its loopback interface, or takes them away. Blocks; leaves the calling
/// thread in that namespace.
pub(crate) fn set_former_addresses(pid: i32, addresses: &[Ipv4Addr], there: bool) -> Result<(), NetError> {
    let namespace = open_namespace(pid)?;
    enter(&namespace)?;
    let change = if there { links::add_address } else { links::remove_address };
    let requests: Vec<_> = addresses.iter().map(|address| change(links::LOOPBACK, *address)).collect();
    Client::open()
        .and_then(|mut guest| guest.apply_all(&requests))
        .attempting(|| format!("set former addresses of process {pid}"))
}

/// Cuts the TCP connections to the outside of the namespace of process `pid`. Returns how many there were. Blocks; leaves the
/// calling thread in that namespace.
pub(crate) fn cut_connections(pid: i32) -> Result<usize, NetError> {
    let namespace = open_namespace(pid)?;
    enter(&namespace)?;
    connections::cut_outside().attempting(|| format!("cut the connections of process {pid}"))
}

fn enter(namespace: &File) -> Result<(), NetError> {
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .attempting(|| "enter the network namespace".to_owned())
}

/// The network namespace of `pid`, which must not be our own: an `eth0` made there would be the host's.
fn open_namespace(pid: i32) -> Result<File, NetError> {
    let open = |path: &str| -> io::Result<(File, (u64, u64))> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        Ok((file, (meta.dev(), meta.ino())))
    };
    let (namespace, identity) = match open(&format!("/proc/{pid}/ns/net")) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(NetError::NoNamespace { pid }),
        Err(error) => {
            return Err(error).attempting(|| format!("open the network namespace of process {pid}"));
        }
    };
    let (_, own) =
        open("/proc/thread-self/ns/net").attempting(|| "open our own network namespace".to_owned())?;
    if identity == own { Err(NetError::NoNamespace { pid }) } else { Ok(namespace) }
}

/// Returns the interface's index.
fn configure_host(host: &mut Client, slot: &Slot) -> Result<u32, NetError> {
    let interface = &slot.interface;
    // ARP is answered for the gateway address alone, not for every address of the host.
    sysctl::write(&format!("ipv4/conf/{interface}/arp_ignore"), "1")
        .attempting(|| format!("set arp_ignore of {interface}"))?;
    sysctl::try_write(&format!("ipv6/conf/{interface}/disable_ipv6"), "1");
    let mut configure = || -> io::Result<u32> {
        let index = links::index_of(host, interface)?;
        host.apply_all(&[
            links::add_address(index, slot.gateway),
            links::set_up(index),
            links::add_host_route(index, slot.address),
            links::add_neighbour(index, slot.address, slot.guest_mac()),
        ])?;
        Ok(index)
    };
    configure().attempting(|| format!("configure interface {interface}"))
}

fn configure_guest(namespace: &File, slot: &Slot) -> Result<(), NetError> {
    enter(namespace)?;
    // No IPv6 to the outside, but `::1` stays.
    sysctl::try_write(&format!("ipv6/conf/{GUEST_INTERFACE}/disable_ipv6"), "1");
    // `ping` works for every user without privileges.
    sysctl::try_write("ipv4/ping_group_range", "0 2147483647");
    let configure = || -> io::Result<()> {
        let mut guest = Client::open()?;
        let index = links::index_of(&mut guest, GUEST_INTERFACE)?;
        guest.apply_all(&[
            links::set_up(links::LOOPBACK),
            links::add_address(index, slot.address),
            links::set_up(index),
            links::add_host_route(index, slot.gateway),
            links::add_default_route(index, slot.gateway),
            links::add_neighbour(index, slot.gateway, slot.host_mac()),
        ])
    };
    configure().attempting(|| format!("configure the inside of {}", slot.interface))
}
