//! What no well-behaved client sends: frames, messages and headers that are cut, twisted or enormous.
//!
//! Whatever comes, envd answers, in time, with an error of the client's and not of its own, and goes on. Generated cases
//! are joined by those of `tests/corpus`: `frames` are bodies of streams, `json` bodies of single messages. To keep a
//! case that was found somewhere, save its bytes there.

use std::convert::Infallible;
use std::io::Write;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hutch_envd::{Config, State, Users};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use tower::ServiceExt;

/// Nothing here waits for anything but a processor.
const IN_TIME: Duration = Duration::from_secs(20);
/// Streams that end by themselves, whatever is sent.
const STREAMS: [&str; 3] =
    ["/process.Process/StreamInput", "/process.Process/Start", "/process.Process/Connect"];
/// Methods that change nothing, whatever they are asked.
const UNARY: [&str; 9] = [
    "/process.Process/List",
    "/process.Process/SendInput",
    "/process.Process/SendSignal",
    "/process.Process/Update",
    "/process.Process/CloseStdin",
    "/filesystem.Filesystem/Stat",
    "/filesystem.Filesystem/GetWatcherEvents",
    "/filesystem.Filesystem/RemoveWatcher",
    "/filesystem.Filesystem/NoSuchMethod",
];

struct Site {
    runtime: tokio::runtime::Runtime,
    router: Router,
    _home: tempfile::TempDir,
}

static SITE: LazyLock<Site> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let home = tempfile::tempdir().unwrap();
    let users = Users::Everyone { home: home.path().to_owned() };
    let state = State::new(Config { users, ..Config::default() });
    Site { runtime, router: hutch_envd::router(&state), _home: home }
});

/// Posts `chunks` and returns status and body. A panic of a handler is one of the test.
fn post(path: &str, headers: &[(&str, &str)], chunks: Vec<Bytes>) -> (StatusCode, Bytes) {
    let mut request = Request::post(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = Body::from_stream(stream::iter(chunks.into_iter().map(Ok::<_, Infallible>)));
    let request = request.body(body).unwrap();
    let exchange = async {
        let response = SITE.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        (status, response.into_body().collect().await.unwrap().to_bytes())
    };
    SITE.runtime.block_on(async {
        tokio::time::timeout(IN_TIME, exchange).await.unwrap_or_else(|_| panic!("{path} hangs"))
    })
}

fn fine(status: StatusCode, body: &[u8], is_stream: bool) -> Result<(), String> {
    let text = String::from_utf8_lossy(body);
    if text.contains("unexpectedly") || text.contains("starting failed") {
        return Err(format!("a handler panicked: {text}"));
    }
    if is_stream && status == StatusCode::OK {
        // The last frame says how it went.
        let mut rest = body;
        let mut ended = false;
        while let Some((head, after)) = rest.split_first_chunk::<5>() {
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            ended = head[0] & 2 != 0;
            rest = after.get(length..).ok_or("a frame is cut")?;
        }
        return if ended && rest.is_empty() { Ok(()) } else { Err(format!("no end of the stream: {text}")) };
    }
    if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED {
        return Err(format!("{status}: {text}"));
    }
    Ok(())
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn frame(flags: u8, length: u32, payload: &[u8]) -> Vec<u8> {
    [&[flags][..], &length.to_be_bytes(), payload].concat()
}

fn whole(flags: u8, payload: &[u8]) -> Vec<u8> {
    frame(flags, u32::try_from(payload.len()).unwrap(), payload)
}

/// JSON of any shape, with the names that envd knows among others. Nothing in it can start a program.
fn message() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        Just("/no/such".to_owned()),
        Just("SIGNAL_SIGKILL".to_owned()),
        Just("9".repeat(400)),
        Just("AA==".to_owned()),
        Just("A-_".to_owned()),
        "\\PC{0,8}",
        Just("\0".to_owned()),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    let name = prop_oneof![
        Just("process"),
        Just("pid"),
        Just("tag"),
        Just("signal"),
        Just("input"),
        Just("stdin"),
        Just("pty"),
        Just("size"),
        Just("cols"),
        Just("rows"),
        Just("path"),
        Just("depth"),
        Just("watcherId"),
        Just("watcher_id"),
        Just("start"),
        Just("data"),
        Just("keepalive"),
        Just("config"),
        Just("envs"),
        Just("cwd"),
        Just("unknown"),
    ];
    leaf.prop_recursive(5, 32, 5, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((name.clone(), inner), 0..4).prop_map(|pairs| pairs
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v))
                .collect::<serde_json::Map<_, _>>()
                .into()),
        ]
    })
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        message().prop_map(|m| m.to_string().into_bytes()),
        message().prop_map(|m| gzip(m.to_string().as_bytes())),
        vec(any::<u8>(), 0..40),
        Just(br#"{"start":{"process":{"pid":1}}}"#.to_vec()),
        Just(br#"{"data":{"input":{"stdin":"YQ=="}}}"#.to_vec()),
        Just(br#"{"keepalive":{}}"#.to_vec()),
        Just(b"{\"start\":{\"process\":{\"tag\":\"\xff\"}}}".to_vec()),
        Just(Vec::new()),
    ]
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![5 => Just(0u8), 2 => Just(1), 2 => Just(2), 1 => Just(3), 1 => any::<u8>()];
    let one = (flags, payload(), prop_oneof![8 => Just(0i64), 1 => -4..5i64, 1 => Just(i64::from(u32::MAX))]);
    let one = one.prop_map(|(flags, payload, wrong_by)| {
        let length = i64::try_from(payload.len()).unwrap().saturating_add(wrong_by);
        frame(flags, u32::try_from(length.clamp(0, u32::MAX.into())).unwrap(), &payload)
    });
    (vec(one, 0..5), 0..8usize).prop_map(|(frames, cut)| {
        let mut all = frames.concat();
        all.truncate(all.len().saturating_sub(cut));
        all
    })
}

/// As the bytes may arrive.
fn pieces(bytes: &[u8], size: usize) -> Vec<Bytes> {
    bytes.chunks(size.max(1)).map(Bytes::copy_from_slice).collect()
}

fn stream_type(binary: bool) -> &'static str {
    if binary { "application/connect+proto" } else { "application/connect+json" }
}

