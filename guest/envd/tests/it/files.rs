//! Download, upload and compose, over raw HTTP.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use flate2::Compression;
use flate2::write::{GzEncoder, MultiGzDecoder};
use hutch_envd::state::Update;
use hutch_types::Secret;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

const OCTETS: &str = "content-type: application/octet-stream";
const FORM: &str = "content-type: multipart/form-data; boundary=XX";

/// A form with files of these names; a part of another name comes first.
fn form(files: &[(&str, &str)]) -> String {
    let mut text = "--XX\r\nContent-Disposition: form-data; name=\"note\"\r\n\r\nignore me\r\n".to_owned();
    for (name, content) in files {
        text += &format!(
            "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
             Content-Type: text/plain\r\n\r\n{content}\r\n"
        );
    }
    text + "--XX--\r\n"
}

/// As [`Envd::raw`], with bytes both ways: the head, and the body.
async fn bytes(envd: &Envd, request: &[u8]) -> (Answer, Vec<u8>) {
    let mut stream = TcpStream::connect(envd.address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    let at = memchr::memmem::find(&all, b"\r\n\r\n").unwrap();
    let body = all.split_off(at + 4);
    (Answer::parse(&all), body)
}

/// Undoes `Transfer-Encoding: chunked`.
pub fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let end = memchr::memmem::find(body, b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        body = &body[end + 2..];
        if size == 0 {
            return out;
        }
        out.extend_from_slice(&body[..size]);
        body = &body[size + 2..];
    }
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn with_body(head: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    [format!("{head}\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n").as_bytes(), body]
        .concat()
}

/// Bytes that no compression makes smaller.
fn noise(len: usize) -> Vec<u8> {
    let mut x: u32 = 1;
    let next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        x.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[tokio::test]
async fn files_of_a_form_are_written_where_their_names_say() {
    with_envd(async |envd| {
        let sent = form(&[("a.txt", "one"), ("sub/dir/b.txt", "two")]);
        let answer = envd.post("/files", &[FORM], &sent).await;
        let at = |name: &str| envd.home().join(name).to_str().unwrap().to_owned();
        let wanted = json!([
            {"name": "a.txt", "path": at("a.txt"), "type": "file"},
            {"name": "b.txt", "path": at("sub/dir/b.txt"), "type": "file"},
        ]);
        assert_eq!((answer.status, answer.json()), (200, wanted));
        assert_eq!(std::fs::read(at("sub/dir/b.txt")).unwrap(), b"two");

        // With a path in the query, the name of the file does not matter.
        let answer = envd.post("/files?path=c%20d.txt", &[FORM], &form(&[("other", "three")])).await;
        assert_eq!(answer.json()[0]["path"], json!(at("c d.txt")));
        let answer = envd.get("/files?path=c+d.txt", &[]).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "three"));
        assert_eq!(answer.header("content-disposition"), Some("inline; filename=\"c d.txt\""));
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(answer.header("content-length"), Some("5"));
        assert!(
            answer.head.lines().any(|l| l.starts_with("vary:") && l.contains("accept-encoding")),
            "{answer:?}"
        );
        assert_eq!(envd.post("/files", &[FORM], &form(&[])).await.json(), json!([]));
    })
    .await;
}

