//! The RPCs of `process.Process`.

use std::sync::Arc;
use std::time::Duration;

use buffa::EnumValue;
use connectrpc::{
    ConnectError, InboundStream, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream,
};
use futures::StreamExt;
use http::HeaderMap;
use hutch_proto::process as pb;
use hutch_proto::process::stream_input_request::Event;
use rustix::process::Signal;
use tokio::time::Instant;

use super::error::ProcessError;
use super::keepalive::keepalive_interval;
use super::registry::{Found, Process};
use super::stream::{self, Wishes};
use super::{pty, run};
use crate::auth;
use crate::state::State;

/// Answers `process.Process`.
#[derive(Debug)]
pub struct ProcessService {
    state: Arc<State>,
}

impl ProcessService {
    /// The service of this instance.
    pub fn new(state: Arc<State>) -> Self {
        Self { state }
    }

    fn live(&self, selector: Option<&pb::ProcessSelector>) -> Result<Arc<Process>, ProcessError> {
        self.state.processes.live(selector.and_then(|s| s.selector.as_ref()))
    }
}

#[expect(
    refining_impl_trait,
    reason = "callers go through the trait; the concrete types keep the code readable"
)]
impl pb::Process for ProcessService {
    async fn list(
        &self,
        _ctx: RequestContext,
        _request: ServiceRequest<'_, pb::ListRequest>,
    ) -> ServiceResult<pb::ListResponse> {
        let info = |p: Arc<Process>| pb::ProcessInfo {
            config: p.config.clone().into(),
            pid: p.pid,
            tag: p.tag.clone(),
            ..Default::default()
        };
        let processes = self.state.processes.list().into_iter().map(info).collect();
        Response::ok(pb::ListResponse { processes, ..Default::default() })
    }

    async fn start(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, pb::StartRequest>,
    ) -> ServiceResult<ServiceStream<pb::StartResponse>> {
        let deadline = lifetime(ctx.headers())?.and_then(|d| Instant::now().checked_add(d));
        let wishes = Wishes { keepalive: keepalive_interval(ctx.headers()), deadline, owner: true };
        let (state, request, headers) =
            (self.state.clone(), request.to_owned_message(), ctx.headers().clone());
        // Looking up users, forking and entering a directory can all wait for a disk. Once begun it is not cut short
        // by a client that leaves: what is started is also registered.
        let started = tokio::task::spawn_blocking(move || {
            let user = auth::request_user(&state, &headers)?;
            run::start(&state, &user, request, deadline).map_err(ConnectError::from)
        });
        let (process, first) =
            started.await.map_err(|e| ConnectError::internal("starting failed").with_source(e))??;
        let wrap = |event: pb::ProcessEvent| pb::StartResponse { event: event.into(), ..Default::default() };
        Ok(Response::new(stream::of_process(process, first, wishes, wrap)).compress(false))
    }

    async fn connect(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, pb::ConnectRequest>,
    ) -> ServiceResult<ServiceStream<pb::ConnectResponse>> {
        let request = request.to_owned_message();
        let wrap =
            |event: pb::ProcessEvent| pb::ConnectResponse { event: event.into(), ..Default::default() };
        let selector = request.process.as_option().and_then(|p| p.selector.as_ref());
        let events = match self.state.processes.find(selector)? {
            Found::Ended(ended) => stream::of_ended(ended.pid, &ended.exit, wrap),
            Found::Live(process) => {
                let keepalive = keepalive_interval(ctx.headers());
                let wishes =
                    Wishes { keepalive, deadline: ctx.deadline().map(Instant::from_std), owner: false };
                let subscription = process.hub.subscribe();
                stream::of_process(process, subscription, wishes, wrap)
            }
        };
        Ok(Response::new(events).compress(false))
    }

