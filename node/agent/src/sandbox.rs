//! One actor per sandbox: it owns the instance from the claim until nothing of it runs.
//!
//! ```text
//! creating --claimed, personalised--> running --exit--> gone (and an event)
//!     |                                  |
//!     +--error--> failed                 +--kill--> killing --> gone
//! ```
//!
//! Requests come through a bounded mailbox and are worked off one after another. A kill does not queue there: it has
//! a channel of its own and interrupts whatever is going on.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use hutch_node_api::{NodeError, NodeErrorKind, NodeEvent, Route, StartSandbox, StartedSandbox};
use hutch_runtime::Instance;
use hutch_types::{BuildId, KillReason, NetworkPolicy, PauseMode, SandboxEvent, SandboxId, SandboxState};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::claim::{greet_again, personalise, step};
use crate::envd::Envd;
use crate::error::StartError;
use crate::labels::SandboxLabels;
use crate::node::{Node, Paused};
use crate::pool::{Key, Warm};
use crate::sample::Sampler;
use crate::work::Job;

/// How the rest of the agent reaches an actor.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pub build_id: BuildId,
    mailbox: mpsc::Sender<Request>,
    kill: CancellationToken,
    status: watch::Receiver<Status>,
}

/// What an actor tells of its sandbox.
#[derive(Debug, Clone)]
struct Status {
    state: SandboxState,
    /// The answer to the start request, once there is one.
    answer: Option<Result<StartedSandbox, NodeError>>,
}

/// What an actor is asked, besides a kill.
#[derive(Debug)]
enum Request {
    SetNetwork { policy: NetworkPolicy, reply: Reply },
    Pause { mode: PauseMode, reply: Reply },
}

/// Where the answer to a request goes.
type Reply = oneshot::Sender<Result<(), StartError>>;

impl Handle {
    /// Whether it starts or runs.
    pub fn is_live(&self) -> bool {
        let state = self.status.borrow().state;
        !state.is_final() && state != SandboxState::Killing
    }

    /// The answer to the start request, as soon as there is one.
    pub async fn started(mut self) -> Result<StartedSandbox, NodeError> {
        let status =
            match self.status.wait_for(|s| s.answer.is_some() || s.state == SandboxState::Killing).await {
                Ok(status) => status.clone(),
                Err(_) => return Err(StartError::Lost.into()),
            };
        match (status.state, status.answer) {
            (SandboxState::Running, Some(answer)) | (_, Some(answer @ Err(_))) => answer,
            _ => Err(StartError::Stopped.into()),
        }
    }

    /// Ends the sandbox; completes when nothing of it runs. Fails when the agent has shut down and left it running.
    pub async fn stop(mut self) -> Result<(), NodeError> {
        self.kill.cancel();
        match self.status.wait_for(|s| s.state.is_final()).await {
            Ok(_) => Ok(()),
            Err(_) => Err(StartError::Draining.into()),
        }
    }

    /// Puts a network policy in force.
    pub async fn set_network(self, policy: NetworkPolicy) -> Result<(), NodeError> {
        self.ask(|reply| Request::SetNetwork { policy, reply }).await
    }

    /// Saves it and ends its instance.
    pub async fn pause(self, mode: PauseMode) -> Result<(), NodeError> {
        self.ask(|reply| Request::Pause { mode, reply }).await
    }

    /// Waits while it is being paused. Returns whether it has not become so.
    pub async fn pausing_is_over(&self) -> bool {
        let mut status = self.status.clone();
        match status.wait_for(|s| s.state != SandboxState::Pausing).await {
            Ok(status) => status.state != SandboxState::Paused,
            Err(_) => false,
        }
    }

    async fn ask(&self, request: impl FnOnce(Reply) -> Request) -> Result<(), NodeError> {
        let (reply, answer) = oneshot::channel();
        self.mailbox.try_send(request(reply)).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => {
                NodeError::new(NodeErrorKind::Unavailable, "the sandbox is busy: its mailbox is full")
            }
            mpsc::error::TrySendError::Closed(_) => gone(),
        })?;
        answer.await.map_err(|_| gone())?.map_err(NodeError::from)
    }
}

