//! TLS of the listener: where its certificate comes from, and the handshake.
//!
//! [`Current`] holds the certificate in force and can be given another at any time. Three sources keep it filled: [`local`] makes
//! a CA of its own, [`files`] follows two files, [`acme`] orders from a certificate authority. [`accept`] is the handshake, with its
//! bounds.
//!
//! The listener itself is `hutch-edge`'s; this crate knows nothing of sandboxes.

pub mod accept;
pub mod acme;
pub mod files;
pub mod identity;
pub mod local;

mod authority;
mod bundle;
mod storage;

pub use accept::{Accept, HandshakeError, TlsBounds};
pub use identity::{Current, Identity, IdentityError};
pub use storage::StorageError;
