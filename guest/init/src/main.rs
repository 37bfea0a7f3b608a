//! PID 1 of a sandbox: starts envd, keeps it running, reaps whatever loses its parent, and on SIGTERM ends everything.
//!
//! `init [ENVD [ARGUMENT…]]`, where ENVD defaults to `/.hutch/envd`. `HUTCH_SECRET` is handed to envd through its
//! environment and is not to be seen in init's own. Everything else of the environment, the protection from the
//! out-of-memory killer included, passes to envd as it is.

mod backoff;
mod signals;

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use backoff::Backoff;
use rustix::process::{Pid, WaitOptions};
use signals::{Received, Signals};

const DEFAULT_ENVD: &str = "/.hutch/envd";
const SECRET: &str = "HUTCH_SECRET";
/// Tells envd whether it continues what an earlier envd of this sandbox began.
const RESTART: &str = "HUTCH_RESTART";
/// How long processes may take to end by themselves on SIGTERM. The kernel ends the rest together with init.
const GRACE: Duration = Duration::from_secs(2);
/// Attempts to start envd in a row that may fail before there is no point in going on: it is not there.
const MAX_FAILED_STARTS: u32 = 6;

fn main() -> ExitCode {
    let secret = take_secret();
    let mut args = std::env::args_os().skip(1);
    let program = args.next().unwrap_or_else(|| DEFAULT_ENVD.into());
    let args: Vec<OsString> = args.collect();
    let is_first = rustix::process::getpid() == Pid::INIT;
    if !is_first && let Err(error) = rustix::process::set_child_subreaper(Pid::from_raw(1)) {
        eprintln!("init: orphans go elsewhere: {error}");
    }
    let signals = match Signals::block() {
        Ok(signals) => signals,
        Err(error) => return fail("signals cannot be blocked", &error),
    };

    let start = |is_restart: bool| {
        let mut command = Command::new(&program);
        command.args(&args).env(RESTART, if is_restart { "1" } else { "0" });
        if let Some(secret) = &secret {
            command.env(SECRET, secret);
        }
        // SAFETY: `unblock_all` makes one system call; it neither allocates nor locks.
        unsafe { command.pre_exec(signals::unblock_all) };
        command.spawn().map(|child| child.id())
    };
    let mut envd = Envd::Due(Instant::now());
    let mut backoff = Backoff::default();
    let (mut failed_starts, mut has_run) = (0, false);
    loop {
        if let Envd::Due(at) = envd
            && at <= Instant::now()
        {
            match start(has_run) {
                Ok(pid) => {
                    (failed_starts, has_run) = (0, true);
                    envd = Envd::Running { pid, since: Instant::now() };
                }
                Err(error) => {
                    failed_starts += 1;
                    if failed_starts >= MAX_FAILED_STARTS {
                        return fail(&format!("{} cannot be started", program.display()), &error);
                    }
                    eprintln!("init: starting {}: {error}", program.display());
                    envd = Envd::Due(Instant::now() + backoff.next(Duration::ZERO));
                }
            }
        }
        let patience = match envd {
            Envd::Due(at) => Some(at.saturating_duration_since(Instant::now())),
            Envd::Running { .. } => None,
        };
        match signals.wait(patience) {
            Received::Child => {
                reap(|pid| {
                    if let Envd::Running { pid: own, since } = envd
                        && own == pid
                    {
                        eprintln!("init: envd ended; it is started again");
                        envd = Envd::Due(Instant::now() + backoff.next(since.elapsed()));
                    }
                });
            }
            Received::Stop => {
                stop_all(is_first, &envd, &signals);
                return ExitCode::SUCCESS;
            }
            Received::Nothing => {}
        }
    }
}

/// Whether envd runs.
#[derive(Debug)]
enum Envd {
    /// To be started at this time.
    Due(Instant),
    Running {
        pid: u32,
        since: Instant,
    },
}

fn fail(what: &str, error: &io::Error) -> ExitCode {
    eprintln!("init: {what}: {error}");
    ExitCode::FAILURE
}

/// Collects every child that has ended. Returns whether any is left.
fn reap(mut ended: impl FnMut(u32)) -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, _))) => ended(pid.as_raw_nonzero().get().unsigned_abs()),
            Ok(None) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_no_children) => return false,
        }
    }
}

/// Asks everything to end and waits for it, at most [`GRACE`]. Outside a sandbox "everything" is envd alone.
fn stop_all(is_first: bool, envd: &Envd, signals: &Signals) {
    let target = match envd {
        _ if is_first => -1,
        Envd::Running { pid, .. } => i32::try_from(*pid).unwrap_or(0),
        Envd::Due(_) => return,
    };
    if target == 0 {
        return;
    }
    // SAFETY: sends a signal; no memory is involved.
    unsafe { libc::kill(target, libc::SIGTERM) };
    let deadline = Instant::now() + GRACE;
    while reap(|_| {}) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        signals.wait(Some(left));
    }
}

/// Takes the secret out of the environment and wipes where the kernel shows it (`/proc/1/environ`).
fn take_secret() -> Option<OsString> {
    // SAFETY: init has one thread, so nobody else uses the environment; the string returned by `getenv` is writable
    // memory of this process up to its terminating NUL, which stays.
    unsafe {
        let value = libc::getenv(c"HUTCH_SECRET".as_ptr());
        if value.is_null() {
            return None;
        }
        let secret = std::ffi::CStr::from_ptr(value).to_bytes().to_vec();
        std::ptr::write_bytes(value, b'x', secret.len());
        libc::unsetenv(c"HUTCH_SECRET".as_ptr());
        Some(OsString::from_vec(secret))
    }
}