fn gone() -> NodeError {
    NodeError::new(NodeErrorKind::NotFound, "the sandbox has ended")
}

/// Where a running sandbox comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// It has just answered.
    Started,
    /// An earlier daemon left it; whether it answers is to be seen.
    Adopted,
}

/// Why an actor stops serving its sandbox.
enum End {
    /// Somebody asked.
    Killed,
    /// It ended by itself.
    Died(&'static str),
    /// The agent shuts down; the sandbox runs on.
    Left,
    /// It is to be saved.
    Pause(PauseMode, Reply),
}

/// Starts the actor of a sandbox to be. The caller inserts the handle before the actor first runs to its end, which
/// holding the lock on the sandboxes guarantees.
pub(crate) fn spawn_new(node: &Arc<Node>, request: StartSandbox) -> Handle {
    let (actor, handle) =
        Actor::new(node, request.sandbox_id.clone(), request.build_id, SandboxState::Creating);
    let job = node.shared.work.begin();
    node.shared.supervisor.spawn("sandbox", async move {
        let (node, id) = (actor.node.clone(), actor.id.clone());
        match start(&node, &request, &actor.kill).await {
            Ok((warm, from_pool)) => {
                let started = StartedSandbox {
                    envd_version: node.shared.config.envd_version.clone(),
                    isolation: node.shared.runtime.isolation(),
                    from_pool,
                };
                let labels = SandboxLabels {
                    sandbox_id: request.sandbox_id,
                    template_id: request.template_id,
                    build_id: request.build_id,
                    logs_cursor: 0,
                    ingress: Arc::new(request.ingress),
                };
                actor.publish(&*warm.instance, &labels, started, SandboxEvent::Started);
                drop(job);
                let sampler = Sampler { node, instance: warm.instance, envd: warm.envd, labels };
                actor.live(sampler, Origin::Started).await;
            }
            Err(error) => {
                tracing::debug!(sandbox = %id, error = crate::error::chain(&error), "start failed");
                actor.end(SandboxEvent::StartFailed, Some(Err(error.into())));
                drop(job);
            }
        }
    });
    handle
}

/// Starts the actor of a sandbox that runs already.
pub(crate) fn spawn_adopted(
    node: &Arc<Node>,
    instance: Arc<dyn Instance>,
    envd: Envd,
    labels: SandboxLabels,
) {
    let (actor, handle) =
        Actor::new(node, labels.sandbox_id.clone(), labels.build_id, SandboxState::Creating);
    node.sandboxes.lock().insert(labels.sandbox_id.clone(), handle);
    let started = StartedSandbox {
        envd_version: node.shared.config.envd_version.clone(),
        isolation: node.shared.runtime.isolation(),
        from_pool: false,
    };
    actor.publish(&*instance, &labels, started, SandboxEvent::Started);
    let sampler = Sampler { node: node.clone(), instance, envd, labels };
    node.shared.supervisor.spawn("sandbox", actor.live(sampler, Origin::Adopted));
}

/// Starts the actor of a sandbox that is to be resumed. The caller inserts the handle, as for [`spawn_new`].
pub(crate) fn spawn_resumed(
    node: &Arc<Node>,
    request: StartSandbox,
    paused: Paused,
    mode: PauseMode,
) -> Handle {
    let (actor, handle) =
        Actor::new(node, request.sandbox_id.clone(), request.build_id, SandboxState::Resuming);
    let job = node.shared.work.begin();
    node.shared.supervisor.spawn("sandbox", async move {
        let node = actor.node.clone();
        match resume(&node, &request, &paused, mode).await {
            Ok(warm) => {
                let started = StartedSandbox {
                    envd_version: node.shared.config.envd_version.clone(),
                    isolation: node.shared.runtime.isolation(),
                    from_pool: false,
                };
                let mut labels = paused.labels;
                if mode == PauseMode::Filesystem {
                    // A new envd counts its lines anew.
                    labels.logs_cursor = 0;
                }
                actor.publish(&*warm.instance, &labels, started, SandboxEvent::Resumed);
                drop(job);
                let sampler = Sampler { node, instance: warm.instance, envd: warm.envd, labels };
                actor.live(sampler, Origin::Started).await;
            }
            Err(NotResumed { error, left }) => {
                let reason = crate::error::chain(&error);
                tracing::warn!(sandbox = %actor.id, error = reason, left = ?left.is_some(), "could not be resumed");
                match left {
                    Some(mode) if !actor.kill.is_cancelled() => {
                        actor.settle(Paused { mode, ..paused }, SandboxEvent::ResumeFailed, Some(Err(error.into())));
                    }
                    Some(_) => {
                        if let Err(error) = node.shared.runtime.discard(&paused.instance).await {
                            tracing::error!(sandbox = %actor.id, error = error.chain(), "could not be discarded");
                        }
                        actor.end(SandboxEvent::Killed, Some(Err(StartError::Stopped.into())));
                    }
                    None => {
                        actor.end(SandboxEvent::Killed, Some(Err(error.into())));
                        node.events.push(NodeEvent::Exited {
                            sandbox_id: actor.id.clone(),
                            reason: KillReason::Died,
                            detail: format!("it could not be resumed: {reason}"),
                        });
                    }
                }
                drop(job);
            }
        }
    });
    handle
}

/// A resume that failed, and what is still saved.
struct NotResumed {
    error: StartError,
    left: Option<PauseMode>,
}

/// Brings the instance of a paused sandbox back until its envd answers.
async fn resume(
    node: &Node,
    request: &StartSandbox,
    paused: &Paused,
    mode: PauseMode,
) -> Result<Warm, NotResumed> {
    let shared = &node.shared;
    let instance = shared
        .runtime
        .resume(&paused.instance, mode)
        .await
        .map_err(|e| NotResumed { error: StartError::Runtime(e), left: Some(paused.mode) })?;
    let envd = Envd::new(&*instance);
    let mut warm = Warm { instance, envd };
    match greet_again(shared, &mut warm, request, mode).await {
        Ok(()) => Ok(warm),
        Err(error) => {
            // Its memory has been given up, or is of no use; its files are not lost.
            let saved = warm.instance.pause(PauseMode::Filesystem).await;
            if let Err(unsaved) = &saved {
                tracing::error!(sandbox = %request.sandbox_id, error = unsaved.chain(), "its files could not be saved");
                shared.reap(&*warm.instance).await;
            }
            Err(NotResumed { error, left: saved.is_ok().then_some(PauseMode::Filesystem) })
        }
    }
}

/// An instance for `request`, with its identity in force. After an error nothing is left.
async fn start(
    node: &Node,
    request: &StartSandbox,
    kill: &CancellationToken,
) -> Result<(Warm, bool), StartError> {
    let key = Key { build: request.build_id, resources: request.resources };
    // A ready instance may have gone bad on the shelf; the request then gets another one.
    for is_last in [false, true] {
        let (mut warm, from_pool) = node.pool.acquire(key, kill).await?;
        let Err(error) = personalise(&node.shared, &mut warm, request, kill).await else {
            return Ok((warm, from_pool));
        };
        node.shared.reap(&*warm.instance).await;
        if is_last || !from_pool || !error.blames_instance() {
            return Err(error);
        }
        tracing::warn!(
            sandbox = %request.sandbox_id, instance = %warm.id(), error = crate::error::chain(&error),
            "an instance of the warm pool could not be claimed, taking another one"
        );
    }
    Err(StartError::Lost)
}

struct Actor {
    node: Arc<Node>,
    /// Counts this actor as long as it is there.
    _present: Job,
    id: SandboxId,
    mailbox: mpsc::Receiver<Request>,
    kill: CancellationToken,
    status: watch::Sender<Status>,
}

impl Actor {
    fn new(node: &Arc<Node>, id: SandboxId, build_id: BuildId, state: SandboxState) -> (Self, Handle) {
        let (tx, mailbox) = mpsc::channel(node.shared.config.mailbox.max(1));
        let kill = CancellationToken::new();
        let (status, watched) = watch::channel(Status { state, answer: None });
        let handle = Handle { build_id, mailbox: tx, kill: kill.clone(), status: watched };
        (Self { node: node.clone(), _present: node.actors.begin(), id, mailbox, kill, status }, handle)
    }

