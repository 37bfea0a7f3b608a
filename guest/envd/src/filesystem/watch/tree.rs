//! The watches on a directory, or on all directories below it, and what the kernel's events mean there.
//!
//! The kernel watches single directories. A tree therefore gains a watch whenever a directory appears in it, and
//! since things may have happened inside before that watch was there, the new directory is read once and what is in
//! it is reported as created. Events that the kernel has queued for these entries meanwhile are not reported again.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hutch_proto::filesystem::EventType;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::event::{self, Event};

/// Directories watched in one tree, at most.
const MAX_DIRECTORIES: usize = 65_536;
/// Changes that one batch of events may turn into before the tree gives up. Only directories full of files that are
/// moved into the tree, or filled faster than they can be watched, come near this.
const MAX_CHANGES: usize = 32_768;
const BUFFER_BYTES: usize = 64 << 10;

/// What can go wrong while watching.
#[derive(Debug, thiserror::Error)]
pub(super) enum WatchError {
    /// The kernel has no more instances or watches to give.
    #[error("the limit of the system for watchers is reached")]
    Limit,
    #[error("more than {MAX_DIRECTORIES} directories to watch")]
    TooManyDirectories,
    /// Some events are lost for good.
    #[error("too many events at once: some of them are lost")]
    Lost,
    #[error("watching '{path}'")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// Relative to the root of the tree; `.` for the root itself.
    pub(super) path: PathBuf,
    pub(super) kind: EventType,
}

/// A watched directory other than the root.
#[derive(Debug)]
struct Node {
    parent: i32,
    name: OsString,
}

/// Entries that were reported because they were found, not because of an event.
#[derive(Debug)]
struct Found {
    names: HashSet<OsString>,
    /// Those of them that had content already, which was reported as well.
    written: HashSet<OsString>,
    /// Events up to this position in the stream of bytes may be about these entries' creation.
    until: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Tree {
    fd: Arc<OwnedFd>,
    path: PathBuf,
    recursive: bool,
    root: i32,
    nodes: HashMap<i32, Node>,
    children: HashMap<(i32, OsString), i32>,
    found: HashMap<i32, Found>,
    /// Directories that left their place and have not arrived anywhere yet, by the cookie of their rename.
    moving: HashMap<u32, i32>,
    /// Bytes of events read so far.
    read: u64,
}

/// What is reported about the entries of a directory.
const ENTRIES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::ONLYDIR);