#[tokio::test]
async fn bytes_of_any_kind_come_back_unchanged_however_they_travel() {
    with_envd(async |envd| {
        let content = noise(3 << 20);
        let plain = with_body(&format!("POST /files?path=big HTTP/1.1\r\n{OCTETS}"), &content);
        let head = format!("POST /files?path=packed HTTP/1.1\r\n{OCTETS}\r\ncontent-encoding: gzip");
        let packed = with_body(&head, &gzip(&content));
        for request in [plain, packed] {
            assert_eq!(bytes(envd, &request).await.0.status, 200);
        }
        let head = "Host: x\r\nConnection: close\r\n";
        for name in ["big", "packed"] {
            let (_, body) =
                bytes(envd, format!("GET /files?path={name} HTTP/1.1\r\n{head}\r\n").as_bytes()).await;
            assert!(body == content, "{name} differs");
        }
        let request = format!("GET /files?path=big HTTP/1.1\r\naccept-encoding: gzip\r\n{head}\r\n");
        let (answer, body) = bytes(envd, request.as_bytes()).await;
        assert_eq!(answer.header("content-encoding"), Some("gzip"));
        let mut decoder = MultiGzDecoder::new(Vec::new());
        decoder.write_all(&unchunked(&body)).unwrap();
        assert!(decoder.finish().unwrap() == content, "the compressed download differs");

        // What HTTP libraries send by themselves does not slow large downloads down.
        let (answer, _) = bytes(envd, request.replace(": gzip", ": zstd,gzip,br").as_bytes()).await;
        assert_eq!(answer.header("content-encoding"), None);
        std::fs::write(envd.home().join("small"), "small").unwrap();
        let answer = envd.get("/files?path=small", &["accept-encoding: gzip, deflate"]).await;
        assert_eq!(answer.header("content-encoding"), Some("gzip"));
        assert_eq!(envd.get("/files?path=small", &["accept-encoding: br, identity;q=0"]).await.status, 406);
    })
    .await;
}

#[tokio::test]
async fn an_empty_upload_makes_an_empty_file() {
    with_envd(async |envd| {
        assert_eq!(envd.post("/files?path=empty", &[OCTETS], "").await.status, 200);
        assert_eq!(std::fs::read(envd.home().join("empty")).unwrap(), b"");
        let answer = envd.get("/files?path=empty", &["range: bytes=0-9"]).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, ""));
    })
    .await;
}

#[tokio::test]
async fn requests_that_cannot_be_met_say_why() {
    with_envd(async |envd| {
        std::fs::write(envd.home().join("file"), "x").unwrap();
        let get = async |path: &str| envd.get(&format!("/files?{path}"), &[]).await;
        for (query, status) in [
            ("path=missing", 404),
            ("path=file/below", 404),
            ("path=.", 400),
            ("", 400),
            ("path=~other/x", 400),
            ("path=%00", 400),
            ("path=/dev/null", 400),
            ("path=file&username=nobody-here", 401),
            ("path=a&path=b", 400),
        ] {
            let answer = get(query).await;
            assert_eq!((answer.status, &answer.json()["code"]), (status, &json!(status)), "{query}");
            assert_eq!(answer.header("content-type"), Some("application/json; charset=utf-8"));
        }
        let twice = form(&[("a", "1"), ("b", "2"), ("./a", "3")]);
        for (query, headers, body, status) in [
            ("path=new", &["content-type: text/plain"][..], "x", 400),
            ("path=new", &[], "x", 400),
            ("", &[OCTETS], "x", 400),
            ("path=.", &[OCTETS], "x", 400),
            ("path=file/below", &[OCTETS], "x", 400),
            ("path=new&username=nobody-here", &[OCTETS], "x", 401),
            ("path=new", &[OCTETS, "content-encoding: br"], "x", 400),
            ("path=new", &[OCTETS, "content-encoding: gzip"], "not gzip", 400),
            ("path=new", &[OCTETS, "content-encoding: gzip"], "", 400),
            ("path=new", &[OCTETS, "x-metadata-k: caf\u{e9}"], "x", 400),
            ("path=new", &["content-type: multipart/form-data"], "x", 400),
            ("", &[FORM], &twice, 400),
            (
                "path=new",
                &[FORM],
                "--XX\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\ncut off",
                400,
            ),
        ] {
            let answer = envd.post(&format!("/files?{query}"), headers, body).await;
            assert_eq!(
                (answer.status, &answer.json()["code"]),
                (status, &json!(status)),
                "{query} {headers:?}"
            );
            assert!(!envd.home().join("new").exists(), "{query} {headers:?} left a file");
        }
        assert_eq!(
            std::fs::read(envd.home().join("a")).unwrap(),
            b"1",
            "the first of two is the one written"
        );
    })
    .await;
}