    /// Moves the sandbox on.
    fn apply(&self, event: SandboxEvent, answer: Option<Result<StartedSandbox, NodeError>>) {
        self.status.send_modify(|status| {
            match status.state.apply(event) {
                Ok(next) => status.state = next,
                Err(error) => tracing::error!(sandbox = %self.id, %error, "a transition that cannot be"),
            }
            if answer.is_some() {
                status.answer = answer;
            }
        });
    }

    /// Publishes the route, then says that it runs.
    fn publish(
        &self,
        instance: &dyn Instance,
        labels: &SandboxLabels,
        started: StartedSandbox,
        event: SandboxEvent,
    ) {
        self.publish_route(instance, labels);
        tracing::info!(sandbox = %self.id, instance = %instance.spec().id, from_pool = started.from_pool, "running");
        self.apply(event, Some(Ok(started)));
    }

    fn publish_route(&self, instance: &dyn Instance, labels: &SandboxLabels) {
        let route = Route {
            address: instance.address(),
            envd_port: instance.envd_port(),
            secret: instance.spec().secret.clone(),
            ingress: labels.ingress.clone(),
        };
        self.node.guests.insert(route.address, self.id.clone());
        self.node.routes.write().insert(self.id.clone(), route);
    }

    /// Puts the sandbox among those that are saved, in one step for everybody who looks.
    fn settle(&self, paused: Paused, event: SandboxEvent, answer: Option<Result<StartedSandbox, NodeError>>) {
        let mut sandboxes = self.node.sandboxes.lock();
        self.node.paused.lock().insert(self.id.clone(), paused);
        sandboxes.remove(&self.id);
        drop(sandboxes);
        self.apply(event, answer);
    }

