//! Stat, ListDir, MakeDir, Move, Remove.

use std::os::unix::fs::{PermissionsExt, symlink};

use connectrpc::client::{CallOptions, ClientConfig, HttpClient};
use connectrpc::{ConnectError, ErrorCode};
use hutch_proto::filesystem::{
    EntryInfo, FileType, FilesystemClient, ListDirRequest, MakeDirRequest, MoveRequest, RemoveRequest,
    StatRequest,
};
use serde_json::json;

use crate::files::unchunked;
use crate::support::*;

pub fn client(envd: &Envd) -> FilesystemClient<HttpClient> {
    let config = ClientConfig::new(format!("http://{}", envd.address).parse().unwrap());
    FilesystemClient::new(HttpClient::plaintext(), config.json())
}

async fn stat(envd: &Envd, path: &str) -> Result<EntryInfo, ConnectError> {
    let request = StatRequest { path: path.to_owned(), ..Default::default() };
    Ok(client(envd).stat(request).await?.into_owned().entry.into_option().unwrap())
}

async fn make_dir(envd: &Envd, path: &str) -> Result<EntryInfo, ConnectError> {
    let request = MakeDirRequest { path: path.to_owned(), ..Default::default() };
    Ok(client(envd).make_dir(request).await?.into_owned().entry.into_option().unwrap())
}

async fn rename(envd: &Envd, source: &str, destination: &str) -> Result<EntryInfo, ConnectError> {
    let request =
        MoveRequest { source: source.to_owned(), destination: destination.to_owned(), ..Default::default() };
    Ok(client(envd).r#move(request).await?.into_owned().entry.into_option().unwrap())
}

async fn remove(envd: &Envd, path: &str) -> Result<(), ConnectError> {
    client(envd).remove(RemoveRequest { path: path.to_owned(), ..Default::default() }).await.map(drop)
}

async fn list(envd: &Envd, path: &str, depth: u32) -> Result<Vec<EntryInfo>, ConnectError> {
    let request = ListDirRequest { path: path.to_owned(), depth, ..Default::default() };
    Ok(client(envd).list_dir(request).await?.into_owned().entries)
}

fn code<T: std::fmt::Debug>(result: Result<T, ConnectError>) -> ErrorCode {
    result.unwrap_err().code
}

/// The message in a raw answer.
fn message(answer: &Answer) -> serde_json::Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    serde_json::from_slice(&unchunked(answer.body.as_bytes())).unwrap()
}

