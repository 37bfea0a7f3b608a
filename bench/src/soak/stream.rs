//! One stream: a command after the other until the time is over, every byte compared.

use std::time::{Duration, Instant};

use hutch_envd_client::{EnvdClient, Event, RunError};
use sha2::{Digest, Sha256};

use crate::script::{Kind, Random, Script};

/// What a stream has seen.
#[derive(Debug, Default)]
pub struct Seen {
    pub commands: u64,
    pub bytes: u64,
    /// The longest silence beyond the pauses of the commands themselves.
    pub longest_stall: Duration,
    /// Silences longer than a second, beyond the pauses.
    pub stalls: u64,
    /// What went wrong: wrong bytes, or errors.
    pub faults: Vec<String>,
}

/// Between two chunks, for a slow reader.
const SLOWLY: Duration = Duration::from_millis(50);
/// What counts as a stall.
const STALL: Duration = Duration::from_secs(1);

/// Runs commands on `client` until `until`; the one that is running then comes to its end.
pub async fn run(
    client: EnvdClient,
    kind: Kind,
    seed: u64,
    name: String,
    until: Instant,
    limit: Duration,
) -> Seen {
    let mut random = Random::new(seed);
    let mut seen = Seen::default();
    while Instant::now() < until && seen.faults.len() < 3 {
        let script = Script::new(&mut random, kind, format!("{name}.{}", seen.commands));
        match tokio::time::timeout(limit, one(&client, &script, &mut seen)).await {
            Ok(Ok(())) => seen.commands += 1,
            Ok(Err(fault)) => seen.faults.push(format!("{name}: {fault}")),
            Err(_) => seen.faults.push(format!("{name}: a command did not end within {limit:?}")),
        }
    }
    seen
}

async fn one(client: &EnvdClient, script: &Script, seen: &mut Seen) -> Result<(), String> {
    let told = |error: RunError| match std::error::Error::source(&error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    let mut last = Instant::now();
    let mut events = client.stream(&script.request()).await.map_err(told)?;
    let (mut length, mut hash, mut code) = (0, Sha256::new(), None);
    while let Some(event) = events.next().await.map_err(told)? {
        if script.kind != Kind::Slow {
            let stall = last.elapsed().saturating_sub(script.pause);
            seen.longest_stall = seen.longest_stall.max(stall);
            seen.stalls += u64::from(stall > STALL);
        }
        match event {
            Event::Stdout(data) | Event::Pty(data) => {
                length += u64::try_from(data.len()).unwrap_or(0);
                hash.update(&data);
                if script.kind == Kind::Slow {
                    tokio::time::sleep(SLOWLY).await;
                }
            }
            Event::Stderr(data) => return Err(format!("it complained: {}", String::from_utf8_lossy(&data))),
            Event::Ended(with) => code = Some(with),
            Event::Started(_) => {}
        }
        last = Instant::now();
    }
    seen.bytes += length;
    let (expected, sum) = script.expected();
    if code != Some(0) {
        return Err(format!("it ended with {code:?}"));
    }
    if length != expected {
        return Err(format!("{length} bytes came instead of {expected}"));
    }
    if <[u8; 32]>::from(hash.finalize()) != sum {
        return Err("other bytes came than were sent".to_owned());
    }
    Ok(())
}