#[tokio::test]
async fn parts_and_conditions_are_honoured() {
    with_envd(async |envd| {
        std::fs::write(envd.home().join("f.txt"), "0123456789").unwrap();
        let get = async |headers: &[&str]| envd.get("/files?path=f.txt", headers).await;
        let whole = get(&[]).await;
        assert_eq!(whole.header("accept-ranges"), Some("bytes"));
        let tag = whole.header("etag").unwrap().to_owned();
        assert!(whole.header("last-modified").is_some());

        let part = get(&["range: bytes=2-4"]).await;
        assert_eq!((part.status, part.body.as_str()), (206, "234"));
        assert_eq!(part.header("content-range"), Some("bytes 2-4/10"));
        let part = get(&["range: bytes=-1", "accept-encoding: gzip", &format!("if-range: {tag}")]).await;
        assert_eq!((part.status, part.body.as_str(), part.header("content-encoding")), (206, "9", None));
        assert_eq!(get(&["range: bytes=2-4", "if-range: \"old\""]).await.status, 200);
        let beyond = get(&["range: bytes=10-"]).await;
        assert_eq!((beyond.status, beyond.header("content-range")), (416, Some("bytes */10")));

        let cached = get(&[&format!("if-none-match: {tag}")]).await;
        assert_eq!((cached.status, cached.body.as_str()), (304, ""));
        assert_eq!(get(&["if-modified-since: Fri, 31 Dec 2100 00:00:00 GMT"]).await.status, 304);
        assert_eq!(get(&["if-modified-since: Sat, 31 Dec 2016 00:00:00 GMT"]).await.status, 200);
        assert_eq!(get(&["if-none-match: \"old\""]).await.body, "0123456789");
        assert_eq!(get(&["if-match: \"old\""]).await.status, 412);
        assert_eq!(get(&["range: bytes=0-1", "accept-encoding: gzip, identity;q=0"]).await.status, 406);

        let head = envd.raw(&request("HEAD", "/files?path=f.txt", &[], "")).await;
        assert_eq!((head.status, head.header("content-length"), head.body.as_str()), (200, Some("10"), ""));
        std::fs::write(envd.home().join("f.txt"), "changed").unwrap();
        assert_eq!(get(&[&format!("if-none-match: {tag}")]).await.body, "changed");
    })
    .await;
}

#[tokio::test]
async fn a_range_of_a_large_file_is_exact_wherever_it_lies() {
    with_envd(async |envd| {
        let content = noise(1 << 20);
        std::fs::write(envd.home().join("large"), &content).unwrap();
        for (from, to) in [(0, 10), (65_530, 65_545), (65_536, 65_536), (100_000, 900_000), (1_048_575, 1_048_575)] {
            let request = format!(
                "GET /files?path=large HTTP/1.1\r\nHost: x\r\nConnection: close\r\nRange: bytes={from}-{to}\r\n\r\n"
            );
            let (answer, body) = bytes(envd, request.as_bytes()).await;
            assert_eq!(answer.status, 206);
            assert!(body == content[from..=to], "{from}-{to} differs");
        }
    })
    .await;
}

