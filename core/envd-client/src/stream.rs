//! The events of a running command, one after the other.

use std::collections::VecDeque;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use crate::RunError;
use crate::frame::Frames;

/// What a command did next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It runs, with this process id inside the sandbox.
    Started(i64),
    /// Bytes of its standard output.
    Stdout(Vec<u8>),
    /// Bytes of its standard error.
    Stderr(Vec<u8>),
    /// Bytes of its terminal.
    Pty(Vec<u8>),
    /// It ended with this code; -1 when a signal ended it.
    Ended(i64),
}

/// A command's events as they arrive. Dropping it leaves the command; envd goes on running it.
#[derive(Debug)]
pub struct EventStream {
    body: Incoming,
    frames: Frames,
    ready: VecDeque<Event>,
    ended: bool,
}

impl EventStream {
    pub(crate) fn new(body: Incoming) -> Self {
        Self { body, frames: Frames::default(), ready: VecDeque::new(), ended: false }
    }

    /// The next event; `None` after the end of the stream. Safe to drop while it waits. It waits as long as the
    /// command is silent.
    ///
    /// # Errors
    /// [`RunError::Transport`] when the connection breaks, [`RunError::Cut`] when the stream ends without the command's
    /// end or says an error.
    pub async fn next(&mut self) -> Result<Option<Event>, RunError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            let Some(chunk) = self.body.frame().await else {
                return if self.ended { Ok(None) } else { Err(RunError::Cut("no end event".to_owned())) };
            };
            let chunk = chunk
                .map_err(|e| RunError::Transport { attempted: "reading the stream", source: e.into() })?;
            self.frames.push(chunk.data_ref().map_or(&[], |d| d.as_ref()));
            while let Some((is_end_of_stream, message)) = self.frames.next() {
                let message: Value = serde_json::from_slice(&message)
                    .map_err(|_| RunError::Cut("a frame is not JSON".to_owned()))?;
                if !is_end_of_stream {
                    self.take(&message["event"]);
                } else if let Some(error) = message.get("error") {
                    return Err(RunError::Cut(error.to_string()));
                }
            }
        }
    }

    fn take(&mut self, event: &Value) {
        let bytes = |name: &str| event["data"][name].as_str().and_then(|d| STANDARD.decode(d).ok());
        if let Some(start) = event.get("start") {
            self.ready.push_back(Event::Started(start["pid"].as_i64().unwrap_or(0)));
        }
        let data = [
            bytes("stdout").map(Event::Stdout),
            bytes("stderr").map(Event::Stderr),
            bytes("pty").map(Event::Pty),
        ];
        self.ready.extend(data.into_iter().flatten());
        if let Some(end) = event.get("end") {
            self.ended = true;
            // proto3 JSON leaves out zeroes.
            self.ready.push_back(Event::Ended(end["exitCode"].as_i64().unwrap_or(0)));
        }
    }
}
