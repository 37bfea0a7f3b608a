//! What a running sandbox uses and what its envd logged, told to control every few seconds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hutch_node_api::{LogLine, NodeEvent, ResourceSample};
use hutch_runtime::{Instance, InstanceStats};
use hutch_types::{Resources, SandboxId, Timestamp};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::envd::{Call, Envd, EnvdError, Known};
use crate::error::chain;
use crate::labels::{Owner, SandboxLabels};
use crate::node::Node;

/// The first sample comes after this.
const FIRST: Duration = Duration::from_secs(1);
/// Longest wait for a sandbox's log lines.
const LOGS_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of log lines that envd may send at a time.
const MAX_LOGS_BYTES: usize = 2 << 20;
/// Lines taken from one answer.
pub(crate) const MAX_LINES: usize = 1000;
/// Bytes of text taken from one answer; what is beyond is left for the next one.
pub(crate) const MAX_TEXT: usize = 512 << 10;
const MAX_MESSAGE: usize = 4096;
const MAX_FIELDS: usize = 16;
const MAX_KEY: usize = 64;
const MAX_VALUE: usize = 2048;
const MIB: u64 = 1 << 20;

/// Follows one sandbox. All its figures are the host's; the guest is asked for its log lines alone.
#[derive(Debug)]
pub(crate) struct Sampler {
    pub node: Arc<Node>,
    pub instance: Arc<dyn Instance>,
    pub envd: Envd,
    pub labels: SandboxLabels,
}

impl Sampler {
    /// Checks that an adopted sandbox's envd answers. Returns what is wrong with it, if anything. Cancellation safe.
    pub async fn check(&mut self) -> Result<(), &'static str> {
        let limit = self.node.shared.config.adoption_timeout;
        self.envd.call_until(&Call::health(), limit, Known::Up).await.map(drop).map_err(|error| {
            tracing::warn!(sandbox = %self.labels.sandbox_id, error = chain(&error), "envd does not answer");
            "its envd did not answer after a restart of the node"
        })
    }

    /// Samples for ever. Cancellation safe.
    pub async fn run(&mut self) {
        let interval = self.node.shared.config.sample_interval;
        let mut last = self.stats().await.map(|s| (Instant::now(), s));
        let mut pause = FIRST.min(interval);
        loop {
            tokio::time::sleep(pause).await;
            pause = interval;
            if let Some(now) = self.stats().await {
                let at = Instant::now();
                if let Some((before, then)) = last {
                    self.emit_sample(&then, &now, at.duration_since(before));
                }
                last = Some((at, now));
            }
            self.take_logs(LOGS_TIMEOUT).await;
            // An idle sandbox need not hold a connection.
            self.envd.hang_up();
        }
    }

    async fn stats(&self) -> Option<InstanceStats> {
        let limit = self.node.shared.config.step_timeout;
        match tokio::time::timeout(limit, self.instance.stats()).await {
            Ok(Ok(stats)) => Some(stats),
            Ok(Err(error)) => {
                tracing::debug!(sandbox = %self.labels.sandbox_id, error = error.chain(), "no figures");
                None
            }
            Err(_) => None,
        }
    }

    fn emit_sample(&self, then: &InstanceStats, now: &InstanceStats, elapsed: Duration) {
        let at = self.node.shared.clock.now();
        let sample = sample(at, &self.instance.spec().resources, then, now, elapsed);
        self.emit(NodeEvent::Sample { sandbox_id: self.id(), sample });
    }

    /// Takes the log lines that have come since the last time. How far it came is noted on the instance, so that a
    /// restarted daemon does not tell the same lines again.
    pub async fn take_logs(&mut self, within: Duration) {
        let said = self.node.guests.take(self.instance.address(), self.node.shared.clock.now());
        if !said.is_empty() {
            self.emit(NodeEvent::Logs { sandbox_id: self.id(), lines: said });
        }
        // One hostile guest must not make the host hold many large answers at a time.
        let node = self.node.clone();
        let Ok(_turn) = node.log_pulls.acquire().await else { return };
        match self.fetch_logs(within).await {
            Ok((next, lines)) => {
                if !lines.is_empty() {
                    self.emit(NodeEvent::Logs { sandbox_id: self.id(), lines });
                }
                if next != self.labels.logs_cursor {
                    self.labels.logs_cursor = next;
                    let labels = Owner::Sandbox(self.labels.clone()).to_labels();
                    if let Err(error) = self.instance.set_labels(labels).await {
                        tracing::warn!(sandbox = %self.labels.sandbox_id, error = error.chain(), "could not note the log cursor");
                    }
                }
            }
            Err(error) => {
                tracing::debug!(sandbox = %self.labels.sandbox_id, error = chain(&error), "no log lines")
            }
        }
    }

    async fn fetch_logs(&mut self, within: Duration) -> Result<(u64, Vec<LogLine>), EnvdError> {
        let path = format!("/logs?after={}", self.labels.logs_cursor);
        let call = Call::get("GET /logs", path, MAX_LOGS_BYTES);
        let body = self.envd.call(&call, within).await?;
        parse_logs(&body, self.node.shared.clock.now())
            .map_err(|source| EnvdError::Exchange { call: "GET /logs", source: source.into() })
    }

    fn emit(&self, event: NodeEvent) {
        self.node.events.push(event);
    }

    fn id(&self) -> SandboxId {
        self.labels.sandbox_id.clone()
    }
}

