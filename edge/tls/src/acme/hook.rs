//! Text records through a command of the operator's.
//!
//! It is started as `COMMAND add|remove NAME VALUE`, without a shell and with the server's environment, and has to come back with
//! status 0 when the record is published or removed. It is stopped after its deadline.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// Bytes of what the command says that an error shows.
const MOST_SAID: u64 = 2000;

/// The command.
#[derive(Debug, Clone)]
pub struct Hook {
    /// Its path.
    pub command: PathBuf,
    /// How long it may take.
    pub timeout: Duration,
}

/// The command did not do it.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// It cannot be started.
    #[error("the hook {} cannot be started", command.display())]
    Start {
        /// Its path.
        command: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It ended with another status than 0.
    #[error("the hook's {action} ended with {status}: {said}")]
    Failed {
        /// `add` or `remove`.
        action: &'static str,
        /// The status.
        status: std::process::ExitStatus,
        /// The end of what it wrote to its error output.
        said: String,
    },
    /// It took too long and was stopped.
    #[error("the hook's {action} took longer than {} s", timeout.as_secs())]
    TimedOut {
        /// `add` or `remove`.
        action: &'static str,
        /// How long it had.
        timeout: Duration,
    },
}

impl Hook {
    pub(super) async fn run(&self, action: &'static str, name: &str, value: &str) -> Result<(), HookError> {
        let start = |source| HookError::Start { command: self.command.clone(), source };
        let mut child = Command::new(&self.command)
            .args([action, name, value])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Also when this is given up because the server stops.
            .kill_on_drop(true)
            .spawn()
            .map_err(start)?;
        let errors = child.stderr.take();
        let whole = async {
            let mut said = Vec::new();
            if let Some(errors) = errors {
                let mut limited = errors.take(MOST_SAID);
                limited.read_to_end(&mut said).await?;
                // What follows is read and forgotten, so that the command never waits for us.
                tokio::io::copy(&mut limited.into_inner(), &mut tokio::io::sink()).await?;
            }
            Ok((child.wait().await?, said))
        };
        let (status, said) = tokio::time::timeout(self.timeout, whole)
            .await
            .map_err(|_| HookError::TimedOut { action, timeout: self.timeout })?
            .map_err(start)?;
        if status.success() {
            return Ok(());
        }
        Err(HookError::Failed { action, status, said: String::from_utf8_lossy(&said).trim().to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn hook(script: &str, timeout: Duration) -> (tempfile::TempDir, Hook) {
        let dir = tempfile::tempdir().unwrap();
        let command = dir.path().join("hook");
        std::fs::write(&command, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&command, std::fs::Permissions::from_mode(0o755)).unwrap();
        (dir, Hook { command, timeout })
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn it_is_called_with_action_name_and_value() {
        let (dir, hook) = hook("printf '%s|' \"$@\" > \"${0%/*}/said\"", LONG);
        hook.run("add", "_acme-challenge.a.test", "v $(x)").await.unwrap();
        let said = std::fs::read_to_string(dir.path().join("said")).unwrap();
        assert_eq!(said, "add|_acme-challenge.a.test|v $(x)|");
    }

    #[tokio::test]
    async fn what_goes_wrong_is_said() {
        let (_dir, failing) = hook("echo no such zone >&2; exit 3", LONG);
        let error = failing.run("add", "n", "v").await.unwrap_err().to_string();
        assert_eq!(error, "the hook's add ended with exit status: 3: no such zone");
        let (_dir, loud) = hook("head -c 1000000 /dev/zero >&2; exit 1", LONG);
        assert!(matches!(loud.run("add", "n", "v").await, Err(HookError::Failed { .. })));
        let (_dir, slow) = hook("exec sleep 60", Duration::from_millis(200));
        assert!(matches!(slow.run("remove", "n", "v").await, Err(HookError::TimedOut { .. })));
        let missing = Hook { command: "/no/such/hook".into(), timeout: LONG };
        assert!(matches!(missing.run("add", "n", "v").await, Err(HookError::Start { .. })));
    }
}
