//! The DNS relay.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use hutch_net::{NetConfig, Network};
use hutch_types::supervise::Supervisor;

use crate::world::{ALLOW, DENIED, DENY, WORKS, World, in_empty_namespace, in_world};

/// A query for `a.test`, type A, with an id of its own.
fn query(id: u16) -> Vec<u8> {
    let mut query = id.to_be_bytes().to_vec();
    query.extend_from_slice(&[
        1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 4, b't', b'e', b's', b't', 0, 0, 1, 0, 1,
    ]);
    query
}

fn answer(query: &[u8], padding: usize) -> Vec<u8> {
    let mut answer = query.to_vec();
    answer[2] |= 0x80;
    answer.extend(std::iter::repeat_n(b'x', padding));
    answer
}

/// A name server on loopback. It also sends an answer with a wrong id first, as a forger would.
fn start_server() -> SocketAddr {
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let address = udp.local_addr().expect("address");
    let tcp = TcpListener::bind(address).expect("bind");
    std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        while let Ok((len, from)) = udp.recv_from(&mut buffer) {
            let mut forged = answer(&buffer[..len], 0);
            forged[0] ^= 0xff;
            udp.send_to(&forged, from).expect("send");
            udp.send_to(&answer(&buffer[..len], 3), from).expect("send");
        }
    });
    std::thread::spawn(move || {
        for mut stream in tcp.incoming().flatten() {
            let message = read_framed(&mut stream);
            stream.write_all(&framed(&answer(&message, 40_000))).expect("write");
        }
    });
    address
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mut out = u16::try_from(message.len()).expect("length").to_be_bytes().to_vec();
    out.extend_from_slice(message);
    out
}

fn read_framed(stream: &mut TcpStream) -> Vec<u8> {
    let mut len = [0; 2];
    stream.read_exact(&mut len).expect("length");
    let mut message = vec![0; usize::from(u16::from_be_bytes(len))];
    stream.read_exact(&mut message).expect("message");
    message
}

fn ask_udp(server: Ipv4Addr, id: u16, patience: Duration) -> std::io::Result<Vec<u8>> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect((server, 53))?;
    socket.set_read_timeout(Some(patience))?;
    socket.send(&query(id))?;
    let mut buffer = [0; 1024];
    let len = socket.recv(&mut buffer)?;
    Ok(buffer[..len].to_vec())
}

fn relay_works(world: &World) {
    let guest = world.guest();
    let gateway = guest.slot.gateway;
    assert!(world.inside(&guest, move || ask_udp(gateway, 1, DENIED)).is_err(), "denied at first");
    world.set_policy(&guest, &ALLOW);
    for id in 2..20 {
        let got = world.inside(&guest, move || ask_udp(gateway, id, WORKS)).expect("answered");
        assert_eq!(got, answer(&query(id), 3), "the true answer, with the sandbox's id");
    }
    let got = world.inside(&guest, move || {
        let mut stream = TcpStream::connect((gateway, 53)).expect("connect");
        stream.set_read_timeout(Some(WORKS)).expect("timeout");
        let messages: Vec<_> = [7, 8]
            .map(|id| {
                stream.write_all(&framed(&query(id))).expect("write");
                read_framed(&mut stream)
            })
            .to_vec();
        messages
    });
    assert!(got == [answer(&query(7), 40_000), answer(&query(8), 40_000)], "two on one connection");
    world.set_policy(&guest, &DENY);
    assert!(world.inside(&guest, move || ask_udp(gateway, 30, DENIED)).is_err(), "denied again");
    let stats = world.network.dns_stats();
    assert_eq!((stats.queries, stats.failed), (20, 0), "{stats:?}");
}

#[test]
fn names_resolve_over_udp_and_tcp_when_allowed() {
    in_empty_namespace("names_resolve_over_udp_and_tcp_when_allowed", || {
        let config = NetConfig { dns_upstreams: vec![start_server()], ..NetConfig::default() };
        let world = open(config);
        relay_works(&world);
        assert!(world.network.resolv_conf().starts_with("nameserver 10.200.0.1\n"));
        // A process of the host is no client of it.
        let asked = std::thread::spawn(|| ask_udp(Ipv4Addr::new(10, 200, 0, 1), 1, DENIED));
        let asked = world.runtime.block_on(world.runtime.spawn_blocking(|| asked.join())).expect("joined");
        assert!(asked.expect("no panic").is_err());
    });
}

