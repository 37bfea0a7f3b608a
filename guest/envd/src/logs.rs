//! What envd has done, kept in a bounded ring for the host to fetch (`GET /logs`).

use std::collections::VecDeque;

use hutch_types::Clock;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Map, Value};

/// Lines kept; the oldest goes when one more comes. The host fetches far more often than this fills.
const CAPACITY: usize = 2048;
/// Characters of text in one page: escaped for JSON, six times longer at worst, it stays below what the host accepts.
const PAGE_TEXT: usize = 256 << 10;
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
    lines: VecDeque<Line>,
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
        if ring.lines.len() == CAPACITY {
            ring.lines.pop_front();
        }
        ring.lines.push_back(line);
    }

    /// The lines after `after`, oldest first, at most `limit` and a quarter of a million characters, and the number to ask with next. A number from the
    /// future belongs to an envd that has since been restarted, so that everything is new.
    pub fn after(&self, after: u64, limit: usize) -> (u64, Vec<Line>) {
        let ring = self.ring.lock();
        let after = if after > ring.last { 0 } else { after };
        let mut room = PAGE_TEXT;
        let fits = |line: &&Line| {
            let size = line.fields.iter().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
            room.checked_sub(size).map(|rest| room = rest).is_some()
        };
        let lines: Vec<Line> =
            ring.lines.iter().filter(|l| l.seq > after).take(limit).take_while(fits).cloned().collect();
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

    #[test]
    fn lines_are_numbered_and_fetched_once() {
        let logs = Logs::default();
        logs.add(Level::Info, "process", "started", json!({"pid": 7}));
        logs.add(Level::Warn, "process", "ended", json!({"pid": 7}));
        let (next, lines) = logs.after(0, 1);
        assert_eq!((next, lines.len(), lines[0].message), (1, 1, "started"));
        let (next, lines) = logs.after(next, 100);
        assert_eq!((next, lines.len(), lines[0].seq), (2, 1, 2));
        assert_eq!(logs.after(next, 100).1.len(), 0);
        assert_eq!(logs.after(99, 100).1.len(), 2, "after a restart the old number means nothing");
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
        let (mut next, mut lines) = (0, Vec::new());
        while next < CAPACITY as u64 + 5 {
            let (after, page) = logs.after(next, usize::MAX);
            assert!(
                after > next
                    && page.iter().map(|l| l.fields["cmd"].as_str().unwrap().len()).sum::<usize>()
                        <= PAGE_TEXT
            );
            next = after;
            lines.extend(page);
        }
        assert_eq!((next, lines.len(), lines[0].seq), (CAPACITY as u64 + 5, CAPACITY, 6));
        assert!(lines[0].fields["cmd"].as_str().unwrap().len() <= VALUE_LIMIT + 3);
    }
}
