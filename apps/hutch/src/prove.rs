//! Proves that this server works: creates a sandbox, runs a command in it through the edge, kills it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hutch_app::{App, Caller, CreateOptions, CreateSandbox};
use hutch_envd_client::EnvdClient;
use hutch_types::TeamId;

/// How long each step took.
#[derive(Debug)]
pub struct Proof {
    /// From the request until the sandbox answered.
    pub create: Duration,
    /// From the command's start until its end.
    pub command: Duration,
    /// What it printed.
    pub output: String,
    /// Until nothing was left.
    pub kill: Duration,
}

/// Runs the whole of it with the `base` template.
pub async fn prove(app: &App, address: SocketAddr, team: TeamId) -> anyhow::Result<Proof> {
    let caller = Caller { team, key_id: "welcome".to_owned() };
    let request = CreateSandbox {
        template: "base".to_owned(),
        timeout_seconds: 60,
        metadata: [("hutch".to_owned(), "welcome".to_owned())].into(),
        env: [].into(),
        allow_internet_access: None,
        options: CreateOptions::default(),
    };
    let started = Instant::now();
    let sandbox = app.create_sandbox(&caller, request).await.map_err(|e| anyhow::anyhow!(e.chain()))?;
    let create = started.elapsed();
    let asked = &sandbox.asked;
    let client = EnvdClient::through_edge(
        &format!("http://{address}"),
        asked.id.as_str(),
        asked.access_token.expose(),
    )?;
    let script =
        "echo \"$(whoami) on Linux $(uname -r), python $(python3 -V | cut -d' ' -f2), node $(node -v)\"";
    let ran = client.run(script, Duration::from_secs(20)).await;
    let started = Instant::now();
    app.kill_sandbox(&caller, &asked.id).await.map_err(|e| anyhow::anyhow!(e.chain()))?;
    let kill = started.elapsed();
    let ran = ran.context("the command did not run")?;
    if ran.exit_code != 0 {
        bail!("the command failed with {}: {}", ran.exit_code, String::from_utf8_lossy(&ran.stderr));
    }
    let output = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
    Ok(Proof { create, command: ran.total, output, kill })
}
