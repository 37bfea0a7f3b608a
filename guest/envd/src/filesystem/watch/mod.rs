//! Watching directories: one [`Watcher`] for each stream, or for each client that polls.

mod event;
mod registry;
mod stream;
mod tree;

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buffa::{EnumValue, MessageField};
use connectrpc::ConnectError;
use hutch_proto::filesystem::{EventType, FilesystemEvent};
use parking_lot::Mutex;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::entry::{Names, describe};
use super::fault::rpc_error;
use crate::state::State;
pub(super) use registry::Registry;
pub(super) use stream::stream;
use tree::{Change, Tree, WatchError};

/// Events kept for a client that does not fetch them. One more, and the watcher fails, which the client learns after
/// the events that were kept: it must look at the directory again.
const MAX_QUEUED: usize = 32_768;

/// What a client wants to be told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Options {
    pub(super) recursive: bool,
    /// Whether events describe what they are about.
    pub(super) include_entry: bool,
    /// Whether directories on network file systems may be watched, where the kernel sees changes of this host only.
    pub(super) allow_network_mounts: bool,
}

/// A watched directory. Dropping it ends the watching.
#[derive(Debug)]
pub(super) struct Watcher {
    shared: Arc<Shared>,
    _pump: DropGuard,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    include_entry: bool,
    queue: Mutex<Queue>,
    /// There is something to fetch.
    ready: Notify,
}

#[derive(Debug)]
struct Queue {
    /// `None` once watching has failed.
    tree: Option<Tree>,
    events: VecDeque<FilesystemEvent>,
    failure: Option<ConnectError>,
}

impl Queue {
    fn fail(&mut self, failure: &WatchError) {
        self.failure = Some(watch_error(failure));
        // Gives the watches back at once; the client may come late or never.
        self.tree = None;
    }
}

impl Watcher {
    /// Starts watching. Blocks. When it returns, everything that happens from then on will be reported.
    ///
    /// # Errors
    /// `not_found`, `invalid_argument` for what is no directory or on a network mount, `resource_exhausted` when
    /// the system has no more watches.
    pub(super) fn start(state: &State, path: &Path, options: Options) -> Result<Self, ConnectError> {
        let found = std::fs::metadata(path).map_err(|e| rpc_error("watching", path, &e))?;
        if !found.is_dir() {
            return Err(ConnectError::invalid_argument(format!(
                "path is not a directory: {}",
                path.display()
            )));
        }
        if !options.allow_network_mounts && is_on_network(path)? {
            let message = format!("cannot watch path on network filesystem: {}", path.display());
            return Err(ConnectError::invalid_argument(message));
        }
        let tree = Tree::new(path, options.recursive).map_err(|e| watch_error(&e))?;
        // SAFETY: the `Arc` owns the descriptor, always gives the same one, and lives as long as the `AsyncFd`.
        let readable = unsafe { AsyncFd::register(tree.descriptor()) }
            .map_err(|e| rpc_error("watching", path, &e.into()))?;
        let queue = Queue { tree: Some(tree), events: VecDeque::new(), failure: None };
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            include_entry: options.include_entry,
            queue: Mutex::new(queue),
            ready: Notify::new(),
        });
        let stop = CancellationToken::new();
        let (pumped, stopped, tasks) = (shared.clone(), stop.clone(), state.tasks.clone());
        state.tasks.spawn("directory watcher", async move {
            tokio::select! {
                () = pump(&pumped, &readable) => {}
                () = stopped.cancelled() => {}
                () = tasks.stopping() => {}
            }
        });
        Ok(Self { shared, _pump: stop.drop_guard() })
    }

    /// Waits until something happens. Never returns nothing. Cancelling it loses nothing.
    ///
    /// # Errors
    /// Why watching has ended, once everything before that has been fetched.
    async fn fetch(&self) -> Result<Vec<FilesystemEvent>, ConnectError> {
        loop {
            let events = self.shared.take()?;
            if !events.is_empty() {
                return Ok(events);
            }
            self.shared.ready.notified().await;
        }
    }

    /// The watcher's events, for a client that polls. Does not keep the watcher going.
    pub(super) fn events(&self) -> Events {
        Events(self.shared.clone())
    }
}

