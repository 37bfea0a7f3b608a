//! A new sandbox: stored as `creating`, started on the node, then `running` with its lease counted from there.
//!
//! The work runs in a task of its own, so that a client that goes away in the middle leaves nothing half done.

use std::collections::BTreeMap;
use std::time::Duration;

use hutch_node_api::{NodeError, NodeErrorKind, StartSandbox, StartedSandbox};
use hutch_store::{CreateOutcome, NewSandbox, Sandbox, StoreError};
use hutch_types::{KillReason, SandboxId, SandboxState, Secret, TeamId};
use serde::Serialize;
use tokio::sync::oneshot;

use crate::error::{AppError, ErrorClass, Retry, chain};
use crate::kill_sandbox::InSet;
use crate::options::CreateOptions;
use crate::{App, Caller};

/// Random bytes of envd's access token.
const TOKEN_BYTES: usize = 32;

/// What a client wants, defaults applied. It serialises for the comparison of repeated requests.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CreateSandbox {
    /// The template: `[namespace/]name[:tag]`, or an id in place of the name.
    pub template: String,
    /// The lease, counted from when the sandbox answers.
    pub timeout_seconds: u32,
    /// The client's own pairs.
    pub metadata: BTreeMap<String, String>,
    /// Environment of every process inside.
    pub env: BTreeMap<String, String>,
    /// Whether the internet may be reached; `None`: not said, which means yes.
    pub allow_internet_access: Option<bool>,
    /// Everything else.
    pub options: CreateOptions,
}

impl App {
    /// Creates a sandbox and returns when its envd answers. When the caller goes away meanwhile, the sandbox, whose id
    /// nobody knows then, is killed again.
    ///
    /// # Errors
    /// `Invalid` for options out of limits or unsupported; `NotFound` for the template or tag; `LimitReached` when the
    /// team has too many sandboxes or too many starts wait; `Unavailable` and `DeadlineExceeded` when nothing is free
    /// in time; `Internal`. After an error nothing is left.
    pub async fn create_sandbox(&self, caller: &Caller, request: CreateSandbox) -> Result<Sandbox, AppError> {
        self.check_create(&request)?;
        let (answer, wait) = oneshot::channel();
        let team = caller.team;
        self.spawn_task("create", move |app| async move {
            let created = app.create_now(team, &request).await;
            app.note_start(&created);
            if let Err(Ok(abandoned)) = answer.send(created) {
                let id = abandoned.asked.id;
                tracing::info!(sandbox = %id, "the client went away while its sandbox was created; it is killed");
                if app.begin_kill(&id).await.is_ok() {
                    app.finish_kill(&id, Some(KillReason::Request)).await;
                }
            }
        });
        wait.await.map_err(AppError::internal)?
    }

