//! What the checks ask of envd: enough to see from inside what a check is about.

use std::time::Instant;

use http::{HeaderMap, HeaderValue, header};
use hutch_envd_client::{EnvdClient, RunError};

use super::PATIENCE;
use crate::Instance;

/// How a command ended.
#[derive(Debug)]
pub struct Output {
    /// What it wrote there, as text.
    pub stdout: String,
    /// What it wrote there, as text.
    pub stderr: String,
    /// Whether it ended with status 0.
    pub is_success: bool,
}

/// Waits until envd answers.
pub async fn wait_healthy(instance: &dyn Instance) {
    let started = Instant::now();
    loop {
        let answer = health(instance).await;
        if answer.is_ok() {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "envd does not answer: {answer:?}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Whether envd answers now.
pub async fn health(instance: &dyn Instance) -> Result<(), RunError> {
    client(instance).health(PATIENCE * 2).await
}

/// Runs a shell script as root inside and waits for its end.
pub async fn shell(instance: &dyn Instance, script: &str) -> Output {
    let in_root = format!("cd /; {script}");
    match client(instance).start("/bin/sh", &["-c", &in_root], PATIENCE * 2).await {
        Ok(output) => Output {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            is_success: output.exit_code == 0,
        },
        Err(error) => panic!("run {script:?}: {error}: {error:?}"),
    }
}

/// What a script that must succeed prints, without the line's end.
pub async fn stdout(instance: &dyn Instance, script: &str) -> String {
    let output = shell(instance, script).await;
    assert!(output.is_success, "{script:?}: {output:?}");
    output.stdout.trim().to_owned()
}

/// A client that acts as root.
fn client(instance: &dyn Instance) -> EnvdClient {
    let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static("Basic cm9vdDo="))]);
    EnvdClient::new(&format!("http://{}:{}", instance.address(), instance.envd_port()), headers)
}