/// See [`Watcher::events`].
#[derive(Debug)]
pub(super) struct Events(Arc<Shared>);

impl Events {
    /// Everything that has happened up to now and was not fetched yet. Blocks briefly.
    ///
    /// # Errors
    /// As [`Watcher::fetch`].
    pub(super) fn fetch_now(&self) -> Result<Vec<FilesystemEvent>, ConnectError> {
        self.0.collect();
        self.0.take()
    }
}

/// Moves events from the kernel's queue, which is short, as they come.
async fn pump(shared: &Arc<Shared>, readable: &AsyncFd<Arc<OwnedFd>>) {
    loop {
        match readable.readable().await {
            // Reading goes on until there is nothing left, so that readiness is over then.
            Ok(mut guard) => guard.clear_ready(),
            Err(_) => return,
        }
        let collecting = shared.clone();
        let goes_on = tokio::task::spawn_blocking(move || collecting.collect()).await;
        if !matches!(goes_on, Ok(true)) {
            return;
        }
    }
}

impl Shared {
    /// Queues what has happened. Returns whether watching goes on.
    fn collect(&self) -> bool {
        let mut queue = self.queue.lock();
        let mut changes = Vec::new();
        let Some(tree) = &mut queue.tree else { return false };
        let drained = tree.drain(&mut changes);
        let mut names = Names::default();
        let mut failure = drained.err();
        for change in changes {
            if queue.events.len() == MAX_QUEUED {
                failure = Some(WatchError::Lost);
                break;
            }
            queue.events.push_back(self.event(change, &mut names));
        }
        let goes_on = failure.is_none();
        if let Some(failure) = failure {
            queue.fail(&failure);
        }
        if !goes_on || !queue.events.is_empty() {
            self.ready.notify_one();
        }
        goes_on
    }

    fn take(&self) -> Result<Vec<FilesystemEvent>, ConnectError> {
        let mut queue = self.queue.lock();
        match &queue.failure {
            Some(failure) if queue.events.is_empty() => Err(failure.clone()),
            _ => Ok(std::mem::take(&mut queue.events).into()),
        }
    }

    fn event(&self, change: Change, names: &mut Names) -> FilesystemEvent {
        // Of what was removed or renamed there is nothing to describe, and at its place may be something else.
        let describes = self.include_entry
            && matches!(
                change.kind,
                EventType::EVENT_TYPE_CREATE | EventType::EVENT_TYPE_WRITE | EventType::EVENT_TYPE_CHMOD
            );
        let place =
            if change.path == Path::new(".") { self.path.clone() } else { self.path.join(&change.path) };
        let entry = describes.then(|| describe(&place, names).ok()).flatten();
        FilesystemEvent {
            name: change.path.to_string_lossy().into_owned(),
            r#type: EnumValue::Known(change.kind),
            entry: entry.map_or_else(MessageField::none, MessageField::some),
            ..FilesystemEvent::default()
        }
    }
}

fn watch_error(error: &WatchError) -> ConnectError {
    match error {
        WatchError::Limit => ConnectError::resource_exhausted(format!(
            "{error}: remove watchers that are not needed, or watch fewer directories"
        )),
        WatchError::TooManyDirectories => ConnectError::resource_exhausted(error.to_string()),
        WatchError::Lost => ConnectError::data_loss(format!("{error}: watch the directory anew and read it")),
        WatchError::Io { path, source } => rpc_error("watching", path, source),
    }
}

fn is_on_network(path: &Path) -> Result<bool, ConnectError> {
    let fs = rustix::fs::statfs(path).map_err(|e| rpc_error("watching", path, &io::Error::from(e)))?;
    // The number has 32 bits; the field is wider, and signed.
    let kind = u32::try_from(fs.f_type & 0xffff_ffff).unwrap_or(0);
    Ok(is_network(kind))
}

/// Whether this is the magic number of NFS, CIFS, SMB or FUSE.
fn is_network(kind: u32) -> bool {
    matches!(kind, 0x6969 | 0xff53_4d42 | 0x517b | 0xfe53_4d42 | 0x6573_5546)
}

#[cfg(test)]
mod tests;
