//! Why a sandbox could not be started or reached, and how control sees it.

use std::error::Error;
use std::time::Duration;

use hutch_node_api::{NodeError, NodeErrorKind};
use hutch_runtime::RuntimeError;

use crate::envd::EnvdError;

/// Why there is no sandbox.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The runtime could not start an instance.
    #[error("start an instance")]
    Runtime(#[source] RuntimeError),
    /// The runtime did not come back.
    #[error("the runtime did not start an instance within {} ms", .0.as_millis())]
    BootTimedOut(Duration),
    /// The instance runs but its envd does not answer as it should.
    #[error("wait for envd")]
    Envd(#[source] EnvdError),
    /// The instance ended before it was ready.
    #[error("the instance ended while it was being prepared")]
    Died,
    /// A step on the instance failed.
    #[error("{step}")]
    Step {
        /// What was attempted.
        step: &'static str,
        #[source]
        source: RuntimeError,
    },
    /// A step on the instance did not end in time.
    #[error("{step} took longer than {} ms", .limit.as_millis())]
    StepTimedOut {
        /// What was attempted.
        step: &'static str,
        /// Its deadline.
        limit: Duration,
    },
    /// Too many requests wait already.
    #[error("{limit} starts are waiting already (max_queued_starts)")]
    QueueFull {
        /// The configured bound.
        limit: usize,
    },
    /// Waited too long for an instance.
    #[error("no instance became free within {} ms (queue_timeout)", .0.as_millis())]
    QueueTimedOut(Duration),
    /// The sandbox was stopped while it started.
    #[error("stopped while it was starting")]
    Stopped,
    /// The node is shutting down.
    #[error("the node is shutting down")]
    Draining,
    /// The task that should have done it is gone.
    #[error("the task that starts it ended unexpectedly")]
    Lost,
}

impl StartError {
    fn kind(&self) -> NodeErrorKind {
        match self {
            Self::Runtime(e) | Self::Step { source: e, .. } => match e {
                RuntimeError::NoImage(_) => NodeErrorKind::NotFound,
                RuntimeError::NotPaused(_) => NodeErrorKind::Unsupported,
                RuntimeError::Exhausted { .. } => NodeErrorKind::Exhausted,
                RuntimeError::TimedOut { .. } => NodeErrorKind::DeadlineExceeded,
                RuntimeError::Failed { .. } => NodeErrorKind::Internal,
            },
            Self::Envd(EnvdError::Connect { .. } | EnvdError::TimedOut { .. })
            | Self::BootTimedOut(_)
            | Self::StepTimedOut { .. } => NodeErrorKind::DeadlineExceeded,
            Self::Envd(_) | Self::Died | Self::Lost => NodeErrorKind::Internal,
            Self::QueueFull { .. } | Self::QueueTimedOut(_) => NodeErrorKind::Exhausted,
            Self::Stopped | Self::Draining => NodeErrorKind::Unavailable,
        }
    }

    /// Whether another instance may do better: this one was at fault, not the request.
    pub fn blames_instance(&self) -> bool {
        matches!(self, Self::Envd(_) | Self::Died | Self::Step { .. } | Self::StepTimedOut { .. })
    }
}

impl From<StartError> for NodeError {
    fn from(error: StartError) -> Self {
        Self::new(error.kind(), chain(&error))
    }
}

/// An error and all its causes in one line, for logs.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        text.push_str(": ");
        text.push_str(&e.to_string());
        cause = e.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use hutch_types::BuildId;

    #[test]
    fn control_sees_what_it_can_act_on() {
        let cases = [
            (StartError::Runtime(RuntimeError::NoImage(BuildId::random())), NodeErrorKind::NotFound),
            (StartError::Runtime(RuntimeError::Exhausted { what: "slots".into() }), NodeErrorKind::Exhausted),
            (StartError::QueueFull { limit: 3 }, NodeErrorKind::Exhausted),
            (StartError::BootTimedOut(Duration::from_secs(1)), NodeErrorKind::DeadlineExceeded),
            (StartError::Draining, NodeErrorKind::Unavailable),
            (StartError::Died, NodeErrorKind::Internal),
        ];
        for (error, kind) in cases {
            assert_eq!(NodeError::from(error).kind, kind);
        }
    }

    #[test]
    fn a_message_names_all_causes() {
        let error = StartError::Step {
            step: "set the host name",
            source: RuntimeError::failed("open /proc/1/ns/uts", std::io::Error::other("gone")),
        };
        assert_eq!(chain(&error), "set the host name: open /proc/1/ns/uts: gone");
    }
}
