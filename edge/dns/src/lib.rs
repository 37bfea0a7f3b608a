//! The name server for the domain of sandbox host names.
//!
//! Sandboxes are reached at `{port}-{id}.{domain}`, so every name below the domain must resolve to the listener: a hosts file cannot say
//! that. [`zone`] decides what is answered, [`serve`] speaks UDP and TCP, and [`forward`] passes on what the domain does not
//! answer, where that is configured.
//!
//! It knows nothing of sandboxes: every name exists, also that of a sandbox that does not.

pub mod forward;
pub mod serve;
pub mod zone;

pub use serve::{BindError, DnsServer};
pub use zone::Zone;
