//! The agent's HTTP client to the envd of one instance.
//!
//! One connection is kept between calls as long as both sides like, so that claiming a warm instance costs one round
//! trip. All that comes back is the guest's word: bodies and headers are capped, every call has a deadline.

use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hutch_runtime::Instance;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

const SECRET_HEADER: &str = "x-hutch-secret";
/// First limit for connecting; it doubles up to a second. A lost SYN would otherwise cost a second at once.
const FIRST_CONNECT: Duration = Duration::from_millis(20);
const LONGEST_CONNECT: Duration = Duration::from_secs(1);
/// Longest single attempt of a call that is repeated.
const ATTEMPT: Duration = Duration::from_secs(3);
/// An envd that has answered before, and to which nobody listens for so long, is gone. Its init would have restarted
/// it long since.
const GONE: Duration = Duration::from_secs(2);
/// Room for an answer's head.
const MAX_HEAD: usize = 16 << 10;

/// Why a call to envd failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvdError {
    /// Nobody listens there, yet or any more.
    #[error("connect to envd at {address}")]
    Connect {
        /// Where.
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    /// The exchange broke off.
    #[error("{call}: no complete answer")]
    Exchange {
        /// Which call.
        call: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No answer in time.
    #[error("{call}: no answer within {limit_ms} ms")]
    TimedOut {
        /// Which call.
        call: &'static str,
        /// The deadline in milliseconds.
        limit_ms: u64,
    },
    /// envd answered that it will not.
    #[error("{call}: refused with status {status}")]
    Refused {
        /// Which call.
        call: &'static str,
        /// What it answered.
        status: u16,
        /// Whether repeating the same call is pointless.
        permanent: bool,
    },
    /// More came than is allowed.
    #[error("{call}: the answer is longer than {limit} bytes")]
    TooLong {
        /// Which call.
        call: &'static str,
        /// The cap in bytes.
        limit: usize,
    },
}

/// One request; it may be sent more than once, so it must be idempotent.
#[derive(Clone)]
pub(crate) struct Call {
    /// For errors and logs.
    name: &'static str,
    method: Method,
    path: String,
    body: Bytes,
    max_answer: usize,
}

impl Call {
    /// `GET path`, with at most `max_answer` bytes coming back.
    pub fn get(name: &'static str, path: impl Into<String>, max_answer: usize) -> Self {
        Self { name, method: Method::GET, path: path.into(), body: Bytes::new(), max_answer }
    }

    /// Whether envd answers at all.
    pub fn health() -> Self {
        Self::get("GET /health", "/health", 4096)
    }

    /// `POST path` with a JSON body; what comes back matters little.
    pub fn post_json(name: &'static str, path: impl Into<String>, body: Vec<u8>) -> Self {
        Self { name, method: Method::POST, path: path.into(), body: body.into(), max_answer: 4096 }
    }
}

/// What is known of an envd that one waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// It boots; nobody may listen yet.
    Booting,
    /// It has answered before.
    Up,
}

/// The envd of one instance.
pub(crate) struct Envd {
    address: SocketAddr,
    host: String,
    /// `None` when the secret cannot be a header value; then envd's internal routes refuse.
    secret: Option<HeaderValue>,
    kept: Option<Connection>,
}

