use std::fs;
use std::time::Duration;

use super::*;
use crate::Config;

fn options(include_entry: bool) -> Options {
    Options { recursive: true, include_entry, allow_network_mounts: false }
}

fn start(path: &Path, include_entry: bool) -> Result<Watcher, ConnectError> {
    Watcher::start(&State::new(Config::default()), path, options(include_entry))
}

fn names(events: &[FilesystemEvent]) -> Vec<&str> {
    events.iter().map(|e| e.name.as_str()).collect()
}

#[tokio::test]
async fn what_has_happened_can_be_fetched_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let watcher = start(dir.path(), true).unwrap();
    for round in 0..100 {
        let name = format!("f{round}");
        fs::File::create(dir.path().join(&name)).unwrap();
        let events = watcher.events().fetch_now().unwrap();
        assert_eq!(names(&events), [name.as_str()]);
        let entry = events[0].entry.as_option().unwrap();
        assert_eq!(entry.path, dir.path().join(&name).to_str().unwrap());
        fs::remove_file(dir.path().join(&name)).unwrap();
        let events = watcher.events().fetch_now().unwrap();
        assert!(names(&events) == [name.as_str()] && events[0].entry.as_option().is_none());
    }
}

#[tokio::test]
async fn events_come_to_whoever_waits() {
    let dir = tempfile::tempdir().unwrap();
    let watcher = start(dir.path(), false).unwrap();
    let nothing = tokio::time::timeout(Duration::from_millis(10), watcher.fetch()).await;
    assert!(nothing.is_err());
    fs::create_dir(dir.path().join("d")).unwrap();
    let events = tokio::time::timeout(Duration::from_secs(10), watcher.fetch()).await.unwrap().unwrap();
    assert_eq!(names(&events), ["d"]);
    assert!(events[0].entry.as_option().is_none());
}

#[tokio::test]
async fn a_client_that_does_not_fetch_learns_that_events_are_lost_after_those_that_were_kept() {
    let dir = tempfile::tempdir().unwrap();
    let watcher = start(dir.path(), false).unwrap();
    let (path, failed) = (dir.path().to_owned(), watcher.shared.clone());
    let writer = tokio::task::spawn_blocking(move || {
        for i in 0..MAX_QUEUED + 1000 {
            let path = path.join(format!("{}", i % 7));
            if fs::remove_file(&path).is_err() {
                fs::File::create(&path).unwrap();
            }
            if i % 1000 == 0 {
                failed.collect();
            }
        }
    });
    writer.await.unwrap();
    watcher.shared.collect();
    let kept = watcher.events().fetch_now().unwrap();
    assert!(!kept.is_empty() && kept.len() <= MAX_QUEUED);
    for _ in 0..2 {
        assert_eq!(watcher.events().fetch_now().unwrap_err().code.as_str(), "data_loss");
        assert_eq!(watcher.fetch().await.unwrap_err().code.as_str(), "data_loss");
    }
    assert!(watcher.shared.queue.lock().tree.is_none(), "the watches are given back");
}

#[tokio::test]
async fn a_stream_ends_with_the_loss_after_the_events_that_were_kept() {
    let dir = tempfile::tempdir().unwrap();
    let watcher = start(dir.path(), false).unwrap();
    for name in ["a", "b"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    watcher.shared.collect();
    watcher.shared.queue.lock().fail(&WatchError::Lost);
    let all: Vec<_> = futures::StreamExt::collect(stream(watcher, Duration::from_secs(60))).await;
    let (last, before) = all.split_last().unwrap();
    assert_eq!(before.len(), 3, "start and two events: {before:?}");
    assert_eq!(last.as_ref().unwrap_err().code.as_str(), "data_loss");
}

#[test]
fn network_file_systems_are_known_by_their_numbers() {
    // NFS, CIFS, SMB, SMB2, FUSE.
    for kind in [0x6969, 0xff53_4d42, 0x517b, 0xfe53_4d42, 0x6573_5546] {
        assert!(is_network(kind), "{kind:x}");
    }
    // ext4, overlay, tmpfs.
    for kind in [0xef53, 0x794c_7630, 0x0102_1994] {
        assert!(!is_network(kind), "{kind:x}");
    }
}

#[tokio::test]
async fn dropping_a_watcher_closes_it() {
    let dir = tempfile::tempdir().unwrap();
    let watcher = start(dir.path(), false).unwrap();
    let shared = Arc::downgrade(&watcher.shared);
    drop(watcher);
    let closed = async {
        while shared.upgrade().is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), closed).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_watched_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(start(&dir.path().join("missing"), false).unwrap_err().code.as_str(), "not_found");
    assert_eq!(start(&file, false).unwrap_err().code.as_str(), "invalid_argument");
}

#[tokio::test]
async fn polled_watchers_are_found_by_their_id() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::default();
    let id = registry.add(start(dir.path(), false).unwrap()).unwrap();
    assert!(id.starts_with('w'));
    fs::create_dir(dir.path().join("d")).unwrap();
    assert_eq!(names(&registry.get(&id).unwrap().fetch_now().unwrap()), ["d"]);
    assert!(registry.get(&id).unwrap().fetch_now().unwrap().is_empty());
    registry.remove(&id).unwrap();
    assert_eq!(registry.get(&id).unwrap_err().code.as_str(), "not_found");
    assert_eq!(registry.remove(&id).unwrap_err().code.as_str(), "not_found");
}
