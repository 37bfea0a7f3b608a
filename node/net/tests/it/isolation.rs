//! Who reaches whom.

use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use hutch_net::NetConfig;

use crate::dns::open;
use crate::world::{
    ALLOW, DENIED, DENY, ECHO, Guest, METADATA, PRIVATE, PUBLIC, Process, UPLINK, WORKS, World, connects,
    in_empty_namespace, in_world, run, say, serve_echo,
};

#[test]
fn the_internet_is_reached_when_allowed_and_only_then() {
    in_world("the_internet_is_reached_when_allowed_and_only_then", NetConfig::default(), |world| {
        let guest = world.guest();
        assert!(!world.connects(&guest, PUBLIC, ECHO, false), "everything is denied at first");
        world.set_policy(&guest, &ALLOW);
        let caller = world.inside(&guest, || {
            let mut stream = TcpStream::connect((PUBLIC, ECHO)).expect("connect");
            let mut caller = [0; 4];
            stream.read_exact(&mut caller).expect("read");
            Ipv4Addr::from(caller)
        });
        assert_eq!(caller, UPLINK, "the outside sees the host's address");
        world.set_policy(&guest, &DENY);
        assert!(!world.connects(&guest, PUBLIC, ECHO, false));
    });
}

#[test]
fn an_established_connection_is_cut_by_a_denial() {
    in_world("an_established_connection_is_cut_by_a_denial", NetConfig::default(), |world| {
        let guest = world.allowed_guest();
        let mut stream = world.inside(&guest, || {
            let mut stream = TcpStream::connect((PUBLIC, ECHO)).expect("connect");
            stream.read_exact(&mut [0; 4]).expect("read");
            say(&mut stream, "before", WORKS).expect("it works");
            stream
        });
        world.set_policy(&guest, &DENY);
        say(&mut stream, "denied", DENIED).expect_err("cut");
        world.set_policy(&guest, &ALLOW);
        // What was sent meanwhile is sent again by TCP.
        let mut late = [0; 6];
        stream.set_read_timeout(Some(WORKS)).expect("timeout");
        stream.read_exact(&mut late).expect("it goes on");
        assert_eq!(&late, b"denied");
    });
}

#[test]
fn the_host_reaches_sandboxes_and_they_reach_nothing_of_it() {
    in_world("the_host_reaches_sandboxes_and_they_reach_nothing_of_it", NetConfig::default(), |world| {
        let service = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("bind");
        let port = service.local_addr().expect("address").port();
        serve_echo(service);
        let guest = world.allowed_guest();
        for address in [UPLINK, guest.slot.gateway, Ipv4Addr::LOCALHOST] {
            assert!(connects((address, port).into(), true), "the service is there at {address}");
            assert!(!world.connects(&guest, address, port, false), "{address} is the host's");
        }
        for policy in [DENY, ALLOW] {
            world.set_policy(&guest, &policy);
            let listener =
                world.inside(&guest, || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("bind"));
            let port = listener.local_addr().expect("address").port();
            serve_echo(listener);
            let mut stream =
                TcpStream::connect_timeout(&(guest.slot.address, port).into(), WORKS).expect("connect");
            stream.read_exact(&mut [0; 4]).expect("read");
            say(&mut stream, "hello", WORKS).expect("both ways");
        }
    });
}

#[test]
fn the_guest_service_is_reached_under_every_policy_and_knows_who_calls() {
    in_world(
        "the_guest_service_is_reached_under_every_policy_and_knows_who_calls",
        NetConfig::default(),
        |world| {
            serve_guests(&world);
            let (guest, other) = (world.guest(), world.guest());
            for policy in [DENY, ALLOW] {
                world.set_policy(&guest, &policy);
                assert_eq!(caller_of_the_service(&world, &guest), guest.slot.address);
                assert_eq!(caller_of_the_service(&world, &other), other.slot.address);
                assert!(!world.connects(&guest, guest.slot.gateway, 81, false), "nothing beside it");
            }
            // A guest that calls with its neighbour's address.
            let (gateway, false_source) = (guest.slot.gateway, other.slot.address);
            guest.process.run(&format!("ip addr add {false_source}/32 dev eth0"));
            guest.process.run(&format!("ip route replace {gateway}/32 dev eth0 src {false_source}"));
            assert!(!world.connects(&guest, gateway, 80, false), "dropped before it is seen");
        },
    );
}

#[test]
fn the_guest_service_is_reached_on_a_host_where_port_80_is_taken() {
    in_empty_namespace("the_guest_service_is_reached_on_a_host_where_port_80_is_taken", || {
        let _taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80)).expect("bind");
        let world = open(NetConfig::default());
        serve_guests(&world);
        let guest = world.guest();
        assert_eq!(caller_of_the_service(&world, &guest), guest.slot.address);
    });
}

/// Answers the guest service as an echo server would.
fn serve_guests(world: &World) {
    let service = world.network.take_service().expect("not taken yet");
    assert!(world.network.take_service().is_none(), "there is one");
    service.set_nonblocking(false).expect("blocking");
    serve_echo(service);
}

fn caller_of_the_service(world: &World, guest: &Guest) -> Ipv4Addr {
    let gateway = guest.slot.gateway;
    world.inside(guest, move || {
        let mut stream = TcpStream::connect_timeout(&(gateway, 80).into(), WORKS).expect("connect");
        stream.set_read_timeout(Some(WORKS)).expect("timeout");
        let mut caller = [0; 4];
        stream.read_exact(&mut caller).expect("read");
        Ipv4Addr::from(caller)
    })
}

