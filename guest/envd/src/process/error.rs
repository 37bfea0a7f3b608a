//! What can go wrong with a process, and which RPC error it is.

use std::io;
use std::path::PathBuf;

use connectrpc::{ConnectError, ErrorCode};

use crate::paths::PathError;

/// Why a process could not be started, found, written to, resized or signalled.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProcessError {
    #[error("process with pid {0} not found")]
    NoSuchPid(u32),
    #[error("process with tag {0} not found")]
    NoSuchTag(String),
    #[error("a process is selected by pid or tag")]
    NoSelector,
    #[error("the request has no process to start")]
    NoCommand,
    #[error("invalid name of an environment variable: '{0}'")]
    Variable(String),
    #[error("{field} contains a NUL byte")]
    Nul { field: &'static str },
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("cwd '{0}' does not exist")]
    NoCwd(PathBuf),
    #[error("cwd '{0}' is not a directory")]
    CwdNotDirectory(PathBuf),
    #[error("cwd '{0}': permission denied")]
    CwdDenied(PathBuf),
    #[error("error starting process '{command}': {reason}")]
    Spawn {
        command: String,
        // In the text as well, since it is what the client can act on: no such file, permission denied.
        reason: String,
        #[source]
        source: io::Error,
    },
    #[error("error preparing the streams of a process")]
    Streams(#[source] io::Error),
    #[error("error writing to {to}: {reason}")]
    Write { to: &'static str, reason: String },
    #[error("a data event needs a start event before it")]
    InputBeforeStart,
    #[error("the input is neither for stdin nor for a pty")]
    NoInput,
    #[error("error closing stdin: cannot close stdin for PTY process, send Ctrl+D (0x04) instead")]
    CloseTerminal,
    #[error("error resizing tty: tty not assigned to process")]
    NoTerminal,
    #[error("error resizing tty")]
    Resize(#[source] io::Error),
    #[error("invalid signal: {0}")]
    Signal(String),
    #[error("error sending signal")]
    Kill(#[source] io::Error),
}

impl ProcessError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoSuchPid(_) | Self::NoSuchTag(_) => ErrorCode::NotFound,
            Self::NoSelector
            | Self::NoCommand
            | Self::Variable(_)
            | Self::Nul { .. }
            | Self::Path(_)
            | Self::NoCwd(_)
            | Self::CwdNotDirectory(_)
            | Self::Spawn { .. }
            | Self::InputBeforeStart
            | Self::NoInput => ErrorCode::InvalidArgument,
            Self::CwdDenied(_) => ErrorCode::PermissionDenied,
            Self::Signal(_) => ErrorCode::Unimplemented,
            // The code that E2B's envd answers with; clients have no better use for another one.
            Self::CloseTerminal => ErrorCode::Unknown,
            Self::Streams(_) | Self::Write { .. } | Self::NoTerminal | Self::Resize(_) | Self::Kill(_) => {
                ErrorCode::Internal
            }
        }
    }
}

impl From<ProcessError> for ConnectError {
    fn from(error: ProcessError) -> Self {
        ConnectError::new(error.code(), error.to_string()).with_source(error)
    }
}