#[test]
fn names_resolve_on_a_host_where_port_53_is_taken() {
    in_empty_namespace("names_resolve_on_a_host_where_port_53_is_taken", || {
        let _taken = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 53)).expect("bind");
        let config = NetConfig { dns_upstreams: vec![start_server()], ..NetConfig::default() };
        relay_works(&open(config));
    });
}

#[test]
fn a_dead_server_is_said_at_once_and_the_next_one_is_asked() {
    in_empty_namespace("a_dead_server_is_said_at_once_and_the_next_one_is_asked", || {
        let dead = {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
            socket.local_addr().expect("address")
        };
        let config = NetConfig { dns_upstreams: vec![dead], ..NetConfig::default() };
        let world = open(config);
        let guest = world.allowed_guest();
        let gateway = guest.slot.gateway;
        let got = world.inside(&guest, move || ask_udp(gateway, 9, WORKS)).expect("answered");
        assert_eq!((got[..2].to_vec(), got[3] & 15), (vec![0, 9], 2), "server failure");
        assert_eq!(world.network.dns_stats().failed, 1);
        drop(guest);
        close(world);

        let world = open(NetConfig { dns_upstreams: vec![dead, start_server()], ..NetConfig::default() });
        let guest = world.allowed_guest();
        let got = world.inside(&guest, move || ask_udp(gateway, 9, WORKS)).expect("answered");
        assert_eq!(got, answer(&query(9), 3));
    });
}

#[test]
fn garbage_is_dropped_and_a_flood_is_bounded() {
    // A server that never answers keeps queries in flight.
    let name = "garbage_is_dropped_and_a_flood_is_bounded";
    in_empty_namespace(name, || {
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let upstream = silent.local_addr().expect("address");
        let world = open(NetConfig { dns_upstreams: vec![upstream], ..NetConfig::default() });
        let (greedy, modest) = (world.allowed_guest(), world.allowed_guest());
        let gateway = greedy.slot.gateway;
        world.inside(&greedy, move || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("bind");
            socket.connect((gateway, 53)).expect("connect");
            socket.send(b"short").expect("send");
            for id in 0..200 {
                socket.send(&query(id)).expect("send");
            }
        });
        let network = world.network.clone();
        world.runtime.block_on(async {
            tokio::time::timeout(WORKS, async {
                while network.dns_stats().dropped + network.dns_stats().queries < 201 {
                    tokio::task::yield_now().await;
                }
            })
            .await
            .expect("all were looked at");
        });
        let stats = network.dns_stats();
        assert_eq!((stats.queries, stats.dropped), (64, 137), "{stats:?}");
        drop(world.inside(&modest, move || ask_udp(gateway, 5, DENIED)));
        assert_eq!(network.dns_stats().queries, 65, "others are served");
    });
}

#[test]
fn the_relay_works_beside_the_internet() {
    let config =
        NetConfig { dns_upstreams: vec!["127.0.0.1:1".parse().expect("address")], ..NetConfig::default() };
    in_world("the_relay_works_beside_the_internet", config, |world| {
        let guest = world.allowed_guest();
        let gateway = guest.slot.gateway;
        let got = world.inside(&guest, move || ask_udp(gateway, 1, WORKS)).expect("answered");
        assert_eq!(got[3] & 15, 2);
    });
}

pub fn open(config: NetConfig) -> World {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let supervisor = Supervisor::new();
    let network = runtime.block_on(Network::open(config, &supervisor)).expect("open the network");
    World::without_internet(runtime, supervisor, network)
}

fn close(world: World) {
    world.runtime.block_on(world.network.teardown()).expect("teardown");
    assert_eq!(world.runtime.block_on(world.supervisor.shutdown(WORKS)), 0);
}
