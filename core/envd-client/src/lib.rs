//! A small client of envd: runs a command in a sandbox, through the edge or directly.
//!
//! It speaks the Connect protocol's JSON form by hand (a flag byte, a length, a JSON message), since a command's stream
//! is all that Hutch itself needs of envd's services: the first-start proof, the benchmarks and the runtimes' conformance
//! suite use it.

mod frame;
mod stream;

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Uri};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::{Value, json};

pub use stream::{Event, EventStream};

/// Why a command could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The request could not be made or sent, or the connection broke.
    #[error("{attempted}")]
    Transport {
        /// What was attempted.
        attempted: &'static str,
        /// Why it failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The sandbox, or the edge in front of it, said no.
    #[error("the sandbox answered {status}: {body}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The answer's text, cut to 500 characters.
        body: String,
    },
    /// The stream ended without the command's end.
    #[error("the stream ended early: {0}")]
    Cut(String),
    /// The deadline passed.
    #[error("the command took longer than {0:?}")]
    TimedOut(Duration),
}

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// Its exit code; -1 when a signal ended it.
    pub exit_code: i64,
    /// From the call to the first byte of output.
    pub first_output: Option<Duration>,
    /// From the call to the command's end.
    pub total: Duration,
}

/// A client of one sandbox. Connections are kept; clones share them.
#[derive(Debug, Clone)]
pub struct EnvdClient {
    base: String,
    headers: HeaderMap,
    http: Client<HttpConnector, Full<Bytes>>,
}

