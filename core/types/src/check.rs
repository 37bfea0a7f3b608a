//! What a host can do: the answers that `hutch doctor` shows.

/// The answer to one question about the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// It works; with a remark where there is one.
    Works(String),
    /// It does not, and what to do about it.
    Fails(String),
}

impl Check {
    /// Whether it works.
    pub fn works(&self) -> bool {
        matches!(self, Self::Works(_))
    }
}