impl Tree {
    /// Watches `path`, a directory, and with `recursive` every directory below it. When this returns, everything
    /// that happens from then on will be reported.
    pub(super) fn new(path: &Path, recursive: bool) -> Result<Self, WatchError> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(|e| failed(path, e))?;
        let flags = ENTRIES | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        let root = inotify::add_watch(&fd, path, flags).map_err(|e| failed(path, e))?;
        let mut tree = Self {
            fd: Arc::new(fd),
            path: path.to_owned(),
            recursive,
            root,
            nodes: HashMap::new(),
            children: HashMap::new(),
            found: HashMap::new(),
            moving: HashMap::new(),
            read: 0,
        };
        if recursive {
            tree.explore(root, None)?;
        }
        Ok(tree)
    }

    /// What becomes readable when there are events.
    pub(super) fn descriptor(&self) -> Arc<OwnedFd> {
        self.fd.clone()
    }

    /// Appends everything that has happened up to now. After an error the tree is of no use.
    pub(super) fn drain(&mut self, out: &mut Vec<Change>) -> Result<(), WatchError> {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let length = match rustix::io::read(&*self.fd, &mut buffer[..]) {
                Ok(length) => length,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(failed(&self.path, error)),
            };
            let bytes = buffer.get(..length).unwrap_or_default();
            let start = self.read;
            self.read += size(bytes);
            let mut rest = bytes;
            while let Some(event) = event::take(&mut rest) {
                let position = start + size(bytes) - size(rest);
                self.handle(&event, position, out)?;
            }
        }
        // Nothing is queued any more: what was found has been told apart, and what left has not come back.
        self.found.clear();
        for (_, wd) in std::mem::take(&mut self.moving) {
            self.abandon(wd);
        }
        Ok(())
    }

    fn handle(&mut self, event: &Event<'_>, position: u64, out: &mut Vec<Change>) -> Result<(), WatchError> {
        let &Event { wd, flags, cookie, name } = event;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return Err(WatchError::Lost);
        }
        if flags.contains(ReadFlags::IGNORED) {
            self.forget(wd);
            return Ok(());
        }
        if name.is_empty() {
            // Directories below the root are reported as entries of theirs.
            if wd == self.root
                && let Some(kind) = own_kind(flags)
            {
                report(out, PathBuf::from("."), kind)?;
            }
            return Ok(());
        }
        let Some(directory) = self.relative(wd) else { return Ok(()) };
        let Some(kind) = entry_kind(flags) else { return Ok(()) };
        let known = self.was_found(wd, name, position, kind);
        if !(known && matches!(kind, EventType::EVENT_TYPE_CREATE | EventType::EVENT_TYPE_WRITE)) {
            report(out, directory.join(name), kind)?;
        }
        if !self.recursive || !flags.contains(ReadFlags::ISDIR) {
            return Ok(());
        }
        if flags.contains(ReadFlags::MOVED_FROM) {
            if let Some(child) = self.children.remove(&(wd, name.to_owned())) {
                self.moving.insert(cookie, child);
            }
        } else if flags.contains(ReadFlags::MOVED_TO)
            && let Some(child) = self.moving.remove(&cookie)
        {
            self.place(child, wd, name);
        } else if kind == EventType::EVENT_TYPE_CREATE
            && let Some(new) = self.watch(wd, name)?
        {
            self.explore(new, Some(out))?;
        }
        Ok(())
    }

    /// Whether an entry was reported already when its directory was read.
    fn was_found(&mut self, wd: i32, name: &OsStr, position: u64, kind: EventType) -> bool {
        let Some(found) = self.found.get_mut(&wd) else { return false };
        if position > found.until {
            self.found.remove(&wd);
            return false;
        }
        // Whatever ends or begins an entry of that name makes the next one another.
        match kind {
            EventType::EVENT_TYPE_WRITE => found.written.contains(name),
            EventType::EVENT_TYPE_CHMOD => false,
            EventType::EVENT_TYPE_CREATE => found.names.remove(name),
            _ => {
                found.written.remove(name);
                found.names.remove(name)
            }
        }
    }

    /// Reads the directory behind `wd`, watches the directories in it, and so on.
    fn explore(&mut self, wd: i32, mut out: Option<&mut Vec<Change>>) -> Result<(), WatchError> {
        let mut todo = vec![wd];
        while let Some(wd) = todo.pop() {
            let Some(directory) = self.relative(wd) else { continue };
            let Ok(entries) = std::fs::read_dir(self.path.join(&directory)) else { continue };
            let (mut names, mut written) = (HashSet::new(), HashSet::new());
            for entry in entries.filter_map(Result::ok) {
                let name = entry.file_name();
                if let Some(out) = out.as_deref_mut() {
                    names.insert(name.clone());
                    report(out, directory.join(&name), EventType::EVENT_TYPE_CREATE)?;
                    if entry.metadata().is_ok_and(|m| m.is_file() && m.len() > 0) {
                        written.insert(name.clone());
                        report(out, directory.join(&name), EventType::EVENT_TYPE_WRITE)?;
                    }
                }
                if entry.file_type().is_ok_and(|t| t.is_dir()) {
                    todo.extend(self.watch(wd, &name)?);
                }
            }
            if out.is_some() {
                let queued = rustix::io::ioctl_fionread(&*self.fd).unwrap_or(0);
                self.found.insert(wd, Found { names, written, until: self.read + queued });
            }
        }
        Ok(())
    }

    /// Watches the entry `name` of the directory `parent`, a directory itself. The watch, when it is a new one.
    fn watch(&mut self, parent: i32, name: &OsStr) -> Result<Option<i32>, WatchError> {
        let Some(directory) = self.relative(parent) else { return Ok(None) };
        let path = self.path.join(&directory).join(name);
        let wd = match inotify::add_watch(&*self.fd, &path, ENTRIES | WatchFlags::DONT_FOLLOW) {
            Ok(wd) => wd,
            // It is gone, or something else by now; events will say so.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::NAMETOOLONG) => {
                return Ok(None);
            }
            Err(error) => return Err(failed(&path, error)),
        };
        if wd == self.root {
            return Ok(None);
        }
        let new = !self.nodes.contains_key(&wd);
        if new && self.nodes.len() == MAX_DIRECTORIES {
            return Err(WatchError::TooManyDirectories);
        }
        self.place(wd, parent, name);
        Ok(new.then_some(wd))
    }

    /// Notes where a watched directory is.
    fn place(&mut self, wd: i32, parent: i32, name: &OsStr) {
        let node = Node { parent, name: name.to_owned() };
        if let Some(before) = self.nodes.insert(wd, node) {
            let key = (before.parent, before.name);
            if self.children.get(&key) == Some(&wd) {
                self.children.remove(&key);
            }
        }
        self.children.insert((parent, name.to_owned()), wd);
    }

    /// The kernel watches this one no more.
    fn forget(&mut self, wd: i32) {
        self.found.remove(&wd);
        if let Some(node) = self.nodes.remove(&wd) {
            let key = (node.parent, node.name);
            if self.children.get(&key) == Some(&wd) {
                self.children.remove(&key);
            }
        }
    }

    /// Stops watching a directory that has left the tree, and all below it.
    fn abandon(&mut self, wd: i32) {
        let below: Vec<i32> = self.nodes.keys().copied().filter(|other| self.is_below(*other, wd)).collect();
        for wd in below {
            // Nothing to do when the kernel was faster.
            inotify::remove_watch(&*self.fd, wd).ok();
            self.forget(wd);
        }
    }

    fn is_below(&self, mut wd: i32, top: i32) -> bool {
        // A chain longer than there are nodes would be a circle.
        for _ in 0..=self.nodes.len() {
            if wd == top {
                return true;
            }
            match self.nodes.get(&wd) {
                Some(node) => wd = node.parent,
                None => return false,
            }
        }
        false
    }

    /// Where a watched directory is, below the root.
    fn relative(&self, mut wd: i32) -> Option<PathBuf> {
        let mut parts = Vec::new();
        while wd != self.root {
            let node = self.nodes.get(&wd)?;
            parts.push(node.name.as_os_str());
            if parts.len() > self.nodes.len() {
                return None;
            }
            wd = node.parent;
        }
        Some(parts.iter().rev().collect())
    }
}

