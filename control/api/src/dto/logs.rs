//! Log lines in answers.

use std::collections::BTreeMap;

use hutch_app::LogEntry;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// The logger of a line that names none.
const DEFAULT_LOGGER: &str = "envd";

/// How bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = LogLevel)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LevelDto {
    Debug,
    Info,
    Warn,
    Error,
}

impl LevelDto {
    /// Clients know four levels; what a guest calls by another name is information.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "debug" => Some(Self::Debug),
            "info" => Some(Self::Info),
            "warn" => Some(Self::Warn),
            "error" => Some(Self::Error),
            _ => None,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// One log line, taken apart.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxLogEntry)]
pub(crate) struct LogEntryDto {
    /// RFC 3339.
    timestamp: String,
    level: LevelDto,
    message: String,
    fields: BTreeMap<String, String>,
}

impl From<LogEntry> for LogEntryDto {
    fn from(entry: LogEntry) -> Self {
        Self {
            timestamp: entry.at.to_rfc3339(),
            level: LevelDto::parse(&entry.level).unwrap_or(LevelDto::Info),
            message: entry.message,
            fields: entry.fields,
        }
    }
}

/// One log line as JSON text.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxLog)]
pub(crate) struct LogLineDto {
    /// RFC 3339.
    timestamp: String,
    /// A JSON object with `timestamp`, `level`, `logger`, `message` and further fields.
    line: String,
}

impl From<&LogEntryDto> for LogLineDto {
    fn from(entry: &LogEntryDto) -> Self {
        let text = |text: &str| Value::String(text.to_owned());
        let mut line = Map::new();
        line.insert("logger".to_owned(), text(DEFAULT_LOGGER));
        for (name, value) in &entry.fields {
            line.insert(name.clone(), text(value));
        }
        line.insert("timestamp".to_owned(), text(&entry.timestamp));
        line.insert("level".to_owned(), text(entry.level.as_str()));
        line.insert("message".to_owned(), text(&entry.message));
        Self { timestamp: entry.timestamp.clone(), line: Value::Object(line).to_string() }
    }
}

/// Log lines in both forms, oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxLogs {
    logs: Vec<LogLineDto>,
    log_entries: Vec<LogEntryDto>,
}

impl SandboxLogs {
    pub(crate) fn new(entries: Vec<LogEntry>) -> Self {
        let log_entries: Vec<LogEntryDto> = entries.into_iter().map(LogEntryDto::from).collect();
        Self { logs: log_entries.iter().map(LogLineDto::from).collect(), log_entries }
    }
}

/// Log lines in the order asked for.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxLogsV2Response)]
pub(crate) struct SandboxLogsV2 {
    pub(crate) logs: Vec<LogEntryDto>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use hutch_types::{SandboxId, Timestamp};

    #[test]
    fn a_line_has_what_the_command_line_needs_and_the_guest_cannot_fake_it() {
        let entry = LogEntry {
            sandbox: SandboxId::random(),
            at: Timestamp(0),
            level: "fatal".to_owned(),
            message: "hello".to_owned(),
            fields: BTreeMap::from([
                ("level".to_owned(), "x".to_owned()),
                ("pid".to_owned(), "7".to_owned()),
            ]),
        };
        let logs = SandboxLogs::new(vec![entry]);
        let line: Value = serde_json::from_str(&logs.logs[0].line).unwrap();
        assert_eq!(line["logger"], "envd");
        assert_eq!(line["level"], "info");
        assert_eq!(line["pid"], "7");
        assert_eq!(line["message"], "hello");
        assert_eq!(logs.log_entries[0].level, LevelDto::Info);
    }
}
