//! What a failed system call means to the one who asked.

use std::io;
use std::path::Path;

use connectrpc::ConnectError;
use http::StatusCode;
use rustix::io::Errno;

/// A kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// There is nothing at the path.
    Missing,
    /// Something on the way is no directory.
    NotADirectory,
    /// Links go in circles.
    Loop,
    /// No path can be like this.
    Invalid,
    /// No space, no inodes, or no quota.
    NoSpace,
    /// Not even root may.
    Denied,
    /// In use.
    Busy,
    /// Anything else.
    Other,
}

impl Fault {
    pub(crate) fn of(error: &io::Error) -> Self {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT) => Self::Missing,
            Some(Errno::NOTDIR) => Self::NotADirectory,
            Some(Errno::LOOP) => Self::Loop,
            Some(Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ) => Self::Invalid,
            Some(Errno::NOSPC | Errno::DQUOT) => Self::NoSpace,
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Self::Denied,
            Some(Errno::BUSY | Errno::TXTBSY) => Self::Busy,
            _ => Self::Other,
        }
    }

    /// The status of a plain HTTP answer.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Missing => StatusCode::NOT_FOUND,
            Self::NotADirectory | Self::Loop | Self::Invalid => StatusCode::BAD_REQUEST,
            Self::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            Self::Denied => StatusCode::FORBIDDEN,
            Self::Busy => StatusCode::CONFLICT,
            Self::Other => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn rpc(self, message: String) -> ConnectError {
        match self {
            Self::Missing => ConnectError::not_found(message),
            Self::NotADirectory | Self::Invalid => ConnectError::invalid_argument(message),
            Self::Loop | Self::Busy => ConnectError::failed_precondition(message),
            Self::NoSpace => ConnectError::resource_exhausted(message),
            Self::Denied => ConnectError::permission_denied(message),
            Self::Other => ConnectError::internal(message),
        }
    }
}

/// An RPC's error for a failed system call: `attempt` names what was tried, such as "reading directory".
pub(crate) fn rpc_error(attempt: &str, path: &Path, error: &io::Error) -> ConnectError {
    Fault::of(error).rpc(format!("{attempt} '{}': {}", path.display(), reason(error)))
}

/// The cause in words, without the number that Rust appends.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_lowercase(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_its_status_and_code() {
        let check = |errno: Errno, fault, status, code| {
            let error = io::Error::from(errno);
            assert_eq!(Fault::of(&error), fault, "{errno}");
            assert_eq!(fault.status().as_u16(), status, "{errno}");
            assert_eq!(rpc_error("trying", Path::new("/x"), &error).code.as_str(), code, "{errno}");
        };
        check(Errno::NOENT, Fault::Missing, 404, "not_found");
        check(Errno::NOTDIR, Fault::NotADirectory, 400, "invalid_argument");
        check(Errno::LOOP, Fault::Loop, 400, "failed_precondition");
        check(Errno::NAMETOOLONG, Fault::Invalid, 400, "invalid_argument");
        check(Errno::NOSPC, Fault::NoSpace, 507, "resource_exhausted");
        check(Errno::DQUOT, Fault::NoSpace, 507, "resource_exhausted");
        check(Errno::ROFS, Fault::Denied, 403, "permission_denied");
        check(Errno::TXTBSY, Fault::Busy, 409, "failed_precondition");
        check(Errno::IO, Fault::Other, 500, "internal");
    }

    #[test]
    fn messages_say_what_was_tried_on_what_and_why() {
        let error = rpc_error("reading directory", Path::new("/x"), &Errno::NOENT.into());
        assert_eq!(error.message.as_deref(), Some("reading directory '/x': no such file or directory"));
    }
}
