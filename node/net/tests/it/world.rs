//! A small world: a host, an internet behind it, and sandboxes.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hutch_net::{NetConfig, NetSupport, Network, Slot};
use hutch_types::NetworkPolicy;
use hutch_types::supervise::Supervisor;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use tokio::runtime::Runtime;

/// The host's address on the link to the internet.
pub const UPLINK: Ipv4Addr = Ipv4Addr::new(100, 64, 9, 1);
/// An address of the internet.
pub const PUBLIC: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// A private address behind the uplink that the host itself can reach.
pub const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// Where clouds have their metadata.
pub const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// Every address of the internet tells callers on this port who they are, then echoes.
pub const ECHO: u16 = 7;

/// How long something that is denied is waited for.
pub const DENIED: Duration = Duration::from_millis(400);
/// How long something that works may take.
pub const WORKS: Duration = Duration::from_secs(10);

pub const ALLOW: NetworkPolicy = NetworkPolicy { allow_internet_access: true };
pub const DENY: NetworkPolicy = NetworkPolicy { allow_internet_access: false };

/// The calling thread's network namespace is the host.
pub struct World {
    pub runtime: Runtime,
    pub supervisor: Supervisor,
    pub network: Network,
    internet: Option<Process>,
}

/// A process in a network namespace of its own, ended with the value.
pub struct Process(Child);

/// A sandbox that is attached.
pub struct Guest {
    pub process: Process,
    pub slot: Slot,
}

/// Runs `test` in a world, or prints why not.
pub fn in_world(name: &str, config: NetConfig, test: fn(World)) {
    in_empty_namespace(name, move || {
        let internet = make_internet();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        let supervisor = Supervisor::new();
        let network = runtime.block_on(Network::open(config, &supervisor)).expect("open the network");
        test(World { runtime, supervisor, network, internet: Some(internet) });
    });
}

