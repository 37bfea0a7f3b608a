//! The daemon inside every sandbox. See the library.
//!
//! `envd [--port N]`; the environment gives `HUTCH_SECRET` (what the host must send on internal routes, removed at
//! once), `HUTCH_RESTART` (1: another envd of this sandbox ran before), `HUTCH_DEFAULT_USER` and
//! `HUTCH_DEFAULT_WORKDIR`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use hutch_envd::config::DEFAULT_PORT;
use hutch_envd::{Config, Users};
use hutch_types::Secret;
use rustix::process::{Resource, Rlimit};
use tokio::net::{TcpListener, TcpSocket};

/// Threads that wait for disks. Requests beyond that wait for one another.
const BLOCKING_THREADS: usize = 32;
/// Idle ones go soon: what they hold counts against the sandbox's memory.
const BLOCKING_KEEP_ALIVE: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    let port = match port(std::env::args().skip(1)) {
        Ok(port) => port,
        Err(message) => {
            eprintln!("envd: {message}");
            return ExitCode::from(64);
        }
    };
    tune_allocator();
    let config = config();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(BLOCKING_KEEP_ALIVE)
        .enable_all()
        .build();
    let served = runtime.and_then(|runtime| runtime.block_on(serve(port, config)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("envd: port {port}: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(port: u16, config: Config) -> std::io::Result<()> {
    hutch_envd::serve(listen(port)?, config).await
}

/// All addresses of both families, or of IPv4 alone where there is no IPv6.
fn listen(port: u16) -> std::io::Result<TcpListener> {
    let bind = |socket: TcpSocket, address: SocketAddr| {
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(1024)
    };
    TcpSocket::new_v6()
        .and_then(|socket| bind(socket, (Ipv6Addr::UNSPECIFIED, port).into()))
        .or_else(|_| bind(TcpSocket::new_v4()?, (Ipv4Addr::UNSPECIFIED, port).into()))
}

fn port(mut args: impl Iterator<Item = String>) -> Result<u16, String> {
    match (args.next().as_deref(), args.next(), args.next()) {
        (None, ..) => Ok(DEFAULT_PORT),
        (Some("--port"), Some(port), None) => port.parse().map_err(|_| format!("'{port}' is no port")),
        _ => Err("usage: envd [--port N]".to_owned()),
    }
}

/// Reads the environment, once. Runs before any other thread exists.
fn config() -> Config {
    let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let defaults = Config::default();
    let is_root = rustix::process::geteuid().is_root();
    let home = || var("HOME").unwrap_or_else(|| "/".to_owned()).into();
    let config = Config {
        secret: var("HUTCH_SECRET").map(Secret::new),
        default_user: var("HUTCH_DEFAULT_USER").unwrap_or(defaults.default_user),
        default_workdir: var("HUTCH_DEFAULT_WORKDIR").map(Into::into),
        users: if is_root { Users::System } else { Users::Everyone { home: home() } },
        system_root: is_root.then(|| "/".into()),
        search_path: var("PATH").unwrap_or(defaults.search_path),
        is_restart: var("HUTCH_RESTART").as_deref() == Some("1"),
        child_open_files: raise_open_files(),
    };
    forget_secret();
    config
}

/// Takes all the open files that the hard limit allows: each connection and process needs some. Returns what the soft
/// limit was, for processes to start with.
fn raise_open_files() -> Option<u64> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(Resource::Nofile, raised).ok()?;
    limit.current
}

/// Wipes the secret where the kernel shows it (`/proc/self/environ`), then takes it out of the environment.
fn forget_secret() {
    // SAFETY: no other thread exists yet, so nobody reads the environment meanwhile; the string returned by `getenv`
    // is writable memory of this process up to its terminating NUL, which stays.
    unsafe {
        let value = libc::getenv(c"HUTCH_SECRET".as_ptr());
        if !value.is_null() {
            std::ptr::write_bytes(value, b'x', libc::strlen(value));
        }
        libc::unsetenv(c"HUTCH_SECRET".as_ptr());
    }
}

/// glibc keeps freed memory in an arena per thread; a daemon that idles most of its life is better off without. What it
/// may keep, a few megabytes, are the buffers of transfers: giving each back to the kernel and faulting the next one in
/// again costs as much as the transfer itself.
fn tune_allocator() {
    // SAFETY: sets numbers of the allocator, before any other thread exists.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 4 << 20);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}