#[tokio::test]
async fn a_secured_sandbox_wants_the_token_or_a_signature() {
    with_envd(async |envd| {
        envd.state.update(Update { access_token: Some(Secret::new("tok")), ..Update::default() });
        std::fs::write(envd.home().join("f"), "x").unwrap();
        let sign = |text: &str| {
            let signature = STANDARD_NO_PAD.encode(Sha256::digest(text));
            format!("v1_{}", signature.replace('+', "%2B").replace('/', "%2F"))
        };
        let message = async |query: &str, headers: &[&str]| {
            let answer = envd.get(&format!("/files?{query}"), headers).await;
            (answer.status, answer.body.clone())
        };
        let refused = |text: &str| (401, format!("{{\"message\":\"{text}\",\"code\":401}}"));
        let (right, wrong) = ("x-access-token: tok", "x-access-token: nope");
        let read = format!("path=f&signature={}", sign("f:read::tok"));
        assert_eq!(message("path=f", &[right]).await, (200, "x".to_owned()));
        assert_eq!(message("path=f", &[]).await, refused("missing signature query parameter"));
        assert_eq!(message(&read, &[]).await, (200, "x".to_owned()));
        assert_eq!(
            message(&read, &[wrong]).await,
            refused("access token present in header but does not match")
        );
        assert_eq!(message(&read.replace("path=f", "path=./f"), &[]).await, refused("invalid signature"));
        let user = format!("path=f&username=user&signature={}", sign("f:read:user:tok"));
        assert_eq!(message(&user, &[]).await.0, 200);
        let old = format!("path=f&signature_expiration=1000&signature={}", sign("f:read::tok:1000"));
        assert_eq!(message(&old, &[]).await, refused("signature is already expired"));
        let fresh =
            format!("path=f&signature_expiration=9999999999&signature={}", sign("f:read::tok:9999999999"));
        assert_eq!(message(&fresh, &[]).await.0, 200);
        assert_eq!(message("path=f&signature=x&signature_expiration=soon", &[]).await.0, 400);

        let write = format!("/files?path=new&signature={}", sign("new:write::tok"));
        let reading = format!("/files?path=new&signature={}", sign("new:read::tok"));
        assert_eq!(envd.post(&reading, &[OCTETS], "x").await.status, 401);
        assert!(!envd.home().join("new").exists());
        assert_eq!(envd.post(&write, &[OCTETS], "x").await.status, 200);
        assert_eq!(envd.post("/files/compose", &[], "{}").await.status, 401);
    })
    .await;
}

#[tokio::test]
async fn uploads_at_one_time_into_folders_that_none_of_them_finds() {
    with_envd(async |envd| {
        let uploads = (0..40).map(|i| async move {
            let path = format!("/files?path=new/{}/deep/{i}", i % 3);
            envd.post(&path, &[OCTETS], &i.to_string()).await.status
        });
        let all = futures::future::join_all(uploads).await;
        assert!(all.iter().all(|status| *status == 200), "{all:?}");
        for i in 0..40 {
            let path = envd.home().join(format!("new/{}/deep/{i}", i % 3));
            assert_eq!(std::fs::read_to_string(path).unwrap(), i.to_string());
        }
    })
    .await;
}

#[tokio::test]
async fn names_of_any_language_are_signed_written_and_offered_back() {
    with_envd(async |envd| {
        envd.state.update(Update { access_token: Some(Secret::new("tok")), ..Update::default() });
        let name = "d\u{e4}ten/\u{4e16}\u{754c} +&=%#?.txt";
        let encoded =
            percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string();
        for encoded in [encoded.clone(), encoded.replace("%20", "+")] {
            for (operation, status) in [("write", 200), ("read", 401)] {
                let signature =
                    STANDARD_NO_PAD.encode(Sha256::digest(format!("{name}:{operation}::tok:9999999999")));
                let signature = signature.replace('+', "%2B").replace('/', "%2F");
                let query =
                    format!("path={encoded}&signature_expiration=9999999999&signature=v1_{signature}");
                let answer = envd.post(&format!("/files?{query}"), &[OCTETS], "hello").await;
                assert_eq!(answer.status, status, "{operation}: {answer:?}");
                if operation == "read" {
                    let answer = envd.get(&format!("/files?{query}"), &[]).await;
                    assert_eq!((answer.status, answer.body.as_str()), (200, "hello"));
                    let offered = answer.header("content-disposition").unwrap();
                    assert!(
                        offered.starts_with("inline; filename*=utf-8''%e4%b8%96%e7%95%8c%20"),
                        "{offered}"
                    );
                }
            }
        }
        assert_eq!(std::fs::read(envd.home().join(name)).unwrap(), b"hello");
    })
    .await;
}

#[tokio::test]
async fn metadata_is_kept_and_each_upload_replaces_it() {
    with_envd(async |envd| {
        let upload = async |headers: &[&str]| envd.post("/files?path=m", headers, "x").await.json();
        let first = upload(&[OCTETS, "X-Metadata-Author: mish", "X-Metadata-Stage: one two"]).await;
        assert_eq!(first[0]["metadata"], json!({"author": "mish", "stage": "one two"}));
        let second = upload(&[OCTETS, "X-Metadata-Stage: two"]).await;
        assert_eq!(second[0]["metadata"], json!({"stage": "two"}));
        assert_eq!(upload(&[OCTETS]).await[0].get("metadata"), None);
        let long = format!("X-Metadata-{}: v", "k".repeat(247));
        assert_eq!(envd.post("/files?path=m", &[OCTETS, &long], "x").await.status, 400);
    })
    .await;
}