fn sample(
    at: Timestamp,
    resources: &Resources,
    then: &InstanceStats,
    now: &InstanceStats,
    elapsed: Duration,
) -> ResourceSample {
    let cpus = resources.vcpus.max(1);
    let used_us = now.cpu_usage_us.saturating_sub(then.cpu_usage_us);
    let available_us = elapsed.as_micros().max(1).saturating_mul(u128::from(cpus));
    // Hundredths of a percent, rounded, at most all CPUs: the two clocks are not read in the same instant.
    let hundredths = (u128::from(used_us) * 10_000 / available_us).min(10_000);
    ResourceSample {
        at,
        cpu_count: resources.vcpus,
        cpu_used_pct: f64::from(u32::try_from(hundredths).unwrap_or(10_000)) / 100.0,
        mem_used_bytes: now.memory_used_bytes,
        mem_total_bytes: u64::from(resources.memory_mib) * MIB,
        mem_cache_bytes: now.memory_cache_bytes,
        disk_used_bytes: now.disk_used_bytes,
        disk_total_bytes: now.disk_total_bytes,
    }
}

#[derive(Deserialize)]
struct Page {
    next: u64,
    #[serde(default)]
    lines: Vec<Line>,
}

/// A line in the guest's words.
#[derive(Deserialize)]
pub(crate) struct Line {
    #[serde(default)]
    pub seq: Option<u64>,
    #[serde(default)]
    pub timestamp: String,
    #[serde(default)]
    pub level: String,
    #[serde(default)]
    pub logger: String,
    #[serde(default)]
    pub message: String,
    #[serde(default)]
    pub fields: serde_json::Map<String, Value>,
}

/// Log lines from the guest's words: everything cut to size, no time in the future.
fn parse_logs(body: &[u8], now: Timestamp) -> Result<(u64, Vec<LogLine>), serde_json::Error> {
    let page: Page = serde_json::from_slice(body)?;
    let mut room = MAX_TEXT;
    let mut lines = Vec::new();
    let (total, mut taken) = (page.lines.len(), None);
    for line in page.lines.into_iter().take(MAX_LINES) {
        let seq = line.seq;
        let line = tame(line, now);
        let Some(rest) = room.checked_sub(size_of(&line)) else { break };
        room = rest;
        taken = seq;
        lines.push(line);
    }
    // What did not fit comes with the next turn.
    let next = if lines.len() < total { taken.unwrap_or(page.next) } else { page.next };
    Ok((next, lines))
}

/// Bytes of text in a line.
pub(crate) fn size_of(line: &LogLine) -> usize {
    line.message.len() + line.fields.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>()
}