impl fmt::Debug for Envd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envd").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Envd {
    /// A client without a connection.
    pub fn new(instance: &dyn Instance) -> Self {
        let address = SocketAddr::new(instance.address(), instance.envd_port());
        let secret = HeaderValue::from_str(instance.spec().secret.expose()).ok().map(|mut value| {
            value.set_sensitive(true);
            value
        });
        Self { address, host: address.to_string(), secret, kept: None }
    }

    /// Sends `call` once, on the kept connection if there is one that still works. The answer's body, when the status
    /// says success.
    pub async fn call(&mut self, call: &Call, within: Duration) -> Result<Bytes, EnvdError> {
        let answer = timeout(within, self.send(call, LONGEST_CONNECT));
        judge(call, answer.await.unwrap_or_else(|_| Err(timed_out(call, within)))?)
    }

    /// Repeats `call` until it succeeds, which is how one waits for an envd. Gives up at `within`, when envd says that
    /// the call itself is wrong, and when an envd that was up is gone.
    pub async fn call_until(
        &mut self,
        call: &Call,
        within: Duration,
        known: Known,
    ) -> Result<Bytes, EnvdError> {
        let begin = Instant::now();
        let end = begin + within;
        let mut connect = FIRST_CONNECT;
        let mut last = None;
        let mut refused_since = None;
        loop {
            let attempt = timeout_at(end.min(Instant::now() + ATTEMPT), self.send(call, connect));
            let result = match attempt.await {
                Ok(answer) => answer.and_then(|a| judge(call, a)),
                // What came of the attempt before tells more than that this one took too long.
                Err(_) => Err(last.unwrap_or_else(|| timed_out(call, within))),
            };
            let pause = pause_after(begin.elapsed());
            match result {
                Ok(body) => return Ok(body),
                Err(EnvdError::Refused { permanent: true, .. } | EnvdError::TooLong { .. }) => return result,
                Err(_) if Instant::now() + pause >= end => return result,
                Err(error) => {
                    let kind = match &error {
                        EnvdError::Connect { source, .. } => Some(source.kind()),
                        _ => None,
                    };
                    if kind == Some(ErrorKind::TimedOut) {
                        connect = (connect * 2).min(LONGEST_CONNECT);
                    }
                    if kind == Some(ErrorKind::ConnectionRefused) {
                        let since = *refused_since.get_or_insert_with(Instant::now);
                        if known == Known::Up && since.elapsed() > GONE {
                            return Err(error);
                        }
                    } else {
                        refused_since = None;
                    }
                    last = Some(error);
                }
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Closes the kept connection: an idle sandbox need not hold one.
    pub fn hang_up(&mut self) {
        self.kept = None;
    }

    async fn send(&mut self, call: &Call, connect: Duration) -> Result<(u16, Bytes), EnvdError> {
        if let Some(kept) = self.kept.take() {
            match self.exchange(kept, call).await {
                // The other side may have closed it meanwhile.
                Err(EnvdError::Exchange { .. }) => {}
                answer => return answer,
            }
        }
        let fresh = self.connect(connect).await?;
        self.exchange(fresh, call).await
    }

    async fn connect(&self, within: Duration) -> Result<Connection, EnvdError> {
        let failed = |source| EnvdError::Connect { address: self.address, source };
        let stream = timeout(within, TcpStream::connect(self.address))
            .await
            .unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
            .map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(MAX_HEAD)
            .max_headers(64)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| EnvdError::Exchange { call: "handshake", source: e.into() })?;
        Ok(Connection { sender, driver: Box::pin(driver) })
    }

    /// Sends `call` on `connection`, which is kept for the next one when all went well.
    async fn exchange(&mut self, mut connection: Connection, call: &Call) -> Result<(u16, Bytes), EnvdError> {
        let broken = |source: Box<dyn std::error::Error + Send + Sync>| EnvdError::Exchange {
            call: call.name,
            source,
        };
        let mut request = Request::builder().method(&call.method).uri(&call.path).header(HOST, &self.host);
        if let Some(secret) = &self.secret {
            request = request.header(SECRET_HEADER, secret);
        }
        if call.method == Method::POST {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(call.body.clone())).map_err(|e| broken(e.into()))?;

        let Connection { sender, driver } = &mut connection;
        let (answer, open) = {
            let mut answer = pin!(async {
                sender.ready().await.map_err(|e| broken(e.into()))?;
                let answer = sender.send_request(request).await.map_err(|e| broken(e.into()))?;
                read(answer, call).await
            });
            tokio::select! {
                biased;
                answer = &mut answer => (answer, true),
                // The connection is over, but what it brought is still there to be read.
                _ = driver => (answer.await, false),
            }
        };
        if open && answer.is_ok() {
            self.kept = Some(connection);
        }
        answer
    }
}

fn timed_out(call: &Call, within: Duration) -> EnvdError {
    EnvdError::TimedOut { call: call.name, limit_ms: u64::try_from(within.as_millis()).unwrap_or(u64::MAX) }
}

/// The pause between attempts: short while a healthy boot would come up, longer afterwards.
fn pause_after(elapsed: Duration) -> Duration {
    Duration::from_millis(match elapsed.as_millis() {
        0..300 => 2,
        300..2_000 => 5,
        _ => 50,
    })
}

async fn read(answer: Response<Incoming>, call: &Call) -> Result<(u16, Bytes), EnvdError> {
    let status = answer.status().as_u16();
    match Limited::new(answer.into_body(), call.max_answer).collect().await {
        Ok(body) => Ok((status, body.to_bytes())),
        Err(e) if e.is::<LengthLimitError>() => {
            Err(EnvdError::TooLong { call: call.name, limit: call.max_answer })
        }
        Err(source) => Err(EnvdError::Exchange { call: call.name, source }),
    }
}

fn judge(call: &Call, (status, body): (u16, Bytes)) -> Result<Bytes, EnvdError> {
    match status / 100 {
        2 => Ok(body),
        class => Err(EnvdError::Refused { call: call.name, status, permanent: class == 4 }),
    }
}

/// An open connection. Nothing drives it but the call that uses it.
struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: Pin<Box<http1::Connection<TokioIo<TcpStream>, Full<Bytes>>>>,
}