fn corpus(kind: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(kind);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut all: Vec<_> = files
        .map(|file| file.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .collect();
    all.sort();
    assert!(all.len() > 5, "the corpus is there");
    all
}

#[test]
fn frames_of_the_corpus_are_answered() {
    for (name, bytes) in corpus("frames") {
        for path in STREAMS {
            for (binary, coding) in
                [(false, "identity"), (false, "gzip"), (true, "identity"), (false, "unheard-of")]
            {
                for size in [if bytes.len() < 500 { 1 } else { 499 }, usize::MAX] {
                    let headers =
                        [("content-type", stream_type(binary)), ("connect-content-encoding", coding)];
                    let (status, body) = post(path, &headers, pieces(&bytes, size));
                    fine(status, &body, true)
                        .unwrap_or_else(|e| panic!("{name} to {path} as {headers:?}: {e}"));
                }
            }
        }
    }
}

#[test]
fn messages_of_the_corpus_are_answered() {
    for (name, bytes) in corpus("json") {
        for path in UNARY {
            for content_type in ["application/json", "application/proto"] {
                let (status, body) =
                    post(path, &[("content-type", content_type)], pieces(&bytes, usize::MAX));
                fine(status, &body, false)
                    .unwrap_or_else(|e| panic!("{name} to {path} as {content_type}: {e}"));
            }
        }
    }
}

#[test]
fn a_length_beyond_the_limit_is_refused_before_anything_of_it_comes() {
    let start = Bytes::from(frame(0, u32::MAX, b"{"));
    let endless = stream::iter([Ok::<_, Infallible>(start)]);
    let endless = futures::StreamExt::chain(endless, stream::pending());
    let request =
        Request::post("/process.Process/StreamInput").header("content-type", "application/connect+json");
    let request = request.body(Body::from_stream(endless)).unwrap();
    let body = SITE.runtime.block_on(async {
        let exchange = async {
            let response = SITE.router.clone().oneshot(request).await.unwrap();
            response.into_body().collect().await.unwrap().to_bytes()
        };
        tokio::time::timeout(IN_TIME, exchange).await.expect("an answer although the body goes on")
    });
    assert!(String::from_utf8_lossy(&body).contains("resource_exhausted"), "{body:?}");
}

#[test]
fn what_unpacks_to_more_than_the_limit_is_refused() {
    // A little more than the limit of 64 MiB, a few kilobytes packed.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    for _ in 0..65 {
        encoder.write_all(&[0; 1 << 20]).unwrap();
    }
    let bomb = encoder.finish().unwrap();
    let headers = [("content-type", "application/connect+json"), ("connect-content-encoding", "gzip")];
    let (_, body) = post("/process.Process/StreamInput", &headers, pieces(&whole(1, &bomb), usize::MAX));
    assert!(String::from_utf8_lossy(&body).contains("resource_exhausted"), "{body:?}");
    let headers = [("content-type", "application/json"), ("content-encoding", "gzip")];
    let (status, body) = post("/filesystem.Filesystem/Stat", &headers, pieces(&bomb, usize::MAX));
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{body:?}");
}

