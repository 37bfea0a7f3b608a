//! The events of a process as an RPC stream.

use std::sync::Arc;
use std::time::Duration;

use connectrpc::{ConnectError, ServiceStream};
use hutch_proto::process as pb;
use hutch_proto::process::process_event::data_event::Output;
use hutch_proto::process::process_event::{self, Event as Kind};
use tokio::time::Instant;

use super::exit::Exit;
use super::hub::{Channel, Event, Subscription};
use super::registry::Process;

/// What one client asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wishes {
    /// Silence after which a `keepalive` goes out.
    pub(super) keepalive: Duration,
    /// When the client stops listening.
    pub(super) deadline: Option<Instant>,
    /// Whether the deadline is also the process's.
    pub(super) owner: bool,
}

/// `start`, then output and keepalives, then `end`. Ends with `deadline_exceeded` at the deadline.
pub(super) fn of_process<T: Send + 'static>(
    process: Arc<Process>,
    subscription: Option<Subscription>,
    wishes: Wishes,
    wrap: fn(pb::ProcessEvent) -> T,
) -> ServiceStream<T> {
    let pid = process.pid;
    let first = futures::stream::iter([Ok(wrap(start(pid)))]);
    let rest = futures::stream::unfold(Some((process, subscription)), move |current| async move {
        let (process, mut subscription) = current?;
        let event = next(&process, subscription.as_mut(), wishes).await;
        let over =
            !matches!(&event, Ok(pb::ProcessEvent { event: Some(Kind::Data(_) | Kind::Keepalive(_)), .. }));
        let current = if over { None } else { Some((process, subscription)) };
        Some((event.map(wrap), current))
    });
    Box::pin(futures::StreamExt::chain(first, rest))
}

/// `start` and `end` of a process that is no more.
pub(super) fn of_ended<T: Send + 'static>(
    pid: u32,
    exit: &Exit,
    wrap: fn(pb::ProcessEvent) -> T,
) -> ServiceStream<T> {
    Box::pin(futures::stream::iter([Ok(wrap(start(pid))), Ok(wrap(end(exit)))]))
}

async fn next(
    process: &Process,
    subscription: Option<&mut Subscription>,
    wishes: Wishes,
) -> Result<pb::ProcessEvent, ConnectError> {
    let Some(subscription) = subscription else { return ended(process, wishes) };
    let deadline = async {
        match wishes.deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        // What is there already is handed out first: it came in time.
        biased;
        event = subscription.next() => match event {
            Some(Event::Output(channel, bytes)) => Ok(data(channel, bytes.to_vec())),
            Some(Event::End) | None => ended(process, wishes),
            Some(Event::TooSlow) => Err(ConnectError::data_loss(
                "output was lost: this client took it too slowly while others waited; connect to the process again",
            )),
        },
        () = deadline => Err(timed_out()),
        () = tokio::time::sleep(wishes.keepalive) => Ok(keepalive()),
    }
}

fn ended(process: &Process, wishes: Wishes) -> Result<pb::ProcessEvent, ConnectError> {
    if wishes.owner && process.timed_out.is_cancelled() {
        return Err(timed_out());
    }
    match process.exit.get() {
        Some(exit) => Ok(end(exit)),
        None => Err(ConnectError::unknown("the process was given up")),
    }
}

fn timed_out() -> ConnectError {
    ConnectError::deadline_exceeded("the deadline that was sent with the request has passed")
}

fn event(kind: Kind) -> pb::ProcessEvent {
    pb::ProcessEvent { event: Some(kind), ..Default::default() }
}

fn start(pid: u32) -> pb::ProcessEvent {
    event(Kind::Start(Box::new(process_event::StartEvent { pid, ..Default::default() })))
}

fn data(channel: Channel, bytes: Vec<u8>) -> pb::ProcessEvent {
    let output = match channel {
        Channel::Stdout => Output::Stdout(bytes),
        Channel::Stderr => Output::Stderr(bytes),
        Channel::Pty => Output::Pty(bytes),
    };
    event(Kind::Data(Box::new(process_event::DataEvent { output: Some(output), ..Default::default() })))
}

fn end(exit: &Exit) -> pb::ProcessEvent {
    event(Kind::End(Box::new(process_event::EndEvent {
        exit_code: exit.code,
        exited: exit.exited,
        status: exit.status.clone(),
        error: exit.error().map(str::to_owned),
        ..Default::default()
    })))
}

fn keepalive() -> pb::ProcessEvent {
    event(Kind::Keepalive(Box::default()))
}