    async fn update(
        &self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, pb::UpdateRequest>,
    ) -> ServiceResult<pb::UpdateResponse> {
        let request = request.to_owned_message();
        let process = self.live(request.process.as_option())?;
        if let Some(pty) = request.pty.as_option() {
            process.input.resize(pty::window(pty))?;
        }
        Response::ok(pb::UpdateResponse::default())
    }

    async fn send_input(
        &self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, pb::SendInputRequest>,
    ) -> ServiceResult<pb::SendInputResponse> {
        let request = request.to_owned_message();
        let process = self.live(request.process.as_option())?;
        write(&process, request.input.as_option()).await?;
        Response::ok(pb::SendInputResponse::default())
    }

    async fn stream_input(
        &self,
        _ctx: RequestContext,
        mut requests: InboundStream<pb::StreamInputRequest>,
    ) -> ServiceResult<pb::StreamInputResponse> {
        let mut process = None;
        while let Some(request) = requests.next().await {
            match request?.to_owned_message().event {
                Some(Event::Start(start)) => process = Some(self.live(start.process.as_option())?),
                Some(Event::Data(data)) => {
                    let process = process.as_ref().ok_or(ProcessError::InputBeforeStart)?;
                    write(process, data.input.as_option()).await?;
                }
                // Empty events come from clients newer than this envd; they ask for nothing it knows.
                Some(Event::Keepalive(_)) | None => {}
            }
        }
        Response::ok(pb::StreamInputResponse::default())
    }

    async fn send_signal(
        &self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, pb::SendSignalRequest>,
    ) -> ServiceResult<pb::SendSignalResponse> {
        let request = request.to_owned_message();
        let process = self.live(request.process.as_option())?;
        let signal = match request.signal {
            EnumValue::Known(pb::Signal::SIGNAL_SIGKILL) => Signal::KILL,
            EnumValue::Known(pb::Signal::SIGNAL_SIGTERM) => Signal::TERM,
            EnumValue::Known(pb::Signal::SIGNAL_UNSPECIFIED) => {
                return Err(ProcessError::Signal("SIGNAL_UNSPECIFIED".to_owned()).into());
            }
            EnumValue::Unknown(number) => return Err(ProcessError::Signal(number.to_string()).into()),
        };
        process.signal(signal)?;
        Response::ok(pb::SendSignalResponse::default())
    }

    async fn close_stdin(
        &self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, pb::CloseStdinRequest>,
    ) -> ServiceResult<pb::CloseStdinResponse> {
        let request = request.to_owned_message();
        self.live(request.process.as_option())?.input.close().await?;
        Response::ok(pb::CloseStdinResponse::default())
    }
}

async fn write(process: &Process, input: Option<&pb::ProcessInput>) -> Result<(), ProcessError> {
    let data = input.and_then(|i| i.input.as_ref()).ok_or(ProcessError::NoInput)?;
    process.input.write(data).await
}

/// How long a process may live: `Connect-Timeout-Ms`, where 0 and less mean forever.
fn lifetime(headers: &HeaderMap) -> Result<Option<Duration>, ConnectError> {
    let Some(value) = headers.get("connect-timeout-ms") else { return Ok(None) };
    let milliseconds: Option<i64> = value.to_str().ok().and_then(|v| v.trim().parse().ok());
    match milliseconds {
        Some(ms) => Ok(u64::try_from(ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis)),
        None => {
            Err(ConnectError::invalid_argument("Connect-Timeout-Ms is not a whole number of milliseconds"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_header_is_the_lifetime() {
        let of = |value: &str| {
            let name = http::HeaderName::from_static("connect-timeout-ms");
            lifetime(&HeaderMap::from_iter([(name, value.parse().unwrap())]))
        };
        assert_eq!(of("1500").unwrap(), Some(Duration::from_millis(1500)));
        assert_eq!(of("0").unwrap(), None);
        assert_eq!(of("-5").unwrap(), None);
        assert!(of("1.5").is_err() && of("soon").is_err());
        assert_eq!(lifetime(&HeaderMap::new()).unwrap(), None);
    }
}