#[tokio::test]
async fn an_entry_is_described_as_sdks_read_it() {
    with_envd(async |envd| {
        std::fs::write(envd.home().join("f.txt"), "1234").unwrap();
        std::fs::set_permissions(envd.home().join("f.txt"), PermissionsExt::from_mode(0o640)).unwrap();
        let answer = envd
            .post("/filesystem.Filesystem/Stat", &["content-type: application/json"], r#"{"path":"f.txt"}"#)
            .await;
        let answer = message(&answer);
        let entry = &answer["entry"];
        let path = envd.home().join("f.txt");
        for (field, wanted) in [
            ("name", json!("f.txt")),
            ("type", json!("FILE_TYPE_FILE")),
            ("path", json!(path)),
            ("size", json!("4")),
            ("mode", json!(0o640)),
            ("permissions", json!("-rw-r-----")),
        ] {
            assert_eq!(entry[field], wanted, "{field}");
        }
        assert!(entry["owner"].is_string() && entry["group"].is_string(), "{entry}");
        assert!(entry["modifiedTime"].as_str().unwrap().ends_with('Z'), "{entry}");
        assert!(entry.get("symlinkTarget").is_none() && entry.get("isSymlink").is_none(), "{entry}");
    })
    .await;
}

#[tokio::test]
async fn an_old_python_sdk_gets_only_the_fields_that_it_knows() {
    with_envd(async |envd| {
        std::fs::write(envd.home().join("f.txt"), "1234").unwrap();
        let headers = ["content-type: application/json", "user-agent: connect-python"];
        for (method, body) in [("Stat", r#"{"path":"f.txt"}"#), ("ListDir", r#"{"path":""}"#)] {
            let answer = envd.post(&format!("/filesystem.Filesystem/{method}"), &headers, body).await;
            assert_eq!(answer.header("x-e2b-legacy-sdk"), Some("true"));
            let answer = message(&answer);
            let entry = if method == "Stat" { &answer["entry"] } else { &answer["entries"][0] };
            let path = envd.home().join("f.txt");
            assert_eq!(entry, &json!({"name": "f.txt", "type": "FILE_TYPE_FILE", "path": path}));
        }
        let created = envd
            .post("/filesystem.Filesystem/CreateWatcher", &headers, r#"{"path":"","includeEntry":true}"#)
            .await;
        assert_eq!(created.header("x-e2b-legacy-sdk"), Some("true"));
        let id = message(&created)["watcherId"].as_str().unwrap().to_owned();
        std::fs::create_dir(envd.home().join("d")).unwrap();
        let get = json!({"watcherId": id}).to_string();
        let got = envd.post("/filesystem.Filesystem/GetWatcherEvents", &headers, &get).await;
        assert_eq!(got.header("x-e2b-legacy-sdk"), Some("true"));
        assert_eq!(message(&got)["events"], json!([{"name": "d", "type": "EVENT_TYPE_CREATE"}]));
        let new = ["content-type: application/json", "user-agent: connectrpc/0.12.1"];
        let other = envd.post("/filesystem.Filesystem/Stat", &new, r#"{"path":"f.txt"}"#).await;
        assert_eq!(other.header("x-e2b-legacy-sdk"), None);
        assert!(message(&other)["entry"].get("owner").is_some());
    })
    .await;
}

#[tokio::test]
async fn directories_are_made_with_all_that_is_missing_but_not_twice() {
    with_envd(async |envd| {
        std::fs::write(envd.home().join("file"), "").unwrap();
        let made = make_dir(envd, "a/b/c").await.unwrap();
        assert_eq!(made.path, envd.home().join("a/b/c").to_str().unwrap());
        assert_eq!((made.permissions.as_str(), made.mode), ("drwxr-xr-x", 0o755));
        assert_eq!(code(make_dir(envd, "a/b/c").await), ErrorCode::AlreadyExists);
        assert_eq!(code(make_dir(envd, "").await), ErrorCode::AlreadyExists);
        assert_eq!(code(make_dir(envd, "file").await), ErrorCode::InvalidArgument);
        assert_eq!(code(make_dir(envd, "file/x").await), ErrorCode::InvalidArgument);
        assert_eq!(code(make_dir(envd, "~other/x").await), ErrorCode::InvalidArgument);
        assert_eq!(code(make_dir(envd, &"x".repeat(300)).await), ErrorCode::InvalidArgument);
    })
    .await;
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    with_envd(async |envd| {
        std::fs::write(envd.home().join("file"), "").unwrap();
        for path in ["missing", "file/below", "missing/below"] {
            assert_eq!(code(stat(envd, path).await), ErrorCode::NotFound, "{path}");
        }
        assert_eq!(code(list(envd, "missing", 1).await), ErrorCode::NotFound);
        assert_eq!(code(list(envd, "file", 1).await), ErrorCode::InvalidArgument);
        assert_eq!(code(rename(envd, "missing", "x/y").await), ErrorCode::NotFound);
        assert!(!envd.home().join("x").exists());
        remove(envd, "missing").await.unwrap();
        symlink("round", envd.home().join("round")).unwrap();
        assert_eq!(code(list(envd, "round", 1).await), ErrorCode::FailedPrecondition);
    })
    .await;
}

#[tokio::test]
async fn moving_and_removing_take_everything_along() {
    with_envd(async |envd| {
        std::fs::create_dir_all(envd.home().join("from/deep")).unwrap();
        std::fs::write(envd.home().join("from/deep/file"), "x").unwrap();
        let moved = rename(envd, "from", "to/there").await.unwrap();
        assert_eq!(moved.name, "there");
        assert_eq!(std::fs::read(envd.home().join("to/there/deep/file")).unwrap(), b"x");
        assert_eq!(code(stat(envd, "from").await), ErrorCode::NotFound);
        remove(envd, "to").await.unwrap();
        assert_eq!(code(stat(envd, "to").await), ErrorCode::NotFound);
        assert_eq!(code(remove(envd, "/").await), ErrorCode::InvalidArgument);
    })
    .await;
}

#[tokio::test]
async fn links_are_listed_with_what_they_lead_to() {
    with_envd(async |envd| {
        std::fs::create_dir(envd.home().join("dir")).unwrap();
        std::fs::write(envd.home().join("dir/file"), "x").unwrap();
        symlink("dir", envd.home().join("way")).unwrap();
        let entries = list(envd, "way", 3).await.unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].path, envd.home().join("way/file").to_str().unwrap());
        let way = stat(envd, "way").await.unwrap();
        assert_eq!(way.r#type, FileType::FILE_TYPE_DIRECTORY);
        let real = envd.home().join("dir").canonicalize().unwrap();
        assert_eq!(way.symlink_target.as_deref(), real.to_str());
    })
    .await;
}

#[tokio::test]
async fn a_directory_with_very_many_entries_is_listed_in_order() {
    with_envd(async |envd| {
        let dir = envd.home().join("many");
        std::fs::create_dir(&dir).unwrap();
        for i in 0..5000 {
            std::fs::File::create(dir.join(format!("{i:05}"))).unwrap();
        }
        let names: Vec<String> = list(envd, "many", 1).await.unwrap().into_iter().map(|e| e.name).collect();
        assert!(names.len() == 5000 && names.is_sorted());
    })
    .await;
}

#[tokio::test]
async fn an_unknown_user_is_unauthenticated() {
    with_envd(async |envd| {
        let options = CallOptions::default().with_header("authorization", "Basic bm9ib2R5LWhlcmU6");
        let request = StatRequest { path: String::new(), ..Default::default() };
        let error = client(envd).stat_with_options(request, options).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Unauthenticated);
        assert_eq!(error.message.as_deref(), Some("invalid username: 'nobody-here'"));
    })
    .await;
}
