//! What envd has done, kept in a bounded ring for the host to fetch (`GET /logs`).

use std::collections::VecDeque;

use hutch_types::Clock;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Map, Value};

/// Lines kept; the oldest goes when one more comes. The host fetches far more often than this fills.
const CAPACITY: usize = 2048;
/// Characters of one text value kept; the rest is cut.
const VALUE_LIMIT: usize = 2048;

/// How much a line matters. The names are those of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// For whoever debugs the sandbox.
    Debug,
    /// Something happened as asked.
    Info,
    /// Something did not work as asked.
    Warn,
    /// Something is broken.
    Error,
}

/// One log line.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// Counts up by one from 1 while this envd runs.
    pub seq: u64,
    /// RFC 3339.
    pub timestamp: String,
    /// See [`Level`].
    pub level: Level,
    /// The part of envd that speaks.
    pub logger: &'static str,
    /// What happened.
    pub message: &'static str,
    /// The details.
    pub fields: Map<String, Value>,
}

/// The ring of log lines.
#[derive(Debug)]
pub struct Logs {
    clock: Clock,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    last: u64,
    lines: VecDeque<Kept>,
}

#[derive(Debug)]
struct Kept {
    line: Line,
    /// Size as JSON.
    bytes: usize,
}

/// How much of the ring one answer may have.
#[derive(Debug, Clone, Copy)]
pub struct PageLimit {
    /// Lines.
    pub lines: usize,
    /// Bytes of JSON. A single line that is larger is returned alone: its texts are cut, so it is small.
    pub bytes: usize,
}

impl Default for Logs {
    fn default() -> Self {
        Self { clock: Clock::system(), ring: Mutex::default() }
    }
}

impl Logs {
    /// Adds a line. `fields` is a JSON object; long texts in it are cut.
    pub fn add(&self, level: Level, logger: &'static str, message: &'static str, fields: Value) {
        // A guest's clock may be set at any time; lines always carry the current setting.
        self.clock.take_jump();
        let timestamp = self.clock.now().to_rfc3339();
        let Value::Object(mut fields) = fields else { return };
        for value in fields.values_mut() {
            if let Value::String(text) = value {
                cut(text);
            }
        }
        let mut ring = self.ring.lock();
        ring.last += 1;
        let line = Line { seq: ring.last, timestamp, level, logger, message, fields };
        let bytes = serde_json::to_vec(&line).map_or(VALUE_LIMIT, |json| json.len());
        if ring.lines.len() == CAPACITY {
            ring.lines.pop_front();
        }
        ring.lines.push_back(Kept { line, bytes });
    }

    /// The lines after `after`, oldest first, as many as `limit` allows, and the number to ask with next. A number from
    /// the future belongs to an envd that has since been restarted, so that everything is new.
    pub fn after(&self, after: u64, limit: PageLimit) -> (u64, Vec<Line>) {
        let ring = self.ring.lock();
        let after = if after > ring.last { 0 } else { after };
        let mut room = limit.bytes;
        let mut lines = Vec::new();
        for kept in ring.lines.iter().filter(|k| k.line.seq > after).take(limit.lines) {
            match room.checked_sub(kept.bytes) {
                Some(rest) => room = rest,
                None if lines.is_empty() => room = 0,
                None => break,
            }
            lines.push(kept.line.clone());
        }
        let next = lines.last().map_or(ring.last, |l| l.seq);
        (next, lines)
    }
}

fn cut(text: &mut String) {
    if text.len() > VALUE_LIMIT {
        let end = (0..=VALUE_LIMIT).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ALL: PageLimit = PageLimit { lines: usize::MAX, bytes: usize::MAX };

    #[test]
    fn lines_are_numbered_and_fetched_once() {
        let logs = Logs::default();
        logs.add(Level::Info, "process", "started", json!({"pid": 7}));
        logs.add(Level::Warn, "process", "ended", json!({"pid": 7}));
        let (next, lines) = logs.after(0, PageLimit { lines: 1, ..ALL });
        assert_eq!((next, lines.len(), lines[0].message), (1, 1, "started"));
        let (next, lines) = logs.after(next, ALL);
        assert_eq!((next, lines.len(), lines[0].seq), (2, 1, 2));
        assert_eq!(logs.after(next, ALL).1.len(), 0);
        assert_eq!(logs.after(99, ALL).1.len(), 2, "after a restart the old number means nothing");
        let shown = serde_json::to_value(&lines[0]).unwrap();
        assert_eq!(shown["level"], "warn");
        assert_eq!(shown["fields"]["pid"], 7);
    }

    #[test]
    fn the_oldest_lines_go_first_and_long_texts_are_cut() {
        let logs = Logs::default();
        for _ in 0..CAPACITY + 5 {
            logs.add(Level::Info, "t", "m", json!({"cmd": "ä".repeat(VALUE_LIMIT)}));
        }
        let (next, lines) = logs.after(0, ALL);
        assert_eq!((next, lines.len(), lines[0].seq), (CAPACITY as u64 + 5, CAPACITY, 6));
        assert!(lines[0].fields["cmd"].as_str().unwrap().len() <= VALUE_LIMIT + 3);
    }

    #[test]
    fn a_page_is_bounded_by_bytes_and_the_cursor_gets_through_whatever_is_logged() {
        let logs = Logs::default();
        // Control characters are six times as long in JSON.
        let worst = "\u{1}".repeat(VALUE_LIMIT);
        for _ in 0..50 {
            logs.add(Level::Info, "t", "m", json!({"command": worst, "user": worst}));
        }
        let limit = PageLimit { lines: 1000, bytes: 100_000 };
        let (mut next, mut seen) = (0, Vec::new());
        while seen.len() < 50 {
            let (after, lines) = logs.after(next, limit);
            let bytes: usize = lines.iter().map(|l| serde_json::to_vec(l).unwrap().len()).sum();
            assert!(bytes <= limit.bytes && !lines.is_empty() && after > next, "{bytes} bytes after {next}");
            seen.extend(lines.iter().map(|l| l.seq));
            next = after;
        }
        assert!(seen.iter().copied().eq(1..=50), "{seen:?}");
        assert_eq!(logs.after(0, PageLimit { lines: 9, bytes: 1 }).1.len(), 1, "never stuck on a large line");
    }
}
