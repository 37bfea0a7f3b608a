//! What a use-case answers when it cannot do what was asked. No HTTP here: the API maps [`ErrorClass`] to a status.

use std::borrow::Cow;
use std::error::Error;

use hutch_store::StoreError;

/// What kind of refusal or failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The request is wrong or asks for what this version cannot do.
    Invalid,
    /// No credentials, or none that are known.
    Unauthenticated,
    /// Known, but not allowed.
    Forbidden,
    /// The thing does not exist, or belongs to somebody else.
    NotFound,
    /// The thing is in a state, or a name in a use, that does not allow it.
    Conflict,
    /// What became of an earlier attempt cannot be known; it is not repeated.
    OutcomeUnknown,
    /// A limit of the caller's is reached.
    LimitReached,
    /// Nothing is free, or a part is not ready; another try later may succeed. Nothing was changed.
    Unavailable,
    /// It took too long. Nothing was changed.
    DeadlineExceeded,
    /// Our fault.
    Internal,
}

/// Whether a client should repeat the request by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The class decides.
    Default,
    /// Repeating changes nothing.
    Never,
    /// After this many seconds.
    After(u32),
}

/// A failed use-case: what the client is told, and what only the logs are told (the source).
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct AppError {
    class: ErrorClass,
    message: Cow<'static, str>,
    code: Option<&'static str>,
    retry: Retry,
    #[source]
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl AppError {
    /// An error with a message for the client.
    pub fn new(class: ErrorClass, message: impl Into<Cow<'static, str>>) -> Self {
        let retry = match class {
            ErrorClass::LimitReached | ErrorClass::Unavailable | ErrorClass::DeadlineExceeded => {
                Retry::After(1)
            }
            _ => Retry::Default,
        };
        Self { class, message: message.into(), code: None, retry, source: None }
    }

    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorClass::Invalid, message)
    }

    pub(crate) fn not_found(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorClass::NotFound, message)
    }

    /// A failure of ours; `source` goes to the logs alone.
    pub(crate) fn internal(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(ErrorClass::Internal, "an internal error occurred")
            .with_code("internal_server_error")
            .with_source(source)
    }

    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    pub(crate) fn with_retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    pub(crate) fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same error for a further client; the cause stays with the first.
    pub(crate) fn repeated(&self) -> Self {
        Self {
            class: self.class,
            message: self.message.clone(),
            code: self.code,
            retry: self.retry,
            source: None,
        }
    }

    /// What kind.
    pub fn class(&self) -> ErrorClass {
        self.class
    }

    /// What the client is told.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The machine-readable code, where one is agreed.
    pub fn code(&self) -> Option<&'static str> {
        self.code
    }

    /// Whether to try again.
    pub fn retry(&self) -> Retry {
        self.retry
    }

    /// Whether the same request may succeed later, nothing having been changed by this one.
    pub fn is_transient(&self) -> bool {
        matches!(self.retry, Retry::After(_))
            || matches!(
                self.class,
                ErrorClass::LimitReached | ErrorClass::Unavailable | ErrorClass::DeadlineExceeded
            )
    }

    /// Message and all causes in one line, for the logs.
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// An error with all its causes in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

/// Failures of the store that a use-case has no better words for.
impl From<StoreError> for AppError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable { .. } => {
                Self::new(ErrorClass::Unavailable, "the server's store is busy, please try again")
                    .with_source(error)
            }
            // Use-cases turn the expected ones into their own words; one that comes here was not expected.
            StoreError::NotFound { .. } | StoreError::Conflict { .. } | StoreError::Corrupt { .. } => {
                Self::internal(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_for_the_logs_alone() {
        let e = AppError::from(StoreError::Corrupt { what: "sandbox" });
        assert_eq!(e.class(), ErrorClass::Internal);
        assert!(!e.message().contains("sandbox"));
        assert_eq!(e.chain(), "an internal error occurred: a stored sandbox is not readable");
        assert!(!e.is_transient());
    }

    #[test]
    fn a_busy_store_is_worth_another_try() {
        let e = AppError::from(StoreError::Unavailable { attempted: "listing", source: "locked".into() });
        assert_eq!(e.class(), ErrorClass::Unavailable);
        assert!(e.is_transient());
    }
}
