//! Signed URLs; see [`hutch_types::signed`].

pub(super) use hutch_types::signed::{Operation, SignatureError, Signed};
