//! Slots from acquiring to releasing, restarts, and what is left behind.

use std::collections::HashSet;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use hutch_net::{NetConfig, NetError, NetSupport, Network};
use hutch_types::supervise::Supervisor;

use crate::world::{
    ALLOW, DENY, ECHO, PUBLIC, Process, WORKS, in_empty_namespace, in_world, run, say, wait_for,
};

#[test]
fn the_inside_looks_as_it_should() {
    in_world("the_inside_looks_as_it_should", NetConfig::default(), |world| {
        let guest = world.guest();
        let addresses = guest.process.run("ip -o addr show");
        let address = guest.slot.address;
        assert!(addresses.contains("127.0.0.1/8"), "{addresses}");
        assert!(addresses.contains(&format!("inet {address}/32")), "{addresses}");
        assert!(!addresses.contains("fe80"), "{addresses}");
        let routes = guest.process.run("ip route show");
        assert!(routes.contains(&format!("default via {} dev eth0", guest.slot.gateway)), "{routes}");
        let link = guest.process.run("ip -o link show eth0");
        let [a, b, c, d] = address.octets();
        assert!(link.contains(&format!("02:48:{a:02x}:{b:02x}:{c:02x}:{d:02x}")), "{link}");
        assert!(link.contains("mtu 1500") && link.contains("state UP"), "{link}");
        let pings = world.inside(&guest, || std::fs::read_to_string("/proc/sys/net/ipv4/ping_group_range"));
        assert!(pings.expect("read").trim_end().ends_with("2147483647"));
    });
}

#[test]
fn releasing_leaves_nothing_and_may_be_repeated() {
    in_world("releasing_leaves_nothing_and_may_be_repeated", NetConfig::default(), |world| {
        let (alive, dead) = (world.allowed_guest(), world.allowed_guest());
        assert_eq!(world.interfaces().len(), 2);
        let slots = [alive.slot.clone(), dead.slot.clone()];
        drop(dead);
        for slot in &slots {
            for _ in 0..2 {
                world.runtime.block_on(world.network.release(slot)).expect("release");
            }
        }
        assert_eq!(world.interfaces(), [""; 0]);
        let next = world.network.acquire().expect("slot");
        assert!(!slots.contains(&next), "addresses are not used again at once");
        world.runtime.block_on(world.network.teardown()).expect("teardown");
        assert_eq!(run("nft list ruleset").trim(), "");
    });
}

#[test]
fn running_sandboxes_do_not_notice_a_restart() {
    in_world("running_sandboxes_do_not_notice_a_restart", NetConfig::default(), |world| {
        let (kept, lost) = (world.allowed_guest(), world.guest());
        let mut stream = world.inside(&kept, || {
            let mut stream = TcpStream::connect((PUBLIC, ECHO)).expect("connect");
            stream.read_exact(&mut [0; 4]).expect("read");
            stream
        });
        let second = world.runtime.block_on(Network::open(NetConfig::default(), &Supervisor::new()));
        assert!(matches!(second, Err(NetError::InUse { .. })), "two daemons do not share a table");

        assert_eq!(world.runtime.block_on(world.supervisor.shutdown(WORKS)), 0);
        let (runtime, index) = (world.runtime, kept.slot.index);
        drop(world.network);
        let supervisor = Supervisor::new();
        let network = runtime.block_on(Network::open(NetConfig::default(), &supervisor)).expect("open again");
        let slot = runtime.block_on(network.adopt(index)).expect("adopt");
        assert_eq!(slot, kept.slot);
        assert!(matches!(runtime.block_on(network.adopt(index)), Err(NetError::NoSlot { .. })), "only once");
        assert_eq!(runtime.block_on(network.sweep(&HashSet::from([index]))).expect("sweep"), 1);
        let adopted = runtime.block_on(network.adopt(lost.slot.index));
        assert!(matches!(adopted, Err(NetError::NoSlot { .. })), "its interface was swept");
        say(&mut stream, "still there", WORKS).expect("the connection and the policy are as before");
        runtime.block_on(network.set_policy(&slot, &DENY)).expect("the slot obeys");
        runtime.block_on(network.set_policy(&slot, &ALLOW)).expect("the slot obeys");
        say(&mut stream, "and still", WORKS).expect("works");
        runtime.block_on(network.teardown()).expect("teardown");
    });
}

#[test]
fn only_namespaces_of_others_are_attached() {
    in_world("only_namespaces_of_others_are_attached", NetConfig::default(), |world| {
        let slot = world.network.acquire().expect("slot");
        // Ours is the calling thread's, not the process's: a child without a namespace of its own is in it.
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
        let pid = i32::try_from(child.id()).expect("pid");
        let own = world.runtime.block_on(world.network.attach(&slot, pid));
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(matches!(own, Err(NetError::NoNamespace { .. })), "{own:?}");
        let gone = world.runtime.block_on(world.network.attach(&slot, pid));
        assert!(matches!(gone, Err(NetError::NoNamespace { .. })), "{gone:?}");
        assert_eq!(world.interfaces(), [""; 0]);
    });
}

