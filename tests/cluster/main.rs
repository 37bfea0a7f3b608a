//! Control, node, edge and the real envd in one process, on a host that is played: what they promise together.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod layers;
mod load;
mod pause;
mod restart;
mod walk;
mod world;