    /// Takes the sandbox off the node and lets who waits know.
    fn end(&self, event: SandboxEvent, answer: Option<Result<StartedSandbox, NodeError>>) {
        self.node.sandboxes.lock().remove(&self.id);
        self.apply(event, answer);
    }

    /// Answers nothing more that comes from the instance's address, and passes on what it had said.
    fn forget_guest(&self, instance: &dyn Instance) {
        let lines = self.node.guests.remove(instance.address(), &self.id, self.node.shared.clock.now());
        if !lines.is_empty() {
            self.node.events.push(NodeEvent::Logs { sandbox_id: self.id.clone(), lines });
        }
    }

    /// Serves a running sandbox to its end.
    async fn live(mut self, mut sampler: Sampler, mut origin: Origin) {
        let instance = sampler.instance.clone();
        let end = loop {
            let served = AssertUnwindSafe(self.serve(&instance, &mut sampler, origin)).catch_unwind().await;
            match served.unwrap_or(End::Died("its actor failed")) {
                End::Left => return,
                End::Pause(mode, reply) => {
                    let _job = self.node.shared.work.begin();
                    let result = self.pause(&*instance, &mut sampler, mode).await;
                    let is_paused = result.is_ok();
                    // Whoever asked may have left.
                    reply.send(result).unwrap_or_default();
                    if is_paused {
                        return;
                    }
                    origin = Origin::Started;
                }
                end => break end,
            }
        };
        let job = self.node.shared.work.begin();
        self.node.routes.write().remove(&self.id);
        match end {
            End::Left | End::Pause(..) => {}
            End::Killed => {
                self.apply(SandboxEvent::Kill, None);
                let limit = self.node.shared.config.last_logs_timeout;
                tokio::time::timeout(limit, sampler.take_logs(limit)).await.unwrap_or_default();
                self.forget_guest(&*instance);
                self.clean_up(instance).await;
                tracing::info!(sandbox = %self.id, "stopped");
                self.end(SandboxEvent::Killed, None);
            }
            End::Died(detail) => {
                tracing::warn!(sandbox = %self.id, instance = %instance.spec().id, detail, "ended by itself");
                self.forget_guest(&*instance);
                // First the fact, then the news: who has the event finds it in the inventory.
                self.end(SandboxEvent::Died, None);
                self.node.events.push(NodeEvent::Exited {
                    sandbox_id: self.id.clone(),
                    reason: KillReason::Died,
                    detail: detail.to_owned(),
                });
                self.node.shared.reap(&*instance).await;
            }
        }
        drop(job);
    }

