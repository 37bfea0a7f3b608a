//! WatchDir and the watchers of clients that poll.

use std::time::Duration;

use connectrpc::ErrorCode;
use connectrpc::client::CallOptions;
use hutch_proto::filesystem::watch_dir_response::Event;
use hutch_proto::filesystem::{
    CreateWatcherRequest, EventType, FilesystemEvent, GetWatcherEventsRequest, RemoveWatcherRequest,
    WatchDirRequest,
};

use crate::filesystem::client;
use crate::support::*;

fn watch(path: &str, recursive: bool) -> WatchDirRequest {
    WatchDirRequest { path: path.to_owned(), recursive, ..Default::default() }
}

async fn create(envd: &Envd, path: &str, include_entry: bool) -> String {
    let request =
        CreateWatcherRequest { path: path.to_owned(), recursive: true, include_entry, ..Default::default() };
    client(envd).create_watcher(request).await.unwrap().into_owned().watcher_id
}

async fn events(envd: &Envd, watcher_id: &str) -> Vec<FilesystemEvent> {
    let request = GetWatcherEventsRequest { watcher_id: watcher_id.to_owned(), ..Default::default() };
    client(envd).get_watcher_events(request).await.unwrap().into_owned().events
}

fn short(events: &[FilesystemEvent]) -> Vec<(&str, &str)> {
    let kind = |e: &FilesystemEvent| match e.r#type.as_known() {
        Some(EventType::EVENT_TYPE_CREATE) => "create",
        Some(EventType::EVENT_TYPE_WRITE) => "write",
        Some(EventType::EVENT_TYPE_REMOVE) => "remove",
        Some(EventType::EVENT_TYPE_RENAME) => "rename",
        Some(EventType::EVENT_TYPE_CHMOD) => "chmod",
        _ => "?",
    };
    events.iter().map(|e| (e.name.as_str(), kind(e))).collect()
}

macro_rules! next_event {
    ($stream:expr) => {
        $stream
            .message()
            .await
            .unwrap()
            .expect("an event")
            .to_owned_message()
            .event
            .expect("an event of some kind")
    };
}

#[tokio::test]
async fn an_upload_is_one_creation_and_one_write_for_whoever_polls() {
    with_envd(async |envd| {
        let id = create(envd, "", true).await;
        assert!(id.starts_with('w'));
        std::fs::create_dir(envd.home().join("sub")).unwrap();
        assert_eq!(short(&events(envd, &id).await), [("sub", "create")]);
        let body = "x".repeat(60_000);
        let octets = ["content-type: application/octet-stream"];
        assert_eq!(envd.post("/files?path=sub/f.txt", &octets, &body).await.status, 200);
        let got = events(envd, &id).await;
        assert_eq!(short(&got), [("sub/f.txt", "create"), ("sub/f.txt", "write")]);
        let entry = got[1].entry.as_option().unwrap();
        assert_eq!(entry.path, envd.home().join("sub/f.txt").to_str().unwrap());
        assert_eq!(events(envd, &id).await, []);

        std::fs::rename(envd.home().join("sub/f.txt"), envd.home().join("sub/g.txt")).unwrap();
        std::fs::remove_file(envd.home().join("sub/g.txt")).unwrap();
        let got = events(envd, &id).await;
        assert_eq!(short(&got), [("sub/f.txt", "rename"), ("sub/g.txt", "create"), ("sub/g.txt", "remove")]);
        assert!(got[0].entry.as_option().is_none() && got[2].entry.as_option().is_none());
    })
    .await;
}

#[tokio::test]
async fn a_removed_or_unknown_watcher_is_not_found() {
    with_envd(async |envd| {
        let id = create(envd, "", false).await;
        let remove = RemoveWatcherRequest { watcher_id: id.clone(), ..Default::default() };
        client(envd).remove_watcher(remove.clone()).await.unwrap();
        assert_eq!(client(envd).remove_watcher(remove).await.unwrap_err().code, ErrorCode::NotFound);
        let get = GetWatcherEventsRequest { watcher_id: id, ..Default::default() };
        assert_eq!(client(envd).get_watcher_events(get).await.unwrap_err().code, ErrorCode::NotFound);
    })
    .await;
}

