//! What sandboxes may ask of their node, and who of them asks.
//!
//! A request comes over the sandbox's own link, and its source address is the one thing that says whose it is: the node
//! gave that address to the instance, and its firewall drops every other. Nothing that the guest says is taken for an
//! identity.

mod http;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use hutch_node_api::LogLine;
use hutch_types::{SandboxId, Timestamp};
use parking_lot::{Mutex, RwLock};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use crate::sample::{Line, MAX_LINES, MAX_TEXT, size_of, tame};

pub(crate) use http::serve;

/// Connections of one sandbox at a time; more are closed at once.
const CONNECTIONS_PER_SANDBOX: usize = 8;

/// Running sandboxes by the address of their instance.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    by_address: RwLock<HashMap<IpAddr, Arc<Guest>>>,
}

/// One running sandbox, as the service sees it.
#[derive(Debug)]
pub(crate) struct Guest {
    /// Who it is.
    pub id: SandboxId,
    connections: Arc<Semaphore>,
    said: Mutex<Said>,
}

/// Lines until the next sample takes them. What comes beyond the bounds is refused and counted.
#[derive(Debug, Default)]
struct Said {
    lines: Vec<LogLine>,
    bytes: usize,
    dropped: u64,
}

impl Guests {
    /// From now on `address` is the sandbox `id`.
    pub fn insert(&self, address: IpAddr, id: SandboxId) {
        let connections = Arc::new(Semaphore::new(CONNECTIONS_PER_SANDBOX));
        let guest = Guest { id, connections, said: Mutex::default() };
        self.by_address.write().insert(address, Arc::new(guest));
    }

    /// `address` is nobody any more, if it was `id`. Returns the lines that nobody has taken.
    pub fn remove(&self, address: IpAddr, id: &SandboxId, now: Timestamp) -> Vec<LogLine> {
        let mut by_address = self.by_address.write();
        if by_address.get(&address).is_none_or(|guest| guest.id != *id) {
            return Vec::new();
        }
        by_address.remove(&address).map(|guest| guest.take(now)).unwrap_or_default()
    }

    /// Takes the lines that the sandbox at `address` has sent.
    pub fn take(&self, address: IpAddr, now: Timestamp) -> Vec<LogLine> {
        self.get(address).map(|guest| guest.take(now)).unwrap_or_default()
    }

    fn get(&self, address: IpAddr) -> Option<Arc<Guest>> {
        self.by_address.read().get(&address).cloned()
    }
}

impl Guest {
    /// Keeps a line. False, and counted, when there is no room until the next sample.
    fn say(&self, line: LogLine) -> bool {
        let mut said = self.said.lock();
        let bytes = said.bytes.saturating_add(size_of(&line));
        if said.lines.len() >= MAX_LINES || bytes > MAX_TEXT {
            said.dropped = said.dropped.saturating_add(1);
            return false;
        }
        said.bytes = bytes;
        said.lines.push(line);
        true
    }

    fn take(&self, now: Timestamp) -> Vec<LogLine> {
        let said = std::mem::take(&mut *self.said.lock());
        let mut lines = said.lines;
        if said.dropped > 0 {
            lines.push(LogLine {
                at: now,
                level: "warn".to_owned(),
                message: "log lines of the sandbox were dropped: too many at a time".to_owned(),
                fields: [("dropped".to_owned(), said.dropped.to_string())].into(),
            });
        }
        lines
    }
}

/// A line from an object of any shape: the names that loggers give to time, level, text and logger are understood, ids
/// are left out since they are not the guest's to say, and the rest are its fields.
fn line_of(mut object: Map<String, Value>, now: Timestamp) -> LogLine {
    let mut text = |names: &[&str]| {
        let found = names.iter().find_map(|name| object.remove(*name));
        match found {
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
            None => String::new(),
        }
    };
    let line = Line {
        seq: None,
        timestamp: text(&["timestamp", "time"]),
        level: text(&["level", "severity"]).to_ascii_lowercase(),
        logger: text(&["logger"]),
        message: text(&["message", "msg"]),
        fields: Map::new(),
    };
    for name in ["instanceID", "envID", "teamID"] {
        object.remove(name);
    }
    tame(Line { fields: object, ..line }, now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: Timestamp = Timestamp(1_767_323_045_006);

    fn line(value: Value) -> LogLine {
        let Value::Object(object) = value else { panic!("an object") };
        line_of(object, NOW)
    }

    #[test]
    fn lines_of_any_logger_are_understood_and_ids_are_not_the_guests_to_say() {
        let line = line(json!({
            "time": "2026-01-02T03:04:04Z", "level": "WARN", "msg": "low", "instanceID": "other", "teamID": "t", "n": 3,
        }));
        let fields = [("n".to_owned(), "3".to_owned())].into();
        let at = Timestamp(1_767_323_044_000);
        assert_eq!(line, LogLine { at, level: "warn".into(), message: "low".into(), fields });
    }

    #[test]
    fn what_a_sandbox_says_at_a_time_is_bounded_and_the_rest_is_counted() {
        let (guests, address) = (Guests::default(), IpAddr::from([10, 0, 0, 2]));
        let id = SandboxId::random();
        guests.insert(address, id.clone());
        let guest = guests.get(address).unwrap();
        for _ in 0..MAX_LINES {
            assert!(guest.say(line(json!({"message": "m"}))));
        }
        assert!(!guest.say(line(json!({"message": "m"}))));
        let taken = guests.take(address, NOW);
        assert_eq!((taken.len(), taken[MAX_LINES].fields["dropped"].as_str()), (MAX_LINES + 1, "1"));
        assert!(guest.say(line(json!({"message": "m".repeat(4000)}))), "room again");
        while guest.say(line(json!({"message": "m".repeat(4000)}))) {}
        assert!(guests.take(address, NOW).len() < 200, "text is bounded, too");
    }

    #[test]
    fn an_address_that_went_to_another_sandbox_is_not_taken_from_it() {
        let (guests, address) = (Guests::default(), IpAddr::from([10, 0, 0, 2]));
        let (first, second) = (SandboxId::random(), SandboxId::random());
        guests.insert(address, first.clone());
        guests.insert(address, second.clone());
        assert_eq!(guests.remove(address, &first, NOW), []);
        assert_eq!(guests.get(address).unwrap().id, second);
        guests.get(address).unwrap().say(line(json!({"message": "last"})));
        assert_eq!(guests.remove(address, &second, NOW)[0].message, "last");
        assert!(guests.get(address).is_none());
    }
}