    async fn serve(&mut self, instance: &Arc<dyn Instance>, sampler: &mut Sampler, origin: Origin) -> End {
        let limit = self.node.shared.config.step_timeout;
        let requests = async {
            while let Some(request) = self.mailbox.recv().await {
                match request {
                    Request::SetNetwork { policy, reply } => {
                        let result =
                            step("set the network policy", limit, instance.set_network(&policy)).await;
                        // Whoever asked may have left.
                        reply.send(result).unwrap_or_default();
                    }
                    Request::Pause { mode, reply } => return End::Pause(mode, reply),
                }
            }
            // All handles are gone; the one among the sandboxes goes only with this actor.
            std::future::pending().await
        };
        let samples = async {
            if origin == Origin::Adopted
                && let Err(detail) = sampler.check().await
            {
                return detail;
            }
            sampler.run().await;
            "its figures could not be followed"
        };
        tokio::select! {
            biased;
            () = self.node.shared.closing.cancelled() => End::Left,
            () = self.kill.cancelled() => End::Killed,
            _ = instance.exited() => End::Died("its first process ended"),
            end = requests => end,
            detail = samples => End::Died(detail),
        }
    }

    /// Saves the sandbox. After an error it runs on, unless it is killed.
    async fn pause(
        &self,
        instance: &dyn Instance,
        sampler: &mut Sampler,
        mode: PauseMode,
    ) -> Result<(), StartError> {
        self.apply(SandboxEvent::Pause, None);
        // No new request reaches what is about to stop.
        self.node.routes.write().remove(&self.id);
        self.forget_guest(instance);
        let limit = self.node.shared.config.last_logs_timeout;
        tokio::time::timeout(limit, sampler.take_logs(limit)).await.unwrap_or_default();
        sampler.envd.hang_up();
        let saving = instance.pause(mode);
        tokio::pin!(saving);
        let saved = tokio::select! {
            saved = &mut saving => saved,
            () = self.kill.cancelled() => {
                // Ends the processes at once, and then what was being saved.
                if let Err(error) = instance.kill().await {
                    tracing::debug!(sandbox = %self.id, error = error.chain(), "a kill in the middle of a pause");
                }
                saving.await
            }
        };
        match saved {
            Ok(()) => {
                tracing::info!(sandbox = %self.id, %mode, "paused");
                let labels = sampler.labels.clone();
                let paused = Paused { instance: instance.spec().id.clone(), labels, mode };
                self.settle(paused, SandboxEvent::PauseDone, None);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(sandbox = %self.id, error = error.chain(), "could not be paused, runs on");
                if !self.kill.is_cancelled() {
                    self.publish_route(instance, &sampler.labels);
                }
                self.apply(SandboxEvent::PauseFailed, None);
                Err(StartError::Step { step: "pause the sandbox", source: error })
            }
        }
    }

    /// Returns when nothing of the sandbox runs any more. Removing what is left goes on behind, within bounds.
    async fn clean_up(&self, instance: Arc<dyn Instance>) {
        let shared = self.node.shared.clone();
        let Ok(permit) = self.node.cleanups.clone().try_acquire_owned() else {
            shared.reap(&*instance).await;
            return;
        };
        let (done, finished) = oneshot::channel();
        let (dying, job) = (instance.clone(), shared.work.begin());
        shared.supervisor.clone().spawn("clean-up", async move {
            shared.reap(&*dying).await;
            drop((permit, job));
            // Who waits may have seen the exit first.
            done.send(()).unwrap_or_default();
        });
        tokio::select! {
            _ = instance.exited() => {}
            _ = finished => {}
        }
    }
}