#[tokio::test]
async fn a_stream_begins_with_start_and_brings_what_happens_then() {
    with_envd(async |envd| {
        std::fs::create_dir(envd.home().join("d")).unwrap();
        let mut stream = client(envd).watch_dir(watch("d", true)).await.unwrap();
        assert!(matches!(next_event!(stream), Event::Start(_)));
        // Everything from now on, also where there is no watch yet.
        std::fs::create_dir_all(envd.home().join("d/x/y/z")).unwrap();
        std::fs::write(envd.home().join("d/x/y/z/f"), "x").unwrap();
        let mut created = Vec::new();
        while created.len() < 4 {
            let Event::Filesystem(event) = next_event!(stream) else {
                panic!("not an event of the file system")
            };
            if event.r#type.as_known() == Some(EventType::EVENT_TYPE_CREATE) {
                created.push(event.name.clone());
            }
        }
        assert_eq!(created, ["x", "x/y", "x/y/z", "x/y/z/f"]);
    })
    .await;
}

#[tokio::test]
async fn a_quiet_stream_is_kept_alive() {
    with_envd(async |envd| {
        let options = CallOptions::default().with_header("keepalive-ping-interval", "1");
        let mut stream = client(envd).watch_dir_with_options(watch("", false), options).await.unwrap();
        assert!(matches!(next_event!(stream), Event::Start(_)));
        assert!(matches!(next_event!(stream), Event::Keepalive(_)));
        std::fs::create_dir(envd.home().join("d")).unwrap();
        assert!(matches!(next_event!(stream), Event::Filesystem(_)));
        assert!(matches!(next_event!(stream), Event::Keepalive(_)));
    })
    .await;
}

#[tokio::test]
async fn ten_thousand_changes_all_arrive() {
    with_envd(async |envd| {
        let mut stream = client(envd).watch_dir(watch("", true)).await.unwrap();
        assert!(matches!(next_event!(stream), Event::Start(_)));
        let home = envd.home();
        let writer = tokio::task::spawn_blocking(move || {
            for i in 0..10_000 {
                std::fs::File::create(home.join(format!("{i:05}"))).unwrap();
            }
        });
        for i in 0..10_000 {
            let Event::Filesystem(event) = next_event!(stream) else {
                panic!("not an event of the file system")
            };
            assert_eq!(event.name, format!("{i:05}"));
        }
        writer.await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn ten_thousand_changes_wait_for_a_client_that_polls() {
    with_envd(async |envd| {
        let id = create(envd, "", false).await;
        let home = envd.home();
        let writer = tokio::task::spawn_blocking(move || {
            for i in 0..10_000 {
                std::fs::File::create(home.join(format!("{i:05}"))).unwrap();
            }
        });
        writer.await.unwrap();
        let got = events(envd, &id).await;
        assert!(
            got.iter().map(|e| e.name.clone()).eq((0..10_000).map(|i| format!("{i:05}"))),
            "{}",
            got.len()
        );
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_watched_is_refused_on_the_stream() {
    with_envd(async |envd| {
        std::fs::write(envd.home().join("file"), "").unwrap();
        for (path, wanted) in [("missing", ErrorCode::NotFound), ("file", ErrorCode::InvalidArgument)] {
            let request = CreateWatcherRequest { path: path.to_owned(), ..Default::default() };
            assert_eq!(client(envd).create_watcher(request).await.unwrap_err().code, wanted, "{path}");
            let error = match client(envd).watch_dir(watch(path, false)).await {
                Ok(mut stream) => stream.message().await.unwrap_err(),
                Err(error) => error,
            };
            assert_eq!(error.code, wanted, "{path}");
        }
    })
    .await;
}

/// The inotify instances of this process. Other tests have some, too.
fn instances() -> usize {
    let is_inotify = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == "anon_inode:inotify")
    };
    std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok).filter(is_inotify).count()
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_watch_along() {
    with_envd(async |envd| {
        const STREAMS: usize = 40;
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            let mut stream = client(envd).watch_dir(watch("", true)).await.unwrap();
            assert!(matches!(next_event!(stream), Event::Start(_)));
            streams.push(stream);
        }
        assert!(instances() >= STREAMS);
        drop(streams);
        wait_for("the watches to go", async || (instances() < STREAMS).then_some(())).await;
        tokio::time::timeout(Duration::from_secs(10), async { create(envd, "", false).await }).await.unwrap();
    })
    .await;
}
