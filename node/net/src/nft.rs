//! Runs `nft`.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::error::{Attempt, NetError};

const DEADLINE: Duration = Duration::from_secs(10);

/// The daemon's own path need not have the `sbin` directories.
pub(crate) const PATH: &str = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin";

/// Loads `ruleset` in one transaction: all of it or nothing.
pub(crate) async fn load(ruleset: &str) -> Result<(), NetError> {
    let attempted = || "load the nftables rules with nft".to_owned();
    match tokio::time::timeout(DEADLINE, run(&["-f", "-"], ruleset)).await {
        Ok(result) => result.map(drop).attempting(attempted),
        Err(_) => Err(NetError::TimedOut { attempted: attempted(), limit_ms: 10_000 }),
    }
}

/// Runs `nft` with `args` and `input`, and returns what it printed. Dropping the future kills it.
async fn run(args: &[&str], input: &str) -> io::Result<String> {
    let mut child = Command::new("nft")
        .env("PATH", PATH)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).await?;
    }
    let output = child.wait_with_output().await?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said: String = String::from_utf8_lossy(&output.stderr).chars().take(2000).collect();
    Err(io::Error::other(format!("{}: {}", output.status, said.trim())))
}
