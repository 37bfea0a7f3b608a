//! The wire of envd, generated from `spec/envd`: module [`process`] and module [`filesystem`], each with its messages,
//! the service trait that a server implements and, with feature `client`, a typed client.
//!
//! Nothing here is written by hand; what the messages mean is said in the `.proto` files.

#[expect(missing_debug_implementations, reason = "generated code")]
mod generated {
    connectrpc::include_generated!();
}

pub use generated::{filesystem, process};
