//! What clients write to a process.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use hutch_proto::process::process_input::Input as Data;
use rustix::termios::Winsize;
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;

use super::error::ProcessError;

/// Where input goes. Writes of several clients do not mix: each waits for its turn.
#[derive(Debug)]
pub(super) enum Input {
    /// A pipe; `None` when there never was one or it has been closed.
    Stdin(Mutex<Option<AsyncFd<OwnedFd>>>),
    /// A terminal's master side, shared with the pump. The lock orders the writers.
    Pty(Arc<AsyncFd<OwnedFd>>, Mutex<()>),
}

impl Input {
    /// Writes all of `data`, waiting while the process does not read. Cancelled, it may have written a part.
    pub(super) async fn write(&self, data: &Data) -> Result<(), ProcessError> {
        match (self, data) {
            (Self::Stdin(pipe), Data::Stdin(data)) => {
                let pipe = pipe.lock().await;
                let Some(pipe) = pipe.as_ref() else {
                    return Err(refused("stdin", "stdin not enabled or closed"));
                };
                write_all(pipe, data).await.map_err(|e| refused("stdin", &e.to_string()))
            }
            (Self::Pty(master, turn), Data::Pty(data)) => {
                let _turn = turn.lock().await;
                write_all(master, data).await.map_err(|e| refused("tty", &e.to_string()))
            }
            (Self::Pty(..), Data::Stdin(_)) => Err(refused(
                "stdin",
                "tty assigned to process, input should be written to the pty, not the stdin",
            )),
            (Self::Stdin(_), Data::Pty(_)) => Err(refused(
                "tty",
                "tty not assigned to process, input should be written to the stdin, not the tty",
            )),
        }
    }

    /// Ends stdin; once more is no error.
    pub(super) async fn close(&self) -> Result<(), ProcessError> {
        match self {
            Self::Stdin(pipe) => {
                *pipe.lock().await = None;
                Ok(())
            }
            Self::Pty(..) => Err(ProcessError::CloseTerminal),
        }
    }

    /// Resizes the terminal; the foreground processes get SIGWINCH.
    pub(super) fn resize(&self, size: Winsize) -> Result<(), ProcessError> {
        match self {
            Self::Pty(master, _) => rustix::termios::tcsetwinsize(master.get_ref(), size)
                .map_err(|e| ProcessError::Resize(e.into())),
            Self::Stdin(_) => Err(ProcessError::NoTerminal),
        }
    }
}

fn refused(to: &'static str, reason: &str) -> ProcessError {
    ProcessError::Write { to, reason: reason.to_owned() }
}

async fn write_all(fd: &AsyncFd<OwnedFd>, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        let mut ready = fd.writable().await?;
        match ready.try_io(|fd| Ok(rustix::io::write(fd, data)?)) {
            Ok(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(Ok(written)) => data = data.get(written..).unwrap_or_default(),
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
    Ok(())
}
