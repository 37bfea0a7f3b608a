//! How a process ended, in the words of Go's `os.ProcessState`, which clients compare with.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The end of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The exit code; -1 when a signal ended the process.
    pub code: i32,
    /// Whether the process ended by itself.
    pub exited: bool,
    /// `exit status 0`, `signal: killed`, …
    pub status: String,
}

impl Exit {
    /// What is wrong with this end: its status, unless it is success.
    pub fn error(&self) -> Option<&str> {
        (self.code != 0).then_some(self.status.as_str())
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        if let Some(code) = status.code() {
            return Self { code, exited: true, status: format!("exit status {code}") };
        }
        let signal = status.signal().unwrap_or(0);
        let core = if status.core_dumped() { " (core dumped)" } else { "" };
        let text = match signal_name(signal) {
            Some(name) => format!("signal: {name}{core}"),
            None => format!("signal: signal {signal}{core}"),
        };
        Self { code: -1, exited: false, status: text }
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    const NAMES: [&str; 31] = [
        "hangup",
        "interrupt",
        "quit",
        "illegal instruction",
        "trace/breakpoint trap",
        "aborted",
        "bus error",
        "floating point exception",
        "killed",
        "user defined signal 1",
        "segmentation fault",
        "user defined signal 2",
        "broken pipe",
        "alarm clock",
        "terminated",
        "stack fault",
        "child exited",
        "continued",
        "stopped (signal)",
        "stopped",
        "stopped (tty input)",
        "stopped (tty output)",
        "urgent I/O condition",
        "CPU time limit exceeded",
        "file size limit exceeded",
        "virtual timer expired",
        "profiling timer expired",
        "window changed",
        "I/O possible",
        "power failure",
        "bad system call",
    ];
    NAMES.get(usize::try_from(signal).ok()?.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(raw: i32, code: i32, exited: bool, status: &str, error: Option<&str>) {
        let exit = Exit::from(ExitStatus::from_raw(raw));
        assert_eq!(
            (exit.code, exit.exited, exit.status.as_str(), exit.error()),
            (code, exited, status, error)
        );
    }

    #[test]
    fn exits_read_as_clients_expect() {
        check(0, 0, true, "exit status 0", None);
        check(1 << 8, 1, true, "exit status 1", Some("exit status 1"));
        check(255 << 8, 255, true, "exit status 255", Some("exit status 255"));
    }

    #[test]
    fn signals_have_names_and_the_code_minus_one() {
        check(9, -1, false, "signal: killed", Some("signal: killed"));
        check(15, -1, false, "signal: terminated", Some("signal: terminated"));
        check(1, -1, false, "signal: hangup", Some("signal: hangup"));
        check(31, -1, false, "signal: bad system call", Some("signal: bad system call"));
        check(
            11 | 0x80,
            -1,
            false,
            "signal: segmentation fault (core dumped)",
            Some("signal: segmentation fault (core dumped)"),
        );
        check(34, -1, false, "signal: signal 34", Some("signal: signal 34"));
    }
}
