//! Pseudo terminals.

use std::io;
use std::os::fd::OwnedFd;

use hutch_proto::process as pb;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Gid, Uid};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::users::User;

/// A new terminal: the side that envd keeps, and the side that becomes the process's controlling terminal.
pub(super) struct Terminal {
    pub(super) master: OwnedFd,
    pub(super) slave: OwnedFd,
}

/// Opens a terminal that belongs to `user`, so that programs which reopen their terminal by its path can.
pub(super) fn open(user: &User, size: Winsize) -> io::Result<Terminal> {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    let name = rustix::pty::ptsname(&master, Vec::new())?;
    let slave = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    if user.switch {
        rustix::fs::fchown(&slave, Some(Uid::from_raw(user.uid)), None::<Gid>)?;
    }
    rustix::termios::tcsetwinsize(&slave, size)?;
    Ok(Terminal { master, slave })
}

/// The asked size; 80 by 24 when none, or nothing usable, is asked for.
pub(super) fn window(pty: &pb::PTY) -> Winsize {
    let cells = |n: u32, default: u16| if n == 0 { default } else { u16::try_from(n).unwrap_or(u16::MAX) };
    let (cols, rows) = pty.size.as_option().map_or((0, 0), |s| (s.cols, s.rows));
    Winsize { ws_row: cells(rows, 24), ws_col: cells(cols, 80), ws_xpixel: 0, ws_ypixel: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_clamped_and_defaulted() {
        let of = |cols, rows| {
            let size = pb::pty::Size { cols, rows, ..Default::default() };
            let w = window(&pb::PTY { size: size.into(), ..Default::default() });
            (w.ws_col, w.ws_row)
        };
        assert_eq!(of(120, 40), (120, 40));
        assert_eq!(of(0, 0), (80, 24));
        assert_eq!(of(1_000_000, 1), (u16::MAX, 1));
        let w = window(&pb::PTY::default());
        assert_eq!((w.ws_col, w.ws_row), (80, 24));
    }
}