    /// What can be refused by looking at the request alone.
    pub(crate) fn check_create(&self, request: &CreateSandbox) -> Result<(), AppError> {
        let limits = &self.0.limits;
        if request.timeout_seconds == 0 {
            return Err(AppError::invalid("timeout must be at least 1 second"));
        }
        self.check_timeout(request.timeout_seconds)?;
        for (what, pairs, limit, name) in [
            ("metadata", &request.metadata, limits.max_metadata_bytes, "limits.max_metadata_bytes"),
            ("envVars", &request.env, limits.max_env_bytes, "limits.max_env_bytes"),
        ] {
            let size =
                pairs.iter().fold(0usize, |sum, (k, v)| sum.saturating_add(k.len()).saturating_add(v.len()));
            if size > usize::try_from(limit).unwrap_or(usize::MAX) {
                return Err(AppError::invalid(format!(
                    "{what} cannot be larger than {limit} bytes ({name})"
                )));
            }
        }
        for (name, value) in &request.env {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(AppError::invalid(
                    "envVars: names must not be empty or contain '=', and neither names nor values contain NUL",
                ));
            }
        }
        request.options.check_supported()
    }

    /// Creates a sandbox, whoever waits for it.
    pub(crate) async fn create_now(
        &self,
        team: TeamId,
        request: &CreateSandbox,
    ) -> Result<Sandbox, AppError> {
        let place = self.0.starts.enter()?;
        let (ingress, traffic_token) = request.options.ingress();
        let new = NewSandbox { traffic_token, ..self.new_sandbox(team, request).await? };
        let id = new.id.clone();
        let _starting = InSet::enter(&self.0, |inner| &inner.starting, &id)
            .ok_or_else(|| AppError::internal("a new sandbox id is not new"))?;
        let start = StartSandbox {
            sandbox_id: id.clone(),
            template_id: new.template.clone(),
            build_id: new.build,
            resources: new.resources,
            env: request.env.clone(),
            access_token: new.access_token.clone(),
            network: request.options.network_policy(request.allow_internet_access),
            ingress,
        };
        let limit = self.0.limits.max_sandboxes_per_team;
        match self.0.store.insert_sandbox(new, (limit > 0).then_some(limit)).await? {
            CreateOutcome::Created => {}
            CreateOutcome::LimitReached(limit) => return Err(self.too_many_sandboxes(limit)),
        }
        let started = match place.turn().await {
            Ok(_turn) => self.start_on_node(start).await,
            Err(error) => Err(error),
        };
        let running = match started {
            Ok(started) => self.mark_running(&id, request.timeout_seconds, &started).await,
            Err(error) => Err(error),
        };
        match running {
            Ok(sandbox) => {
                self.0.leases_changed.notify_one();
                Ok(sandbox)
            }
            Err(error) => {
                self.clear_failed_start(&id, &error);
                Err(error)
            }
        }
    }

    /// The refusal of a sandbox more than a team may have.
    pub(crate) fn too_many_sandboxes(&self, limit: u32) -> AppError {
        AppError::new(
            ErrorClass::LimitReached,
            format!(
                "you have reached the maximum number of concurrent sandboxes, {limit} \
                 (limits.max_sandboxes_per_team); kill or pause some, or ask the operator for a higher limit"
            ),
        )
    }

    async fn new_sandbox(&self, team: TeamId, request: &CreateSandbox) -> Result<NewSandbox, AppError> {
        let (template, build) = self.resolve_template(team, &request.template).await?;
        let now = self.0.clock.now();
        let limits = &self.0.limits;
        let first_lease = request
            .timeout_seconds
            .saturating_add(limits.start_queue_seconds)
            .saturating_add(limits.start_timeout_seconds);
        let extra = match &request.options.network {
            Some(network) => serde_json::json!({ "network": network }),
            None => serde_json::json!({}),
        };
        Ok(NewSandbox {
            id: SandboxId::random(),
            team,
            template: template.id,
            build: build.id,
            alias: template.names.into_iter().next(),
            resources: build.resources,
            metadata: request.metadata.clone(),
            access_token: Secret::random(TOKEN_BYTES),
            traffic_token: None,
            allow_internet_access: request.allow_internet_access,
            auto_pause: request.options.pause_at_end(),
            extra,
            created_at: now,
            end_at: now.plus(Duration::from_secs(first_lease.into())),
        })
    }

    async fn start_on_node(&self, start: StartSandbox) -> Result<StartedSandbox, AppError> {
        let within = Duration::from_secs(self.0.limits.start_timeout_seconds.into());
        match tokio::time::timeout(within, self.0.node.start_sandbox(start)).await {
            Ok(Ok(started)) => Ok(started),
            Ok(Err(error)) => Err(refusal(error)),
            Err(_) => Err(AppError::new(
                ErrorClass::DeadlineExceeded,
                format!(
                    "the sandbox did not start within {} seconds (limits.start_timeout_seconds)",
                    within.as_secs()
                ),
            )
            .with_code("sandbox_placement_timeout")),
        }
    }

    async fn mark_running(
        &self,
        id: &SandboxId,
        timeout_seconds: u32,
        started: &StartedSandbox,
    ) -> Result<Sandbox, AppError> {
        let _gate = self.0.lease_gate.read().await;
        let now = self.0.clock.now();
        let end = now.plus(Duration::from_secs(timeout_seconds.into()));
        let isolation = started.isolation.to_string();
        match self.0.store.mark_running(id, now, end, &started.envd_version, &isolation).await {
            Ok(sandbox) => Ok(sandbox),
            // It ended before it was seen running.
            Err(error @ (StoreError::NotFound { .. } | StoreError::Conflict { .. })) => {
                Err(create_failed("the sandbox ended while it was starting").with_source(error))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes sure that nothing is left of a start that failed, without keeping the client waiting.
    fn clear_failed_start(&self, id: &SandboxId, error: &AppError) {
        tracing::warn!(sandbox = %id, error = error.chain(), "a sandbox was not created");
        let id = id.clone();
        self.spawn_task("clear-failed-start", |app| async move {
            app.end(&id, SandboxState::Failed, KillReason::StartFailed, None).await;
            app.finish_kill(&id, None).await;
        });
    }

    /// Counts a start of a template, which nobody waits for.
    pub(crate) fn note_start(&self, created: &Result<Sandbox, AppError>) {
        let Ok(sandbox) = created else { return };
        let template = sandbox.asked.template.clone();
        self.spawn_task("note-start", |app| async move {
            if let Err(error) = app.0.store.note_spawn(&template, app.0.clock.now()).await {
                tracing::warn!(%template, error = chain(&error), "a start of a template was not counted");
            }
        });
    }
}

fn create_failed(message: &'static str) -> AppError {
    AppError::new(ErrorClass::Internal, message).with_code("sandbox_create_failed")
}

/// The node's words are for the logs; the client gets ours.
fn refusal(error: NodeError) -> AppError {
    let refused = match error.kind {
        NodeErrorKind::Exhausted | NodeErrorKind::Unavailable => AppError::new(
            ErrorClass::Unavailable,
            "there is no capacity for another sandbox right now, please try again",
        )
        .with_code("sandbox_capacity_unavailable"),
        NodeErrorKind::DeadlineExceeded => {
            AppError::new(ErrorClass::DeadlineExceeded, "the sandbox did not start in time, please try again")
                .with_code("sandbox_placement_timeout")
        }
        NodeErrorKind::NotFound => AppError::new(
            ErrorClass::Internal,
            "the template's image is not on this machine; build the template again",
        )
        .with_code("sandbox_no_compatible_node")
        .with_retry(Retry::Never),
        NodeErrorKind::Unsupported => {
            AppError::invalid("this machine cannot honour what the sandbox was asked to have")
                .with_code("sandbox_create_refused")
        }
        NodeErrorKind::Internal => create_failed("the sandbox could not be started"),
    };
    refused.with_source(error)
}
