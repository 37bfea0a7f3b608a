//! A minimal client of envd: enough to see from inside what a check is about.

use std::io;
use std::time::{Duration, Instant};

use base64::Engine;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::PATIENCE;
use crate::Instance;

/// What is read of an answer, in bytes.
const MOST_OUTPUT: u64 = 4 << 20;

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
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether envd answers now.
pub async fn health(instance: &dyn Instance) -> io::Result<()> {
    let (status, _) = request(instance, "GET /health", "", b"").await?;
    if (200..300).contains(&status) { Ok(()) } else { Err(io::Error::other(format!("status {status}"))) }
}

/// Runs a shell script as root inside and waits for its end.
pub async fn shell(instance: &dyn Instance, script: &str) -> Output {
    match start_process(instance, script).await {
        Ok(output) => output,
        Err(error) => panic!("run {script:?}: {error}"),
    }
}

/// What a script that must succeed prints, without the line's end.
pub async fn stdout(instance: &dyn Instance, script: &str) -> String {
    let output = shell(instance, script).await;
    assert!(output.is_success, "{script:?}: {output:?}");
    output.stdout.trim().to_owned()
}

async fn start_process(instance: &dyn Instance, script: &str) -> io::Result<Output> {
    let message = json!({ "process": { "cmd": "/bin/sh", "args": ["-c", script], "cwd": "/" } }).to_string();
    let length = u32::try_from(message.len()).map_err(io::Error::other)?;
    let mut body = vec![0];
    body.extend(length.to_be_bytes());
    body.extend(message.as_bytes());
    let headers = "content-type: application/connect+json\r\nconnect-protocol-version: 1\r\nauthorization: Basic cm9vdDo=\r\n";
    let (status, answer) = request(instance, "POST /process.Process/Start", headers, &body).await?;
    if status != 200 {
        return Err(io::Error::other(format!("status {status}: {}", String::from_utf8_lossy(&answer))));
    }
    read_events(&answer)
}

fn read_events(mut frames: &[u8]) -> io::Result<Output> {
    let (mut stdout, mut stderr, mut end) = (Vec::new(), Vec::new(), None);
    let decode = |value: &Value| {
        let bytes = base64::engine::general_purpose::STANDARD.decode(value.as_str().unwrap_or_default());
        bytes.map_err(io::Error::other)
    };
    while let Some((head, rest)) = frames.split_at_checked(5) {
        let length = head.get(1..5).and_then(|l| l.try_into().ok()).map(u32::from_be_bytes).unwrap_or(0);
        let length = usize::try_from(length).map_err(io::Error::other)?;
        let (message, rest) = rest.split_at_checked(length).ok_or(io::ErrorKind::UnexpectedEof)?;
        frames = rest;
        let message: Value = serde_json::from_slice(message)?;
        if let Some(error) = message.get("error") {
            return Err(io::Error::other(error.to_string()));
        }
        let event = message.get("event").unwrap_or(&Value::Null);
        if let Some(data) = event.get("data") {
            stdout.extend(decode(data.get("stdout").unwrap_or(&Value::Null))?);
            stderr.extend(decode(data.get("stderr").unwrap_or(&Value::Null))?);
        }
        if let Some(ended) = event.get("end") {
            end = Some(ended.clone());
        }
    }
    let end = end.ok_or_else(|| io::Error::other("the stream ended without the process's end"))?;
    let exited = end.get("exited").and_then(Value::as_bool).unwrap_or(false);
    // Zero is left out of protobuf's JSON.
    let code = end.get("exitCode").and_then(Value::as_i64).unwrap_or(0);
    Ok(Output {
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
        is_success: exited && code == 0,
    })
}

/// One HTTP/1.1 exchange on a connection of its own.
async fn request(
    instance: &dyn Instance,
    method_and_path: &str,
    headers: &str,
    body: &[u8],
) -> io::Result<(u16, Vec<u8>)> {
    let exchange = async {
        let mut stream = TcpStream::connect((instance.address(), instance.envd_port())).await?;
        let head = format!(
            "{method_and_path} HTTP/1.1\r\nhost: envd\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
        let mut answer = Vec::new();
        stream.take(MOST_OUTPUT).read_to_end(&mut answer).await?;
        parse_answer(&answer)
    };
    match tokio::time::timeout(PATIENCE * 2, exchange).await {
        Ok(result) => result,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn parse_answer(answer: &[u8]) -> io::Result<(u16, Vec<u8>)> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "malformed answer");
    let split = answer.windows(4).position(|w| w == b"\r\n\r\n").ok_or_else(malformed)?;
    let (head, body) = answer.split_at(split);
    let body = body.get(4..).unwrap_or_default();
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or_else(malformed)?;
    if head.contains("transfer-encoding: chunked") {
        return Ok((status, dechunk(body).ok_or_else(malformed)?));
    }
    Ok((status, body.to_vec()))
}

fn dechunk(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|w| w == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(body.get(..end)?).ok()?.trim(), 16).ok()?;
        let chunk = body.get(end + 2..)?;
        if length == 0 {
            return Some(whole);
        }
        whole.extend(chunk.get(..length)?);
        body = chunk.get(length + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunked_answer_is_put_together() {
        let answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        assert_eq!(parse_answer(answer).unwrap(), (200, b"abcde".to_vec()));
        assert!(parse_answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab").is_err());
    }

    #[test]
    fn events_are_put_together() {
        let mut frames = Vec::new();
        for message in [
            r#"{"event":{"start":{"pid":7}}}"#,
            r#"{"event":{"data":{"stdout":"aGVsbG8="}}}"#,
            r#"{"event":{"end":{"exited":true,"status":"exit status 0"}}}"#,
            "{}",
        ] {
            frames.push(0);
            frames.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
            frames.extend(message.as_bytes());
        }
        let output = read_events(&frames).unwrap();
        assert_eq!((output.stdout.as_str(), output.is_success), ("hello", true));
        frames.truncate(frames.len() - 80);
        assert!(read_events(&frames).is_err());
    }
}