/// Runs `test` in a network namespace with nothing but loopback, or prints why not.
pub fn in_empty_namespace(name: &str, test: impl FnOnce() + Send + 'static) {
    let tools = ["ip", "unshare", "nsenter"].iter().find(|tool| {
        Command::new(tool).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err()
    });
    if let Some(tool) = tools {
        println!("SKIP: {name}: {tool} is missing");
        return;
    }
    let support = NetSupport::detect();
    if !support.works() {
        println!("SKIP: {name}: {support:?}");
        return;
    }
    let outcome = std::thread::spawn(move || {
        // SAFETY: only the network namespace is unshared, no file descriptors.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.expect("unshare");
        run("ip link set lo up");
        test();
    })
    .join();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a command line in the namespace of the calling thread.
pub fn run(line: &str) -> String {
    let mut words = line.split(' ');
    let output = Command::new(words.next().expect("a program")).args(words).output().expect("run");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Process {
    /// A process with its own network namespace; also in a user namespace, as sandboxes are, when `as_sandbox`.
    pub fn start(as_sandbox: bool) -> Self {
        let mut command = Command::new("unshare");
        command.arg("--net");
        if as_sandbox {
            command.args(["--user", "--map-root-user"]);
        }
        let process = Self(command.args(["sleep", "1000"]).spawn().expect("unshare"));
        let own = File::open("/proc/thread-self/ns/net").and_then(|f| f.metadata()).expect("own").ino();
        wait_for("its own namespace", || {
            std::fs::metadata(format!("/proc/{}/ns/net", process.pid())).is_ok_and(|meta| meta.ino() != own)
        });
        process
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).expect("a pid")
    }

    pub fn run(&self, line: &str) -> String {
        run(&format!("nsenter -t {} -n {line}", self.pid()))
    }

    /// Starts a thread inside.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let namespace = File::open(format!("/proc/{}/ns/net", self.pid())).expect("namespace");
        std::thread::spawn(move || {
            rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("setns");
            work()
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl World {
    /// A world of a host and sandboxes alone.
    pub fn without_internet(runtime: Runtime, supervisor: Supervisor, network: Network) -> Self {
        Self { runtime, supervisor, network, internet: None }
    }

    /// A UDP socket in the internet.
    pub fn internet_socket(&self) -> UdpSocket {
        let internet = self.internet.as_ref().expect("there is an internet");
        let bind = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("bind");
        internet.spawn(bind).join().expect("socket")
    }

    /// A new sandbox, attached, everything denied.
    pub fn guest(&self) -> Guest {
        let process = Process::start(true);
        let slot = self.network.acquire().expect("slot");
        self.runtime.block_on(self.network.attach(&slot, process.pid())).expect("attach");
        Guest { process, slot }
    }

    pub fn allowed_guest(&self) -> Guest {
        let guest = self.guest();
        self.set_policy(&guest, &ALLOW);
        guest
    }

    pub fn set_policy(&self, guest: &Guest, policy: &NetworkPolicy) {
        self.runtime.block_on(self.network.set_policy(&guest.slot, policy)).expect("set the policy");
    }

    /// Runs blocking work inside a sandbox, while the runtime with the DNS relay goes on.
    pub fn inside<T: Send + 'static>(&self, guest: &Guest, work: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = guest.process.spawn(work);
        let join = self.runtime.block_on(self.runtime.spawn_blocking(move || thread.join()));
        match join.expect("joined") {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Whether a sandbox gets a connection. `expected` only decides how long to wait.
    pub fn connects(&self, guest: &Guest, to: impl Into<IpAddr>, port: u16, expected: bool) -> bool {
        let to = SocketAddr::new(to.into(), port);
        self.inside(guest, move || connects(to, expected))
    }

    /// What interfaces of sandboxes there are.
    pub fn interfaces(&self) -> Vec<String> {
        let links = run("ip -o link show");
        let names = links.lines().filter_map(|line| line.split([':', '@']).nth(1)).map(str::trim);
        names.filter(|name| name.starts_with("ht-")).map(str::to_owned).collect()
    }
}

pub fn connects(to: SocketAddr, expected: bool) -> bool {
    TcpStream::connect_timeout(&to, if expected { WORKS } else { DENIED }).is_ok()
}

pub fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + WORKS;
    while !condition() {
        assert!(Instant::now() < deadline, "waited for {what}");
        std::thread::yield_now();
    }
}

/// Accepts connections for as long as the test process lives: says who called, then echoes.
pub fn serve_echo(listener: TcpListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || drop(echo(stream)));
        }
    });
}

fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let mut caller = [0u8; 4];
    if let IpAddr::V4(address) = stream.peer_addr()?.ip() {
        caller = address.octets();
    }
    stream.write_all(&caller)?;
    let mut buffer = [0u8; 1024];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            n => stream.write_all(&buffer[..n])?,
        }
    }
}

/// One message to an echo server and back.
pub fn say(stream: &mut TcpStream, text: &str, patience: Duration) -> std::io::Result<()> {
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(text.as_bytes())?;
    let mut back = vec![0; text.len()];
    stream.read_exact(&mut back)?;
    assert_eq!(back, text.as_bytes());
    Ok(())
}

fn make_internet() -> Process {
    let internet = Process::start(false);
    run(&format!("ip link add uplink type veth peer name eth0 netns {}", internet.pid()));
    run(&format!("ip addr add {UPLINK}/30 dev uplink"));
    run("ip link set uplink up");
    internet.run("ip link set lo up");
    internet.run("ip addr add 100.64.9.2/30 dev eth0");
    internet.run("ip link set eth0 up");
    internet.run(&format!("ip route add default via {UPLINK}"));
    for address in [PUBLIC, PRIVATE, METADATA] {
        internet.run(&format!("ip addr add {address}/32 dev lo"));
        run(&format!("ip route add {address}/32 via 100.64.9.2"));
    }
    run("ip route add default via 100.64.9.2");
    let listener = internet.spawn(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, ECHO)).expect("bind"));
    let listener = listener.join().expect("listener");
    serve_echo(listener);
    internet
}
