//! The life of a process: start, output, end.

use std::io;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hutch_proto::process as pb;
use rustix::process::{Pid, PidfdFlags, Signal};
use serde_json::json;
use tokio::process::Child;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::ProcessError;
use super::exit::Exit;
use super::hub::{Channel, Hub, Subscription};
use super::pty;
use super::registry::Process;
use super::spawn::{self, Source, Streams};
use crate::logs::Level;
use crate::state::State;
use crate::users::User;

/// The largest piece of output of a pipe, and of a terminal.
const PIPE_CHUNK: usize = 32 * 1024;
const PTY_CHUNK: usize = 16 * 1024;

/// After its exit all that a process wrote is in the pipe already, but helpers that share the pipe (`tee` in a process
/// substitution, say) may have something to add. They are waited for while they write, not while they are silent:
/// a server left in the background would hold the pipe forever.
const DRAIN_IDLE: Duration = Duration::from_millis(50);
const DRAIN_TOTAL: Duration = Duration::from_secs(1);
/// And this much of it, since clients that read slowly are not waited for any more.
const DRAIN_BYTES: usize = 2 << 20;

/// Starts a process, with a first client that misses nothing. The process is killed at `deadline`. Blocks until the
/// program runs or could not be run.
pub(super) fn start(
    state: &Arc<State>,
    user: &User,
    request: pb::StartRequest,
    deadline: Option<Instant>,
) -> Result<(Arc<Process>, Option<Subscription>), ProcessError> {
    let config = request.process.into_option().ok_or(ProcessError::NoCommand)?;
    let streams = match request.pty.as_option() {
        Some(pty) => Streams::Terminal(pty::window(pty)),
        None => Streams::Pipes { stdin: request.stdin.unwrap_or(true) },
    };
    let spawned = spawn::spawn(state, user, &config, streams)?;
    // The child is not reaped before the waiter runs, so its pid is still its own.
    let pid = i32::try_from(spawned.pid).ok().and_then(Pid::from_raw);
    let pidfd = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    let process = Arc::new(Process {
        pid: spawned.pid,
        config,
        tag: request.tag,
        hub: Hub::default(),
        input: spawned.input,
        pidfd,
        exit: OnceLock::new(),
        exited: CancellationToken::new(),
        timed_out: CancellationToken::new(),
    });
    let first = process.hub.subscribe();
    state.processes.add(&process);
    state.logs.add(
        Level::Info,
        "process",
        "process started",
        json!({ "pid": process.pid, "command": command_line(&process.config), "user": user.name }),
    );
    state.tasks.spawn("process output", pump(state.clone(), process.clone(), spawned.sources));
    state.tasks.spawn("process exit", wait(state.clone(), process.clone(), spawned.child, deadline));
    Ok((process, first))
}

fn command_line(config: &pb::ProcessConfig) -> String {
    config.args.iter().fold(config.cmd.clone(), |all, arg| all + " " + arg)
}

/// Reaps the process, at the latest after its deadline has killed it.
async fn wait(state: Arc<State>, process: Arc<Process>, mut child: Child, deadline: Option<Instant>) {
    let expiry = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(expiry);
    let (mut expired, mut stopped) = (false, false);
    let status = loop {
        tokio::select! {
            status = child.wait() => break status,
            () = &mut expiry, if !expired => {
                expired = true;
                process.timed_out.cancel();
                // It can only fail because the process has just ended.
                drop(process.signal(Signal::KILL));
            }
            () = state.tasks.stopping(), if !stopped => {
                stopped = true;
                kill_session(process.pid);
            }
        }
    };
    let exit = Arc::new(match status {
        Ok(status) => Exit::from(status),
        Err(error) => Exit { code: -1, exited: false, status: format!("wait: {error}") },
    });
    process.exit.get_or_init(|| exit.clone());
    // First off the list, then the end: who has read the end does not find the process any more.
    state.processes.end(&process, exit.clone());
    process.exited.cancel();
    let level = if exit.code == 0 { Level::Info } else { Level::Warn };
    let fields =
        json!({ "pid": process.pid, "exit_code": exit.code, "status": exit.status, "timed_out": expired });
    state.logs.add(level, "process", "process ended", fields);
}

/// Ends everything in the process's own session-wide group; only for the end of envd itself.
fn kill_session(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        rustix::process::kill_process_group(pid, Signal::KILL).ok();
    }
}

/// Moves output to the clients until the process has ended, then tells them the end.
async fn pump(state: Arc<State>, process: Arc<Process>, mut sources: Vec<Source>) {
    let mut buffer = vec![0u8; PIPE_CHUNK];
    let mut turn = 0usize;
    while !sources.is_empty() {
        turn = turn.wrapping_add(1);
        let read = tokio::select! {
            read = read_any(&sources, turn, &mut buffer) => read,
            () = process.exited.cancelled() => break,
        };
        deliver(&process, &mut sources, read, &buffer).await;
    }
    process.exited.cancelled().await;

    let end = Instant::now() + DRAIN_TOTAL;
    let mut drained = 0usize;
    while !sources.is_empty() && drained < DRAIN_BYTES {
        turn = turn.wrapping_add(1);
        let patience = DRAIN_IDLE.min(end.saturating_duration_since(Instant::now()));
        let Ok(read) = tokio::time::timeout(patience, read_any(&sources, turn, &mut buffer)).await else {
            break;
        };
        drained += deliver(&process, &mut sources, read, &buffer).await;
        if state.tasks.is_stopping() {
            break;
        }
    }
    process.hub.end();
}

/// Hands on what was read, or drops the source at its end. Returns the number of bytes.
async fn deliver(
    process: &Process,
    sources: &mut Vec<Source>,
    (index, read): (usize, io::Result<usize>),
    buffer: &[u8],
) -> usize {
    match read {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
        // A terminal whose last user has closed it says EIO; that and any other error is the end of this source.
        Ok(0) | Err(_) => {
            sources.swap_remove(index);
            0
        }
        Ok(length) => {
            if let (Some(source), Some(data), true) =
                (sources.get(index), buffer.get(..length), process.hub.has_subscribers())
            {
                process.hub.publish(source.channel, &Bytes::copy_from_slice(data), &process.exited).await;
            }
            length
        }
    }
}

/// Reads from whichever source has something, starting with another one each turn so that none starves. Loses nothing
/// when cancelled.
async fn read_any(sources: &[Source], turn: usize, buffer: &mut [u8]) -> (usize, io::Result<usize>) {
    std::future::poll_fn(|cx| {
        for step in 0..sources.len() {
            let index = turn.wrapping_add(step) % sources.len();
            if let Some(source) = sources.get(index)
                && let Poll::Ready(read) = poll_read(source, cx, buffer)
            {
                return Poll::Ready((index, read));
            }
        }
        Poll::Pending
    })
    .await
}

fn poll_read(source: &Source, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
    let limit = if source.channel == Channel::Pty { PTY_CHUNK } else { PIPE_CHUNK };
    let limit = limit.min(buffer.len());
    loop {
        let mut ready = match source.fd.poll_read_ready(cx) {
            Poll::Ready(Ok(ready)) => ready,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        };
        let buffer = buffer.get_mut(..limit).unwrap_or_default();
        match ready.try_io(|fd| Ok(rustix::io::read(fd, buffer)?)) {
            Ok(read) => return Poll::Ready(read),
            Err(_would_block) => {}
        }
    }
}