impl EnvdClient {
    /// A client of the server at `base` (`http://host:port`), sending `headers` with each request: routing headers for the edge, the
    /// access token.
    pub fn new(base: &str, headers: HeaderMap) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_secs(5)));
        let http = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Self { base: base.trim_end_matches('/').to_owned(), headers, http }
    }

    /// A client of `sandbox` behind the edge at `base`.
    ///
    /// # Errors
    /// When the id or token is no header value.
    pub fn through_edge(base: &str, sandbox: &str, token: &str) -> Result<Self, RunError> {
        let value = |text: &str| {
            HeaderValue::from_str(text)
                .map_err(|e| RunError::Transport { attempted: "naming the sandbox", source: e.into() })
        };
        let mut headers = HeaderMap::new();
        headers.insert("e2b-sandbox-id", value(sandbox)?);
        headers.insert("e2b-sandbox-port", HeaderValue::from_static("49983"));
        let mut token = value(token)?;
        token.set_sensitive(true);
        headers.insert("x-access-token", token);
        Ok(Self::new(base, headers))
    }

    /// Runs `script` in a login shell as the SDKs do, and waits for its end, at most `limit`.
    ///
    /// # Errors
    /// [`RunError`]; a command that fails is no error but an [`Output`] with its exit code.
    pub async fn run(&self, script: &str, limit: Duration) -> Result<Output, RunError> {
        self.start("/bin/bash", &["-l", "-c", script], limit).await
    }

    /// Runs `cmd` with `args` and waits for its end, at most `limit`.
    ///
    /// # Errors
    /// As [`EnvdClient::run`].
    pub async fn start(&self, cmd: &str, args: &[&str], limit: Duration) -> Result<Output, RunError> {
        tokio::time::timeout(limit, self.exchange(cmd, args)).await.map_err(|_| RunError::TimedOut(limit))?
    }

    /// Whether envd answers, within `limit`.
    ///
    /// # Errors
    /// [`RunError`], also for an answer that is no success.
    pub async fn health(&self, limit: Duration) -> Result<(), RunError> {
        let asking = async {
            let request = self.request(http::Method::GET, "/health", Bytes::new())?;
            self.send(request).await.map(drop)
        };
        tokio::time::timeout(limit, asking).await.map_err(|_| RunError::TimedOut(limit))?
    }

    fn request(
        &self,
        method: http::Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, RunError> {
        let uri = format!("{}{path}", self.base)
            .parse::<Uri>()
            .map_err(|e| RunError::Transport { attempted: "reading the address", source: e.into() })?;
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .body(Full::new(body))
            .map_err(|e| RunError::Transport { attempted: "making the request", source: e.into() })?;
        request.headers_mut().extend(self.headers.clone());
        Ok(request)
    }

    /// Sends a request and returns the body of its answer, when that is a success.
    async fn send(&self, request: Request<Full<Bytes>>) -> Result<hyper::body::Incoming, RunError> {
        let response = self
            .http
            .request(request)
            .await
            .map_err(|e| RunError::Transport { attempted: "sending the request", source: e.into() })?;
        let status = response.status();
        let body = response.into_body();
        if status.is_success() {
            return Ok(body);
        }
        let text = body.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
        let body = String::from_utf8_lossy(&text).chars().take(500).collect();
        Err(RunError::Refused { status: status.as_u16(), body })
    }

    /// Starts a command with the fields of envd's start request (`process`, `pty`, `stdin`, …) and returns its events.
    /// Nothing bounds how long it may run.
    ///
    /// # Errors
    /// [`RunError::Transport`] and [`RunError::Refused`].
    pub async fn stream(&self, start: &Value) -> Result<EventStream, RunError> {
        let frame = frame::encode(start.to_string().as_bytes());
        let mut request = self.request(http::Method::POST, "/process.Process/Start", frame)?;
        let json = HeaderValue::from_static("application/connect+json");
        request.headers_mut().insert(http::header::CONTENT_TYPE, json);
        request.headers_mut().insert("connect-protocol-version", HeaderValue::from_static("1"));
        self.send(request).await.map(EventStream::new)
    }

    async fn exchange(&self, cmd: &str, args: &[&str]) -> Result<Output, RunError> {
        let started = Instant::now();
        let mut events = self.stream(&json!({"process": {"cmd": cmd, "args": args}, "stdin": false})).await?;
        let mut output = Output {
            stdout: vec![],
            stderr: vec![],
            exit_code: -1,
            first_output: None,
            total: Duration::ZERO,
        };
        while let Some(event) = events.next().await? {
            match event {
                Event::Stdout(data) => {
                    output.first_output.get_or_insert_with(|| started.elapsed());
                    output.stdout.extend(data);
                }
                Event::Stderr(data) => {
                    output.first_output.get_or_insert_with(|| started.elapsed());
                    output.stderr.extend(data);
                }
                Event::Ended(code) => {
                    output.exit_code = code;
                    output.total = started.elapsed();
                }
                Event::Started(_) | Event::Pty(_) => {}
            }
        }
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// What the client makes of a server that answers any request with `frames` and closes.
    async fn answered(frames: &[(u8, &str)]) -> Result<Output, RunError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = EnvdClient::new(&format!("http://{}", listener.local_addr().unwrap()), HeaderMap::new());
        let mut body = Vec::new();
        for (flags, message) in frames {
            body.push(*flags);
            body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
            body.extend(message.as_bytes());
        }
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            assert_ne!(stream.read(&mut request).await.unwrap(), 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").await.unwrap();
            stream.write_all(&body).await.unwrap();
        };
        let (run, ()) = tokio::join!(client.run("true", Duration::from_secs(20)), serving);
        run
    }

    const START: (u8, &str) = (0, r#"{"event":{"start":{"pid":7}}}"#);
    const DATA: (u8, &str) = (0, r#"{"event":{"data":{"stdout":"aGk="}}}"#);
    const END: (u8, &str) = (0, r#"{"event":{"end":{"exited":true}}}"#);

    #[tokio::test]
    async fn a_stream_that_is_cut_is_no_success() {
        let whole = answered(&[START, DATA, END, (2, "{}")]).await.unwrap();
        assert_eq!((whole.stdout.as_slice(), whole.exit_code), (&b"hi"[..], 0));
        let lost = (2, r#"{"error":{"code":"data_loss"}}"#);
        for cut in [
            &[START, DATA][..],
            &[START, DATA, (2, "{}")],
            &[START, DATA, lost],
            &[START, DATA, END, lost],
            &[],
        ] {
            let run = answered(cut).await;
            assert!(matches!(run, Err(RunError::Cut(_))), "{cut:?}: {run:?}");
        }
    }
}