fn report(out: &mut Vec<Change>, path: PathBuf, kind: EventType) -> Result<(), WatchError> {
    if out.len() == MAX_CHANGES {
        return Err(WatchError::Lost);
    }
    out.push(Change { path, kind });
    Ok(())
}

/// What an event about an entry of a watched directory means.
fn entry_kind(flags: ReadFlags) -> Option<EventType> {
    let kinds = [
        (ReadFlags::CREATE | ReadFlags::MOVED_TO, EventType::EVENT_TYPE_CREATE),
        (ReadFlags::MOVED_FROM, EventType::EVENT_TYPE_RENAME),
        (ReadFlags::ATTRIB, EventType::EVENT_TYPE_CHMOD),
        (ReadFlags::MODIFY, EventType::EVENT_TYPE_WRITE),
        (ReadFlags::DELETE, EventType::EVENT_TYPE_REMOVE),
    ];
    kinds.into_iter().find(|(bits, _)| flags.intersects(*bits)).map(|(_, kind)| kind)
}

/// What an event about the root itself means.
fn own_kind(flags: ReadFlags) -> Option<EventType> {
    let kinds = [
        (ReadFlags::MOVE_SELF, EventType::EVENT_TYPE_RENAME),
        (ReadFlags::ATTRIB, EventType::EVENT_TYPE_CHMOD),
        (ReadFlags::DELETE_SELF, EventType::EVENT_TYPE_REMOVE),
    ];
    kinds.into_iter().find(|(bits, _)| flags.intersects(*bits)).map(|(_, kind)| kind)
}

fn failed(path: &Path, errno: Errno) -> WatchError {
    match errno {
        Errno::NOSPC | Errno::MFILE | Errno::NFILE => WatchError::Limit,
        other => WatchError::Io { path: path.to_owned(), source: other.into() },
    }
}

fn size(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