#[test]
fn internal_addresses_and_other_sandboxes_are_out_of_reach() {
    in_world("internal_addresses_and_other_sandboxes_are_out_of_reach", NetConfig::default(), |world| {
        let (a, b) = (world.allowed_guest(), world.allowed_guest());
        // The neighbour on the uplink is denied too, private or not.
        for address in [PRIVATE, METADATA, Ipv4Addr::new(100, 64, 9, 2)] {
            assert!(connects((address, ECHO).into(), true), "the host itself reaches {address}");
            assert!(!world.connects(&a, address, ECHO, false), "{address} is internal");
        }
        let listener = world.inside(&b, || TcpListener::bind((Ipv4Addr::UNSPECIFIED, ECHO)).expect("bind"));
        serve_echo(listener);
        assert!(connects((b.slot.address, ECHO).into(), true));
        assert!(!world.connects(&a, b.slot.address, ECHO, false), "sandboxes do not reach one another");
        assert!(world.connects(&a, PUBLIC, ECHO, true), "and the internet still works");
    });
}

#[test]
fn nobody_outside_reaches_a_sandbox() {
    in_world("nobody_outside_reaches_a_sandbox", NetConfig::default(), |world| {
        let guest = world.allowed_guest();
        serve_echo(world.inside(&guest, || TcpListener::bind((Ipv4Addr::UNSPECIFIED, ECHO)).expect("bind")));
        let neighbour = Process::start(false);
        run(&format!("ip link add lan type veth peer name eth0 netns {}", neighbour.pid()));
        run("ip addr add 198.51.100.1/30 dev lan");
        run("ip link set lan up");
        neighbour.run("ip addr add 198.51.100.2/30 dev eth0");
        neighbour.run("ip link set eth0 up");
        neighbour.run("ip route add default via 198.51.100.1");
        let address = guest.slot.address;
        let reached = neighbour
            .spawn(move || (connects((PUBLIC, ECHO).into(), true), connects((address, ECHO).into(), false)));
        assert_eq!(
            reached.join().expect("no panic"),
            (true, false),
            "the host forwards, but not to sandboxes"
        );
    });
}

#[test]
fn packets_with_a_false_source_are_dropped() {
    in_world("packets_with_a_false_source_are_dropped", NetConfig::default(), |world| {
        let (guest, other) = (world.allowed_guest(), world.allowed_guest());
        let receiver = world.internet_socket();
        let to = receiver.local_addr().expect("address");
        let own = guest.slot.address;
        for source in [other.slot.address, guest.slot.gateway, PUBLIC, Ipv4Addr::new(198, 51, 100, 7), own] {
            if source != own {
                guest.process.run(&format!("ip addr add {source}/32 dev eth0"));
            }
            world.inside(&guest, move || {
                let socket = UdpSocket::bind((source, 0)).expect("bind");
                socket.send_to(source.to_string().as_bytes(), (PUBLIC, to.port())).expect("send");
            });
            if source != own {
                guest.process.run(&format!("ip addr del {source}/32 dev eth0"));
            }
        }
        // Packets of one sender arrive in order: the true one was sent last and arrives first.
        let mut buffer = [0; 64];
        receiver.set_read_timeout(Some(WORKS)).expect("timeout");
        let len = receiver.recv(&mut buffer).expect("the true one");
        assert_eq!(&buffer[..len], own.to_string().as_bytes());
    });
}

#[test]
fn ipv6_is_dropped() {
    in_world("ipv6_is_dropped", NetConfig::default(), |world| {
        let guest = world.allowed_guest();
        let interface = guest.slot.interface.clone();
        let disabled = world.inside(&guest, || std::fs::read("/proc/sys/net/ipv6/conf/eth0/disable_ipv6"));
        assert_eq!(disabled.expect("read"), b"1\n", "off inside");
        // A guest that turned it on, and a host that has it.
        world.inside(&guest, || {
            std::fs::write("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "0").expect("write")
        });
        guest.process.run("ip addr add fd77::2/64 dev eth0 nodad");
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"), "0").expect("write");
        run(&format!("ip addr add fd77::1/64 dev {interface} nodad"));
        let service = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).expect("bind");
        let to = SocketAddr::new(
            "fd77::1".parse().expect("address"),
            service.local_addr().expect("address").port(),
        );
        serve_echo(service);
        assert!(!world.connects(&guest, to.ip(), to.port(), false), "dropped");
        run("nft delete table inet hutch");
        assert!(world.connects(&guest, to.ip(), to.port(), true), "it was the rules that dropped it");
    });
}

#[test]
fn one_sandbox_cannot_take_all_connections() {
    let config = NetConfig { max_connections: 4, ..NetConfig::default() };
    in_world("one_sandbox_cannot_take_all_connections", config, |world| {
        let (greedy, modest) = (world.allowed_guest(), world.allowed_guest());
        let open = world.inside(&greedy, || {
            (0..4).map(|_| TcpStream::connect((PUBLIC, ECHO)).expect("connect")).collect::<Vec<_>>()
        });
        assert!(!world.connects(&greedy, PUBLIC, ECHO, false), "the fifth is one too many");
        assert!(world.connects(&modest, PUBLIC, ECHO, true), "others are not affected");
        drop(open);
    });
}
