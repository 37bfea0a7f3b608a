//! The signals init waits for. They are blocked, not handled, so that none is lost between two waits; blocked ones
//! also reach PID 1 from outside its namespace, which unhandled ones do not.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// The set of signals that are waited for.
pub(crate) struct Signals(libc::sigset_t);

/// What a wait ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// A child ended, maybe several.
    Child,
    /// Init is to end.
    Stop,
    /// The time is over, or the wait was interrupted.
    Nothing,
}

/// Blocks nothing any more: what a child has to do before it becomes another program. Only makes a system call.
pub(crate) fn unblock_all() -> io::Result<()> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` fills the set, which `pthread_sigmask` then reads; no old set is asked for.
    let errno = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut())
    };
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

impl Signals {
    /// Blocks SIGCHLD, SIGTERM and SIGINT for this thread. Children inherit that: see [`unblock_all`].
    pub(crate) fn block() -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` fills the set, which the others then read and write.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            set.assume_init()
        };
        // SAFETY: reads the set; no old set is asked for.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
            0 => Ok(Self(set)),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Waits for one of the signals, at most `patience`; without it, for as long as it takes.
    pub(crate) fn wait(&self, patience: Option<Duration>) -> Received {
        let timeout = patience.map(|p| libc::timespec {
            tv_sec: libc::time_t::try_from(p.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(p.subsec_nanos()),
        });
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: reads the set and, when not null, the timeout, both of which outlive the call.
        match unsafe { libc::sigtimedwait(&raw const self.0, std::ptr::null_mut(), timeout) } {
            libc::SIGCHLD => Received::Child,
            libc::SIGTERM | libc::SIGINT => Received::Stop,
            _ => Received::Nothing,
        }
    }
}
