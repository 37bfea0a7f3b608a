//! The stream of `WatchDir`.

use std::collections::VecDeque;
use std::time::Duration;

use connectrpc::ConnectError;
use futures::Stream;
use hutch_proto::filesystem::watch_dir_response::Event;
use hutch_proto::filesystem::{FilesystemEvent, WatchDirResponse};

use super::Watcher;

struct State {
    watcher: Watcher,
    keepalive: Duration,
    started: bool,
    events: VecDeque<FilesystemEvent>,
}

/// `start`, then events as they happen, and a `keepalive` whenever nothing happened for that long. Ends only with an
/// error, or when the client drops it.
pub(in crate::filesystem) fn stream(
    watcher: Watcher,
    keepalive: Duration,
) -> impl Stream<Item = Result<WatchDirResponse, ConnectError>> + Send + 'static {
    let state = State { watcher, keepalive, started: false, events: VecDeque::new() };
    futures::stream::try_unfold(state, |mut state| async move {
        let event = state.next().await?;
        Ok(Some((WatchDirResponse { event: Some(event), ..Default::default() }, state)))
    })
}

impl State {
    async fn next(&mut self) -> Result<Event, ConnectError> {
        if !self.started {
            self.started = true;
            return Ok(Event::Start(Box::default()));
        }
        if self.events.is_empty() {
            match tokio::time::timeout(self.keepalive, self.watcher.fetch()).await {
                Ok(events) => self.events = events?.into(),
                Err(_) => return Ok(Event::Keepalive(Box::default())),
            }
        }
        match self.events.pop_front() {
            Some(event) => Ok(Event::Filesystem(Box::new(event))),
            None => Ok(Event::Keepalive(Box::default())),
        }
    }
}
