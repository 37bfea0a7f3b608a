//! What the programs of this crate share: `hutch-bench` measures, `hutch-soak` holds many streams open for minutes.

pub mod api;
pub mod guest;
pub mod memory;
pub mod stats;