#[test]
fn an_attach_that_fails_half_way_leaves_nothing() {
    in_world("an_attach_that_fails_half_way_leaves_nothing", NetConfig::default(), |world| {
        let guest = world.guest();
        let slot = world.network.acquire().expect("slot");
        // There is an eth0 inside already.
        let twice = world.runtime.block_on(world.network.attach(&slot, guest.process.pid()));
        assert!(matches!(twice, Err(NetError::Failed { .. })), "{twice:?}");
        assert_eq!(world.interfaces(), std::slice::from_ref(&guest.slot.interface));
    });
}

#[test]
fn slots_run_out_with_the_limit_named() {
    let config = NetConfig { max_slots: 2, ..NetConfig::default() };
    in_world("slots_run_out_with_the_limit_named", config, |world| {
        let first = world.network.acquire().expect("slot");
        world.network.acquire().expect("slot");
        assert!(world.network.acquire().expect_err("full").is_exhausted());
        world.runtime.block_on(world.network.release(&first)).expect("release");
        world.network.acquire().expect("a released one can be had again");
    });
}

#[test]
fn a_subnet_that_the_host_uses_is_refused() {
    in_empty_namespace("a_subnet_that_the_host_uses_is_refused", || {
        run("ip link add other type veth peer name other-peer");
        run("ip addr add 10.200.7.1/24 dev other");
        run("ip link set other up");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        let error =
            runtime.block_on(Network::open(NetConfig::default(), &Supervisor::new())).expect_err("refused");
        assert!(matches!(error, NetError::SubnetInUse { .. }), "{error}");
        assert_eq!(run("nft list ruleset").trim(), "", "nothing was changed");
        let network = runtime.block_on(Network::open(NetConfig::numbered(1), &Supervisor::new()));
        network.expect("another subnet works");
    });
}

#[test]
fn the_first_packet_after_attaching_is_not_lost() {
    in_world("the_first_packet_after_attaching_is_not_lost", NetConfig::default(), |world| {
        for _ in 0..10 {
            let process = Process::start(true);
            let bind = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, ECHO)).expect("bind");
            let _listener = process.spawn(bind).join().expect("listener");
            let slot = world.network.acquire().expect("slot");
            world.runtime.block_on(world.network.attach(&slot, process.pid())).expect("attach");
            // A lost SYN is sent again after one second.
            let connected =
                TcpStream::connect_timeout(&(slot.address, ECHO).into(), Duration::from_millis(900));
            connected.expect("at once");
        }
    });
}

#[test]
fn many_sandboxes_come_and_go_at_the_same_time() {
    in_world("many_sandboxes_come_and_go_at_the_same_time", NetConfig::default(), |world| {
        let processes: Vec<Process> = (0..20).map(|_| Process::start(true)).collect();
        let (network, begun) = (world.network.clone(), Instant::now());
        let attach = processes.iter().map(|process| {
            let (network, pid) = (network.clone(), process.pid());
            async move {
                let slot = network.acquire().expect("slot");
                network.attach(&slot, pid).await.expect("attach");
                slot
            }
        });
        let slots = world.runtime.block_on(all(attach));
        println!("MEASURE 20 attached at the same time: {:?}", begun.elapsed());
        assert_eq!(world.interfaces().len(), 20);
        let begun = Instant::now();
        let release = slots.iter().map(|slot| {
            let network = network.clone();
            async move { network.release(slot).await.expect("release") }
        });
        world.runtime.block_on(all(release));
        println!("MEASURE 20 released at the same time: {:?}", begun.elapsed());
        assert_eq!(world.interfaces(), [""; 0]);
        drop(processes);
    });
}

#[test]
fn each_step_is_quick() {
    in_world("each_step_is_quick", NetConfig::default(), |world| {
        let mut times: [Vec<_>; 3] = Default::default();
        for _ in 0..20 {
            let process = Process::start(true);
            let slot = world.network.acquire().expect("slot");
            let begun = Instant::now();
            world.runtime.block_on(world.network.attach(&slot, process.pid())).expect("attach");
            times[0].push(begun.elapsed());
            let begun = Instant::now();
            world.runtime.block_on(world.network.set_policy(&slot, &ALLOW)).expect("policy");
            times[1].push(begun.elapsed());
            let begun = Instant::now();
            world.runtime.block_on(world.network.release(&slot)).expect("release");
            times[2].push(begun.elapsed());
        }
        for (what, mut times) in ["attach", "set_policy", "release"].into_iter().zip(times) {
            times.sort();
            println!("MEASURE {what}: p50 {:?} max {:?}", times[10], times[19]);
        }
    });
}

#[test]
fn the_interface_of_a_sandbox_that_died_goes_by_itself() {
    in_world("the_interface_of_a_sandbox_that_died_goes_by_itself", NetConfig::default(), |world| {
        let guest = world.guest();
        let slot = guest.slot.clone();
        drop(guest);
        wait_for("the kernel to remove it", || world.interfaces().is_empty());
        world.runtime.block_on(world.network.release(&slot)).expect("release");
    });
}

#[test]
fn the_host_is_described() {
    let support = NetSupport::detect();
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: the_host_is_described: not root");
        assert!(!support.works());
        return;
    }
    println!("{support:?}");
    assert!(support.veth.works(), "{support:?}");
}

/// All of them at the same time.
async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, done) in running.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(output) = future.as_mut().poll(context)
            {
                *done = Some(output);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}
