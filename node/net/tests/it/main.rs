//! The network on the real kernel. Every test has network namespaces of its own for the host, the internet and the
//! sandboxes, which end with it: the machine's own network is never touched. Needs root, nft and ip; without them every
//! test here prints `SKIP`.

#![allow(clippy::expect_used, reason = "a test ends where a step fails")]

mod dns;
mod isolation;
mod lifecycle;
mod world;
