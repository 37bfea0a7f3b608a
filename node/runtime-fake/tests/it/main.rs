//! The fake runtime, alone.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod conformance;
mod instances;