#[tokio::test]
async fn links_are_read_and_written_through() {
    with_envd(async |envd| {
        std::fs::write(envd.home().join("real"), "old").unwrap();
        symlink("real", envd.home().join("link")).unwrap();
        assert_eq!(envd.post("/files?path=link", &[OCTETS], "new").await.status, 200);
        assert_eq!(envd.get("/files?path=link", &[]).await.body, "new");
        assert!(std::fs::symlink_metadata(envd.home().join("link")).unwrap().is_symlink());
        symlink("round", envd.home().join("round")).unwrap();
        assert_eq!(envd.get("/files?path=round", &[]).await.status, 400);
        assert_eq!(envd.post("/files?path=round", &[OCTETS], "x").await.status, 400);
    })
    .await;
}

#[tokio::test]
async fn virtual_files_are_read_although_they_do_not_tell_their_size() {
    with_envd(async |envd| {
        let answer = envd.get("/files?path=/proc/self/status", &[]).await;
        assert!(answer.status == 200 && answer.body.contains("VmRSS"), "{answer:?}");
        let answer = envd.get("/files?path=/sys/kernel/mm/transparent_hugepage/enabled", &[]).await;
        assert!(answer.status == 404 || answer.body.contains("never"), "{answer:?}");
    })
    .await;
}

