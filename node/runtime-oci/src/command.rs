//! Running other programs, with a deadline.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use hutch_runtime::RuntimeError;
use tokio::process::Command;

/// How much of a log goes into an error.
const LOG_TAIL: usize = 2_000;

/// A program that did not succeed.
#[derive(Debug, thiserror::Error)]
#[error("{program} ended with {status}: {said}")]
struct Failure {
    program: String,
    status: ExitStatus,
    said: String,
}

/// Runs `program` without input and output and kills it when it takes longer than `limit`. What went wrong is read from
/// the end of `log`, a file that the program was told to write to.
pub(crate) async fn run(
    attempted: &str,
    program: &Path,
    args: &[OsString],
    log: &Path,
    limit: Duration,
) -> Result<(), RuntimeError> {
    let mut command = command(program, args);
    // Containers keep runc's descriptors, so there must be no file of the host among them.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child =
        command.spawn().map_err(|e| RuntimeError::failed(format!("run {}", program.display()), e))?;
    let waited = tokio::time::timeout(limit, child.wait()).await;
    let status = match waited {
        Ok(status) => status.map_err(|e| RuntimeError::failed(attempted, e))?,
        Err(_) => {
            if let Err(error) = child.kill().await {
                tracing::warn!(%error, program = %program.display(), "could not kill a program that took too long");
            }
            return Err(timed_out(attempted, limit));
        }
    };
    if status.success() {
        return Ok(());
    }
    let said = log_messages(&tokio::fs::read_to_string(log).await.unwrap_or_default());
    Err(RuntimeError::failed(attempted, Failure { program: program.display().to_string(), status, said }))
}

fn command(program: &Path, args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(program);
    // A group of its own: Ctrl-C in the daemon's terminal must not hit a container that is being made.
    command.args(args).stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    command
}

pub(crate) fn timed_out(attempted: &str, limit: Duration) -> RuntimeError {
    RuntimeError::TimedOut {
        attempted: attempted.to_owned(),
        limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
    }
}

/// The messages of a log in runc's JSON format, or its end as it is.
fn log_messages(log: &str) -> String {
    let messages: Vec<String> = log
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|entry| Some(entry.get("msg")?.as_str()?.to_owned()))
        .collect();
    let text = if messages.is_empty() { log.trim().to_owned() } else { messages.join("; ") };
    let start = text.char_indices().rev().nth(LOG_TAIL).map_or(0, |(at, _)| at);
    text.get(start..).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_carries_the_messages_of_the_log() {
        let log = "{\"level\":\"error\",\"msg\":\"first\",\"time\":\"t\"}\n{\"level\":\"error\",\"msg\":\"second\"}\n";
        assert_eq!(log_messages(log), "first; second");
        assert_eq!(log_messages("plain text\n"), "plain text");
        assert_eq!(log_messages(&"é".repeat(5000)).chars().count(), LOG_TAIL + 1);
    }

    #[tokio::test]
    async fn a_program_that_takes_too_long_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let pid_file = dir.path().join("pid");
        let script = format!("echo $$ > {}; exec sleep 60", pid_file.display());
        let args = ["-c".into(), script.into()];
        let error =
            run("wait", Path::new("/bin/sh"), &args, Path::new("/dev/null"), Duration::from_millis(300))
                .await
                .unwrap_err();
        assert!(matches!(error, RuntimeError::TimedOut { limit_ms: 300, .. }), "{error:?}");
        let pid = std::fs::read_to_string(pid_file).unwrap();
        assert!(!Path::new(&format!("/proc/{}", pid.trim())).exists());
    }

    #[tokio::test]
    async fn a_failure_names_the_program_and_what_it_said() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let args = ["-c".into(), format!("echo no > {}; exit 3", log.display()).into()];
        let error = run("try", Path::new("/bin/sh"), &args, &log, Duration::from_secs(10)).await;
        let text = error.unwrap_err().chain();
        assert!(text.contains("/bin/sh") && text.contains('3') && text.contains("no"), "{text}");
    }
}