/// A line cut to size, with a level there is, not in the future.
pub(crate) fn tame(line: Line, now: Timestamp) -> LogLine {
    let level = match line.level.as_str() {
        "debug" | "warn" | "error" => line.level,
        _ => "info".to_owned(),
    };
    let mut fields: BTreeMap<String, String> = line
        .fields
        .into_iter()
        .take(MAX_FIELDS)
        .map(|(key, value)| {
            let text = match value {
                Value::String(text) => text,
                other => other.to_string(),
            };
            (cut(key, MAX_KEY), cut(text, MAX_VALUE))
        })
        .collect();
    if !line.logger.is_empty() {
        fields.insert("logger".to_owned(), cut(line.logger, MAX_KEY));
    }
    LogLine {
        at: Timestamp::parse_rfc3339(&line.timestamp).map_or(now, |at| at.min(now)),
        level,
        message: cut(line.message, MAX_MESSAGE),
        fields,
    }
}

fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        let end = (0..=max).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: Timestamp = Timestamp(1_767_323_045_006);

    fn lines(page: &Value) -> Vec<LogLine> {
        parse_logs(page.to_string().as_bytes(), NOW).unwrap().1
    }

    #[test]
    fn a_line_of_envd_becomes_a_line_of_the_node() {
        let page = json!({"next": 7, "lines": [{
            "seq": 7, "timestamp": "2026-01-02T03:04:04.000Z", "level": "warn", "logger": "process",
            "message": "ended", "fields": {"pid": 7, "cmd": "ls"},
        }]});
        let (next, lines) = parse_logs(page.to_string().as_bytes(), NOW).unwrap();
        assert_eq!(next, 7);
        let fields = [("cmd", "ls"), ("logger", "process"), ("pid", "7")];
        let fields = fields.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let at = Timestamp(1_767_323_044_000);
        assert_eq!(lines, [LogLine { at, level: "warn".into(), message: "ended".into(), fields }]);
    }

    #[test]
    fn a_guest_cannot_log_in_the_future_nor_invent_levels() {
        for timestamp in ["2099-01-01T00:00:00Z", "soon", ""] {
            let line = lines(&json!({"next": 1, "lines": [{"timestamp": timestamp, "level": "<script>"}]}));
            assert_eq!((line[0].at, line[0].level.as_str()), (NOW, "info"), "{timestamp}");
        }
    }

    fn many_values() -> serde_json::Map<String, Value> {
        (0..30).map(|n| (format!("{n}{}", "k".repeat(500)), json!("v".repeat(9000)))).collect()
    }

    #[test]
    fn everything_a_guest_says_is_bounded() {
        let line = json!({"message": "é".repeat(9000), "fields": many_values(), "logger": "l".repeat(500)});
        let taken = lines(&json!({"next": 1, "lines": vec![line; 20]}));
        assert!((1..20).contains(&taken.len()), "{}", taken.len());
        for line in &taken {
            assert!(line.message.len() <= MAX_MESSAGE && line.fields.len() <= MAX_FIELDS + 1);
            assert!(line.fields.iter().all(|(k, v)| k.len() <= MAX_KEY && v.len() <= MAX_VALUE));
        }
        let numbered: Vec<_> =
            (11..31).map(|seq| json!({"seq": seq, "message": "m", "fields": many_values()})).collect();
        let page = json!({"next": 30, "lines": numbered}).to_string();
        let (next, kept) = parse_logs(page.as_bytes(), NOW).unwrap();
        assert_eq!(next, 10 + kept.len() as u64, "what does not fit is asked for again");
        let short = lines(&json!({"next": 1, "lines": vec![json!({"message": "m"}); 3000]}));
        assert_eq!(short.len(), MAX_LINES);
        assert!(parse_logs(b"[]", NOW).is_err());
        assert!(parse_logs(b"{\"next\": -1}", NOW).is_err());
    }

    #[test]
    fn cpu_is_a_share_of_all_cpus_and_never_more_than_all() {
        let resources = Resources { vcpus: 2, memory_mib: 512, disk_mib: 1024, max_processes: 100 };
        let at = |cpu_usage_us| InstanceStats { cpu_usage_us, ..InstanceStats::default() };
        let pct = |used: u64| {
            sample(NOW, &resources, &at(1_000), &at(1_000 + used), Duration::from_secs(1)).cpu_used_pct
        };
        assert_eq!((pct(0), pct(500_000), pct(123_400)), (0.0, 25.0, 6.17));
        assert_eq!(pct(9_000_000), 100.0);
        let s = sample(NOW, &resources, &at(5), &at(1), Duration::ZERO);
        assert_eq!((s.cpu_used_pct, s.mem_total_bytes), (0.0, 512 << 20));
    }
}
