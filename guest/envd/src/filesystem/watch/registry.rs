//! Watchers of clients that poll.

use std::collections::HashMap;

use connectrpc::ConnectError;
use hutch_types::Secret;
use parking_lot::Mutex;

use super::{Events, Watcher};

/// Watchers at a time. Clients that forget to remove theirs get an error then.
const MAX_WATCHERS: usize = 256;

/// All of them, by id.
#[derive(Debug, Default)]
pub(in crate::filesystem) struct Registry(Mutex<HashMap<String, Watcher>>);

impl Registry {
    /// Keeps a watcher and returns its id.
    ///
    /// # Errors
    /// `resource_exhausted` when there are too many.
    pub(in crate::filesystem) fn add(&self, watcher: Watcher) -> Result<String, ConnectError> {
        let id = format!("w{}", Secret::random(10).expose());
        let mut all = self.0.lock();
        if all.len() >= MAX_WATCHERS {
            let message =
                format!("there are {MAX_WATCHERS} watchers already: remove those that are not needed");
            return Err(ConnectError::resource_exhausted(message));
        }
        all.insert(id.clone(), watcher);
        Ok(id)
    }

    /// The watcher with this id.
    ///
    /// # Errors
    /// `not_found`.
    pub(in crate::filesystem) fn get(&self, id: &str) -> Result<Events, ConnectError> {
        self.0.lock().get(id).map(Watcher::events).ok_or_else(|| unknown(id))
    }

    /// Takes the watcher with this id away.
    ///
    /// # Errors
    /// `not_found`.
    pub(in crate::filesystem) fn remove(&self, id: &str) -> Result<Watcher, ConnectError> {
        self.0.lock().remove(id).ok_or_else(|| unknown(id))
    }
}

fn unknown(id: &str) -> ConnectError {
    ConnectError::not_found(format!("watcher with id {id} not found"))
}
