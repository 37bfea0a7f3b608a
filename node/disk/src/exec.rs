//! Runs a program with a deadline.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs `command` to its end, at most `limit`, without input. Its output is dropped unless it fails.
///
/// # Errors
/// When it cannot be started, fails (the message carries what it said), or takes too long (it is killed then).
pub(crate) fn run(command: &mut Command, limit: Duration) -> io::Result<()> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_micros(200);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("took longer than {limit:?}")));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(stderr) = child.stderr.take() {
        // It has ended, so this ends too; what is beyond the cap is of no use in a message.
        stderr.take(2000).read_to_string(&mut said)?;
    }
    Err(io::Error::other(format!("{status}: {}", said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_failing_program_said_is_in_the_error() {
        let error = run(Command::new("sh").args(["-c", "echo broken >&2; exit 3"]), Duration::from_secs(5))
            .expect_err("fails");
        assert!(error.to_string().contains("broken"), "{error}");
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let error = run(Command::new("sleep").arg("60"), Duration::from_millis(20)).expect_err("hangs");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
