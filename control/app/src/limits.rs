//! Limits that the operator chooses. An error that comes from one of them names it.

use serde::{Deserialize, Serialize};

/// All limits of the control plane, the section `limits` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Live sandboxes a team may have at a time; 0 means no limit. Default 200.
    pub max_sandboxes_per_team: u32,
    /// Longest timeout, and longest run of a sandbox counted from its start, in seconds. Default 86400 (24 hours).
    pub max_timeout_seconds: u32,
    /// Sandboxes that are being started at the same time; more wait in line. Default 128: the node has a line of its own for
    /// those that have to boot, and serves the others from its warm pool meanwhile.
    pub max_concurrent_starts: u32,
    /// Starts that may wait in line; more are refused at once. Default 1000.
    pub max_queued_starts: u32,
    /// How long a start may wait in line, in seconds. Default 30; with `start_timeout_seconds` it must stay
    /// below the 60 seconds after which clients give up.
    pub start_queue_seconds: u32,
    /// How long a start itself may take, in seconds. Default 25.
    pub start_timeout_seconds: u32,
    /// Sandboxes that are being killed at the same time. Default 8.
    pub max_concurrent_kills: u32,
    /// Sandboxes that are being paused at the same time; more wait in line, already shown as paused. Default 4.
    pub max_concurrent_pauses: u32,
    /// Size of a sandbox's metadata, names and values together, in bytes. Default 16384.
    pub max_metadata_bytes: u32,
    /// Size of a sandbox's environment, names and values together, in bytes. Default 131072.
    pub max_env_bytes: u32,
    /// Size of a request's body, in bytes. Default 1048576.
    pub max_body_bytes: u32,
    /// Requests to one sandbox that may be in flight, WebSockets and other streams among them. Default 1024; the edge enforces it.
    pub max_connections_per_sandbox: u32,
    /// How many days records, logs and metrics of ended sandboxes are kept. Default 7.
    pub history_days: u32,
    /// Size of the log lines that are kept of a sandbox, in bytes; its oldest lines go when it logs more. Default 16777216.
    pub max_log_bytes_per_sandbox: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_sandboxes_per_team: 200,
            max_timeout_seconds: 86_400,
            max_concurrent_starts: 128,
            max_queued_starts: 1000,
            start_queue_seconds: 30,
            start_timeout_seconds: 25,
            max_concurrent_kills: 8,
            max_concurrent_pauses: 4,
            max_metadata_bytes: 16_384,
            max_env_bytes: 131_072,
            max_body_bytes: 1_048_576,
            max_connections_per_sandbox: 1024,
            history_days: 7,
            max_log_bytes_per_sandbox: 16_777_216,
        }
    }
}

impl Limits {
    /// The bytes of log lines that the store keeps of a sandbox.
    pub(crate) fn log_room(&self) -> u64 {
        self.max_log_bytes_per_sandbox.into()
    }

    /// All that is wrong with these limits, one sentence each; empty when nothing is.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, value) in [
            ("max_timeout_seconds", self.max_timeout_seconds),
            ("max_concurrent_starts", self.max_concurrent_starts),
            ("start_timeout_seconds", self.start_timeout_seconds),
            ("max_concurrent_kills", self.max_concurrent_kills),
            ("max_concurrent_pauses", self.max_concurrent_pauses),
            ("max_body_bytes", self.max_body_bytes),
            ("max_connections_per_sandbox", self.max_connections_per_sandbox),
            ("history_days", self.history_days),
            ("max_log_bytes_per_sandbox", self.max_log_bytes_per_sandbox),
        ] {
            if value == 0 {
                problems.push(format!("limits.{name} must not be 0"));
            }
        }
        if self.start_queue_seconds.saturating_add(self.start_timeout_seconds) > 58 {
            problems.push(
                "limits.start_queue_seconds and limits.start_timeout_seconds together must not be above 58: \
                 clients give up after 60 seconds"
                    .to_owned(),
            );
        }
        problems
    }
}

/// `seconds` in words, in hours where it is whole hours.
pub(crate) fn in_words(seconds: u32) -> String {
    match (seconds / 3600, seconds % 3600) {
        (1, 0) => "1 hour".to_owned(),
        (hours, 0) if hours > 0 => format!("{hours} hours"),
        _ => format!("{seconds} seconds"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_have_no_problem() {
        assert_eq!(Limits::default().problems(), Vec::<String>::new());
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let bad = Limits { max_concurrent_starts: 0, start_queue_seconds: 60, ..Limits::default() };
        let problems = bad.problems();
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("limits.max_concurrent_starts"));
    }

    #[test]
    fn a_misspelt_limit_is_refused() {
        assert!(serde_json::from_str::<Limits>(r#"{"max_sandboxes":3}"#).is_err());
        let some: Limits = serde_json::from_str(r#"{"max_sandboxes_per_team":3}"#).unwrap();
        assert_eq!(some.max_sandboxes_per_team, 3);
        assert_eq!(some.max_timeout_seconds, 86_400);
    }

    #[test]
    fn whole_hours_are_said_in_hours() {
        assert_eq!(in_words(86_400), "24 hours");
        assert_eq!(in_words(3600), "1 hour");
        assert_eq!(in_words(90), "90 seconds");
    }
}
