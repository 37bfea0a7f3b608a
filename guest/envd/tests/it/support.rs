//! An envd per test, and what tests need to talk to it.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use connectrpc::ConnectError;
use connectrpc::client::{ClientConfig, HttpClient};
use futures::FutureExt;
use hutch_envd::{Config, State, Users};
use hutch_proto::process::process_event::Event;
use hutch_proto::process::process_event::data_event::Output;
use hutch_proto::process::process_input::Input;
use hutch_proto::process::process_selector::Selector;
use hutch_proto::process::{
    ProcessClient, ProcessConfig, ProcessEvent, ProcessInput, ProcessSelector, SendInputRequest, StartRequest,
};
use hutch_types::Secret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub const SECRET: &str = "the host's secret";
/// Nothing in these tests takes this long unless it is broken.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub type Client = ProcessClient<HttpClient>;

/// A running envd.
pub struct Envd {
    pub state: Arc<State>,
    pub address: SocketAddr,
    pub folder: tempfile::TempDir,
}

/// Runs `test` against a fresh envd and ends everything that envd started, also when the test fails.
pub async fn with_envd(test: impl AsyncFnOnce(&Envd)) {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let state = State::new(Config {
        secret: Some(Secret::new(SECRET)),
        users: Users::Everyone { home },
        system_root: Some(folder.path().join("root")),
        ..Config::default()
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = state.clone();
    state.tasks.spawn("serve", async move {
        hutch_envd::server::serve_state(listener, serving).await.unwrap();
    });
    let envd = Envd { state, address, folder };
    let outcome = AssertUnwindSafe(tokio::time::timeout(PATIENCE * 2, test(&envd))).catch_unwind().await;
    let left = envd.state.tasks.shutdown(PATIENCE).await;
    match outcome {
        Err(panic) => std::panic::resume_unwind(panic),
        Ok(in_time) => in_time.expect("the test takes too long"),
    }
    assert_eq!((left, envd.state.processes.live_count()), (0, 0), "tasks and processes left after shutdown");
}

impl Envd {
    fn config(&self) -> ClientConfig {
        ClientConfig::new(format!("http://{}", self.address).parse().unwrap())
    }

    /// Protobuf over HTTP/1.1.
    pub fn client(&self) -> Client {
        ProcessClient::new(HttpClient::plaintext(), self.config())
    }

    /// JSON over HTTP/1.1, as the SDKs do it.
    pub fn json_client(&self) -> Client {
        ProcessClient::new(HttpClient::plaintext(), self.config().json())
    }

    /// Protobuf over HTTP/2 without TLS.
    pub fn h2_client(&self) -> Client {
        ProcessClient::new(HttpClient::plaintext_http2_only(), self.config())
    }

    pub fn home(&self) -> std::path::PathBuf {
        self.folder.path().join("home")
    }

    /// Sends a request as it stands and reads the answer to the end of the connection.
    pub async fn raw(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = Vec::new();
        stream.read_to_end(&mut text).await.unwrap();
        Answer::parse(&text)
    }

    /// A request without a body; `headers` are lines without their ends.
    pub async fn get(&self, path: &str, headers: &[&str]) -> Answer {
        self.raw(&request("GET", path, headers, "")).await
    }

    /// A request with a body.
    pub async fn post(&self, path: &str, headers: &[&str], body: &str) -> Answer {
        self.raw(&request("POST", path, headers, body)).await
    }
}

pub fn request(method: &str, path: &str, headers: &[&str], body: &str) -> String {
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
}

/// An HTTP answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e} in {self:?}"))
    }
}

/// Waits until `look` finds something.
pub async fn wait_for<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// `sh -c script`, without stdin.
pub fn sh(script: &str) -> StartRequest {
    StartRequest { stdin: Some(false), ..sh_with_stdin(script) }
}

pub fn sh_with_stdin(script: &str) -> StartRequest {
    let process = ProcessConfig {
        cmd: "/bin/sh".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        ..ProcessConfig::default()
    };
    StartRequest { process: process.into(), ..StartRequest::default() }
}

pub fn by_pid(pid: u32) -> ProcessSelector {
    ProcessSelector { selector: Some(Selector::Pid(pid)), ..ProcessSelector::default() }
}

pub fn by_tag(tag: &str) -> ProcessSelector {
    ProcessSelector { selector: Some(Selector::Tag(tag.to_owned())), ..ProcessSelector::default() }
}

pub fn input(pid: u32, input: Input) -> SendInputRequest {
    let input = ProcessInput { input: Some(input), ..ProcessInput::default() };
    SendInputRequest { process: by_pid(pid).into(), input: input.into(), ..SendInputRequest::default() }
}

/// What a stream of a process has brought.
#[derive(Debug, Default)]
pub struct Seen {
    pub pid: u32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub pty: Vec<u8>,
    pub largest_chunk: usize,
    pub keepalives: usize,
    /// Exit code, exited, status, error.
    pub end: Option<(i32, bool, String, Option<String>)>,
    /// The error at the end of the stream.
    pub error: Option<ConnectError>,
}

impl Seen {
    pub fn add(&mut self, event: ProcessEvent) {
        assert!(self.end.is_none(), "an event after the end: {event:?}");
        match event.event.expect("an event of some kind") {
            Event::Start(start) => self.pid = start.pid,
            Event::Keepalive(_) => self.keepalives += 1,
            Event::End(end) => {
                self.end = Some((end.exit_code, end.exited, end.status.clone(), end.error.clone()))
            }
            Event::Data(data) => {
                let (to, bytes) = match data.output.expect("output of some kind") {
                    Output::Stdout(bytes) => (&mut self.stdout, bytes),
                    Output::Stderr(bytes) => (&mut self.stderr, bytes),
                    Output::Pty(bytes) => (&mut self.pty, bytes),
                };
                self.largest_chunk = self.largest_chunk.max(bytes.len());
                to.extend(bytes);
            }
        }
    }

    pub fn stdout(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    pub fn stderr(&self) -> &str {
        std::str::from_utf8(&self.stderr).unwrap()
    }

    pub fn exit_code(&self) -> i32 {
        self.end.as_ref().unwrap_or_else(|| panic!("no end in {self:?}")).0
    }
}

/// Reads the next event of a Start or Connect stream into `$seen`. False at the end of the stream.
macro_rules! next {
    ($stream:expr, $seen:expr) => {
        match $stream.message().await {
            Ok(Some(message)) => {
                $seen.add(message.to_owned_message().event.into_option().expect("an event"));
                true
            }
            Ok(None) => false,
            Err(error) => {
                $seen.error = Some(error);
                false
            }
        }
    };
}

/// Reads a Start or Connect stream to its end.
macro_rules! all {
    ($stream:expr) => {{
        let mut stream = $stream;
        let mut seen = crate::support::Seen::default();
        while crate::support::next!(stream, seen) {}
        seen
    }};
}

/// Reads a stream until the process has started.
macro_rules! started {
    ($stream:expr) => {{
        let mut seen = crate::support::Seen::default();
        assert!(crate::support::next!($stream, seen), "{seen:?}");
        assert_ne!(seen.pid, 0);
        seen
    }};
}

pub(crate) use {all, next, started};