#[tokio::test]
async fn a_file_that_is_cut_while_it_is_sent_ends_in_an_error_not_early() {
    with_envd(async |envd| {
        let size: u64 = 256 << 20;
        let file = std::fs::File::create(envd.home().join("cut")).unwrap();
        file.set_len(size).unwrap();
        let mut stream = TcpStream::connect(envd.address).await.unwrap();
        stream.write_all(b"GET /files?path=cut HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut some = vec![0; 1000];
        stream.read_exact(&mut some).await.unwrap();
        assert!(String::from_utf8_lossy(&some).contains(&format!("content-length: {size}")));
        file.set_len(0).unwrap();
        let mut got: u64 = 0;
        let mut buffer = vec![0; 1 << 16];
        // The connection is closed, although the client would keep it.
        while let Ok(more @ 1..) = stream.read(&mut buffer).await {
            got += more as u64;
        }
        assert!(got < size, "got all {got} bytes of a file that was cut");
    })
    .await;
}

#[tokio::test]
async fn an_upload_that_its_client_gives_up_leaves_nothing() {
    with_envd(async |envd| {
        let path = envd.home().join("half");
        let mut stream = TcpStream::connect(envd.address).await.unwrap();
        let head = format!(
            "POST /files?path=half HTTP/1.1\r\nHost: x\r\n{OCTETS}\r\nContent-Length: 1000000\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&[b'x'; 1000]).await.unwrap();
        wait_for("the file to appear", async || path.exists().then_some(())).await;
        drop(stream);
        wait_for("the file to go", async || (!path.exists()).then_some(())).await;
    })
    .await;
}

#[tokio::test]
async fn pieces_are_put_together_in_order_and_removed() {
    with_envd(async |envd| {
        for (name, content) in [("p1", "one "), ("p2", "two "), ("p3", "three")] {
            std::fs::write(envd.home().join(name), content).unwrap();
        }
        let compose = async |order: serde_json::Value| {
            let answer =
                envd.post("/files/compose", &["content-type: application/json"], &order.to_string()).await;
            (answer.status, answer.json())
        };
        let (status, answer) =
            compose(json!({"source_paths": ["p1", "p2", "p3"], "destination": "d/all"})).await;
        let all = envd.home().join("d/all");
        assert_eq!((status, answer), (200, json!({"name": "all", "path": all, "type": "file"})));
        assert_eq!(std::fs::read(&all).unwrap(), b"one two three");
        assert!(!envd.home().join("p1").exists());

        std::fs::write(envd.home().join("p1"), "x").unwrap();
        symlink(".", envd.home().join("way")).unwrap();
        let home = envd.home().to_str().unwrap().to_owned();
        for (order, wanted) in [
            (json!({"source_paths": [], "destination": "d"}), 400),
            (json!({"source_paths": ["p1"], "destination": ""}), 400),
            (json!({"source_paths": ["p1"]}), 400),
            (json!({"source_paths": ["p1"], "destination": "p1"}), 400),
            (json!({"source_paths": [format!("{home}//p1")], "destination": "p1"}), 400),
            (json!({"source_paths": ["way/p1"], "destination": "p1"}), 400),
            (json!({"source_paths": ["d"], "destination": "new"}), 400),
            (json!({"source_paths": ["p1"], "destination": "d"}), 400),
            (json!({"source_paths": ["p1", "missing"], "destination": "new"}), 404),
            (json!({"source_paths": ["p1"], "destination": "new", "username": "nobody-here"}), 401),
        ] {
            assert_eq!(compose(order.clone()).await.0, wanted, "{order}");
        }
        assert!(envd.home().join("p1").exists() && !envd.home().join("new").exists());
    })
    .await;
}

/// A file system of its own for a test, gone afterwards.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    /// `None` for those who may not mount.
    fn mount(at: &'a Path) -> Option<Self> {
        std::fs::create_dir(at).unwrap();
        let options = Some(c"size=4m,mode=0777");
        match rustix::mount::mount("none", at, "tmpfs", rustix::mount::MountFlags::empty(), options) {
            Ok(()) => Some(Self(at)),
            Err(error) => {
                eprintln!("SKIP: mounting a tmpfs: {error}");
                None
            }
        }
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

#[tokio::test]
async fn what_does_not_fit_is_answered_507_and_takes_no_space() {
    with_envd(async |envd| {
        let at = envd.home().join("small");
        let Some(_small) = Small::mount(&at) else { return };
        std::fs::write(at.join("old"), "old").unwrap();
        let mut stream = TcpStream::connect(envd.address).await.unwrap();

        // A client that sends everything before it reads anything, and does not say how much it is.
        let chunk = [&b"10000\r\n"[..], &[b'x'; 0x10000], b"\r\n"].concat();
        for name in ["new", "old"] {
            let head = format!("POST /files?path=small/{name} HTTP/1.1\r\nHost: x\r\n{OCTETS}\r\n");
            stream.write_all(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes()).await.unwrap();
            for _ in 0..(64 << 20) / 0x10000 {
                stream.write_all(&chunk).await.unwrap();
            }
            stream.write_all(b"0\r\n\r\n").await.unwrap();
            let answer = read_answer(&mut stream).await;
            assert_eq!((answer.status, &answer.json()["code"]), (507, &json!(507)), "{answer:?}");
        }
        assert!(!at.join("new").exists());
        assert_eq!(std::fs::read(at.join("old")).unwrap(), b"");

        // One that says how much it is loses nothing that was there.
        std::fs::write(at.join("old"), "old").unwrap();
        let body = vec![b'x'; 8 << 20];
        let head = format!("POST /files?path=small/old HTTP/1.1\r\nHost: x\r\n{OCTETS}");
        stream
            .write_all(format!("{head}\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes())
            .await
            .unwrap();
        stream.write_all(&body).await.unwrap();
        let answer = read_answer(&mut stream).await;
        assert_eq!(answer.status, 507);
        assert!(answer.json()["message"].as_str().unwrap().contains("not enough disk space"));
        assert_eq!(std::fs::read(at.join("old")).unwrap(), b"old");

        // And the same connection goes on.
        stream.write_all(format!("{head}\r\nContent-Length: 5\r\n\r\nfits!").as_bytes()).await.unwrap();
        assert_eq!(read_answer(&mut stream).await.status, 200);
        assert_eq!(std::fs::read(at.join("old")).unwrap(), b"fits!");
    })
    .await;
}

/// One answer of a connection that is kept, with a body of known length.
async fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let length: usize = Answer::parse(&head).header("content-length").unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    head.extend(body);
    Answer::parse(&head)
}