#[test]
fn what_follows_the_end_of_a_stream_is_not_acted_upon() {
    let sent = [whole(2, b"{}"), whole(0, br#"{"data":{"input":{"stdin":"YQ=="}}}"#)].concat();
    let (status, body) = post(
        "/process.Process/StreamInput",
        &[("content-type", "application/connect+json")],
        pieces(&sent, 3),
    );
    // Data without a start would be an error.
    fine(status, &body, true).unwrap();
    assert!(!String::from_utf8_lossy(&body).contains("error"), "{body:?}");
}

#[test]
fn json_is_read_as_protobuf_says() {
    let stat = |body: &str| {
        let (status, body) = post(
            "/filesystem.Filesystem/Stat",
            &[("content-type", "application/json")],
            pieces(body.as_bytes(), usize::MAX),
        );
        (status.as_u16(), String::from_utf8_lossy(&body).into_owned())
    };
    // Unknown fields, of any shape, come from clients that are newer.
    assert_eq!(stat(r#"{"path":"","newer":{"a":[1,{"b":null}]},"x":1e300}"#).0, 200);
    assert_eq!(stat(r#"{"path":null}"#).0, 200, "null is the default");
    for bad in
        [r#"{"path":1}"#, r#"{"path":["/"]}"#, r#"{"path":"#, "\u{feff}{}", r#"{"path":"\ud800"}"#, "{} x"]
    {
        let (status, body) = stat(bad);
        assert_eq!(status, 400, "{bad}: {body}");
        assert!(body.contains("invalid_argument"), "{bad}: {body}");
    }
    let deep = format!(r#"{{"path":"","x":{}1{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert!([200, 400].contains(&stat(&deep).0), "depth is no way to the end of the stack");

    let list = |depth: &str| {
        let sent = format!(r#"{{"path":"","depth":{depth}}}"#);
        post(
            "/filesystem.Filesystem/ListDir",
            &[("content-type", "application/json")],
            pieces(sent.as_bytes(), usize::MAX),
        )
        .0
        .as_u16()
    };
    for (depth, status) in [
        ("1", 200),
        ("\"1\"", 200),
        ("1.0", 200),
        ("4294967295", 200),
        ("4294967296", 400),
        ("-1", 400),
        ("1.5", 400),
        ("1e999", 400),
        ("\"one\"", 400),
    ] {
        assert_eq!(list(depth), status, "{depth}");
    }
}

#[test]
fn bytes_come_in_both_alphabets_of_base64() {
    let send = |text: &str| {
        let sent = json!({"process": {"pid": 1}, "input": {"stdin": text}}).to_string();
        post(
            "/process.Process/SendInput",
            &[("content-type", "application/json")],
            pieces(sent.as_bytes(), usize::MAX),
        )
        .0
        .as_u16()
    };
    // There is no such process; what cannot be read is refused before that matters.
    for text in ["", "+/+/", "-_-_", "YQ==", "YQ", "YWI="] {
        assert_eq!(send(text), 404, "{text}");
    }
    for text in ["!", "Y", "Y Q=", "\u{e4}"] {
        assert_eq!(send(text), 400, "{text}");
    }
}

proptest! {
    #[test]
    fn frames_of_any_kind_are_answered(
        bytes in frames(),
        size in 1..20usize,
        path in 0..STREAMS.len(),
        binary in prop::bool::weighted(0.2),
        coding in prop_oneof![Just(None), Just(Some("identity")), Just(Some("gzip")), Just(Some("\u{1}x"))],
    ) {
        let mut headers = vec![("content-type", stream_type(binary))];
        headers.extend(coding.filter(|c| !c.contains('\u{1}')).map(|c| ("connect-content-encoding", c)));
        let (status, body) = post(STREAMS[path], &headers, pieces(&bytes, size));
        prop_assert_eq!(fine(status, &body, true), Ok(()));
    }

    #[test]
    fn messages_of_any_kind_are_answered(
        message in message(),
        mangle in prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>())),
        path in 0..UNARY.len(),
        binary in prop::bool::weighted(0.2),
    ) {
        let mut bytes = message.to_string().into_bytes();
        if let Some((at, byte)) = mangle {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let content_type = if binary { "application/proto" } else { "application/json" };
        let (status, body) = post(UNARY[path], &[("content-type", content_type)], pieces(&bytes, usize::MAX));
        prop_assert_eq!(fine(status, &body, false), Ok(()));
    }

    #[test]
    fn headers_of_any_kind_are_answered(
        name in prop_oneof![
            Just("connect-timeout-ms"), Just("keepalive-ping-interval"), Just("authorization"), Just("content-type"),
            Just("content-encoding"), Just("accept-encoding"), Just("connect-accept-encoding"), Just("connect-protocol-version"),
            Just("range"), Just("if-range"), Just("if-match"), Just("if-none-match"), Just("if-modified-since"),
            Just("x-metadata-k"), Just("x-access-token"), Just("origin"), Just("content-length"), Just("user-agent"),
        ],
        value in prop_oneof![
            "[ -~]{0,40}",
            "(bytes=)?[0-9,= -]{0,24}",
            "Basic [A-Za-z0-9+/=]{0,12}",
            Just("9".repeat(60)),
            Just("gzip;q=".to_owned() + &"9".repeat(400)),
        ],
        what in 0..4usize,
    ) {
        let (path, content_type, body) = [
            ("/process.Process/List", "application/json", b"{}".to_vec()),
            ("/process.Process/Connect", "application/connect+json", whole(0, br#"{"process":{"pid":1}}"#)),
            ("/files?path=kept", "application/octet-stream", b"0123456789".to_vec()),
            ("/files?path=form", "multipart/form-data; boundary=XX", b"--XX\r\n\r\nx\r\n--XX--".to_vec()),
        ][what].clone();
        let mut headers = vec![("content-type", content_type), (name, value.as_str())];
        if name == "content-type" {
            headers.remove(0);
        }
        let (status, body) = post(path, &headers, pieces(&body, usize::MAX));
        prop_assert_eq!(fine(status, &body, path.ends_with("Connect") && content_type == headers[0].1), Ok(()));

        let exchange = async {
            let request = Request::get("/files?path=kept").header(name, value.as_str()).body(Body::empty()).unwrap();
            let response = SITE.router.clone().oneshot(request).await.unwrap();
            (response.status(), response.into_body().collect().await.unwrap().to_bytes())
        };
        let (status, body) = SITE.runtime.block_on(async { tokio::time::timeout(IN_TIME, exchange).await.unwrap() });
        prop_assert_eq!(fine(status, &body, false), Ok(()));
    }
}
