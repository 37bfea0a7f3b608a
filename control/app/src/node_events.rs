//! Follows what the node reports: sandboxes that ended by themselves, samples, log lines.

use std::time::Duration;

use hutch_node_api::{NodeError, NodeErrorKind, NodeEvent, NodeEvents, ResourceSample};
use hutch_store::{LogEntry, MetricPoint, StoreError};
use hutch_types::{KillReason, SandboxEvent, SandboxId};
use tokio::time::Instant;

use crate::App;
use crate::backoff::Backoff;
use crate::error::{AppError, chain};
use crate::reconcile::node_trouble;

/// How long the node may hold a request for events.
const WAIT: Duration = Duration::from_secs(15);
/// What it may take beyond that.
const GRACE: Duration = Duration::from_secs(15);
/// Store and node are compared this often, whatever the events say.
const RECONCILE_EVERY: Duration = Duration::from_secs(60);
/// Pages of events that are read before the first comparison.
const MAX_KEPT_PAGES: usize = 1000;

/// Runs until the daemon stops, from the events after `cursor` on.
pub(crate) async fn follow(app: App, mut cursor: u64) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    let mut reconciled = Instant::now();
    loop {
        let page = tokio::select! {
            () = app.0.supervisor.stopping() => return,
            page = app.node_events(cursor, WAIT) => page,
        };
        let mut is_gap = false;
        let failed = match page {
            Ok(page) => {
                is_gap = page.missed || page.cursor < cursor;
                cursor = page.cursor;
                app.apply(page.events).await;
                None
            }
            Err(error) => Some(error),
        };
        let compared = if is_gap || reconciled.elapsed() >= RECONCILE_EVERY {
            let result = app.reconcile().await;
            if result.is_ok() {
                reconciled = Instant::now();
            }
            result
        } else {
            Ok(())
        };
        match failed.or(compared.err()) {
            None => backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5)),
            Some(error) => {
                tracing::warn!(
                    error = error.chain(),
                    "the node's events could not be followed, trying again"
                );
                if !app.pause(backoff.pause()).await {
                    return;
                }
            }
        }
    }
}

impl App {
    /// What has to be done before serving: events that the node kept (they say why a sandbox ended, which the inventory
    /// cannot), then a comparison. Returns the cursor to follow from.
    pub(crate) async fn catch_up(&self) -> Result<u64, AppError> {
        let mut cursor = 0;
        for _ in 0..MAX_KEPT_PAGES {
            let page = self.node_events(cursor, Duration::ZERO).await?;
            cursor = page.cursor;
            if page.events.is_empty() {
                break;
            }
            self.apply(page.events).await;
        }
        self.reconcile().await?;
        Ok(cursor)
    }

    async fn node_events(&self, after: u64, wait: Duration) -> Result<NodeEvents, AppError> {
        match tokio::time::timeout(wait.saturating_add(GRACE), self.0.node.events(after, wait)).await {
            Ok(page) => page.map_err(node_trouble),
            Err(_) => Err(node_trouble(NodeError::new(NodeErrorKind::DeadlineExceeded, "no events in time"))),
        }
    }

    /// Takes over a page of events. Samples and log lines are best effort; an end is stored for certain.
    async fn apply(&self, events: Vec<NodeEvent>) {
        let (mut points, mut lines) = (Vec::new(), Vec::new());
        for event in events {
            match event {
                NodeEvent::Exited { sandbox_id, reason, detail } => {
                    self.exited(&sandbox_id, reason, &detail).await;
                }
                NodeEvent::Sample { sandbox_id, sample } => points.push(point(sandbox_id, sample)),
                NodeEvent::Logs { sandbox_id, lines: new } => {
                    lines.extend(new.into_iter().map(|line| LogEntry {
                        sandbox: sandbox_id.clone(),
                        at: line.at,
                        level: line.level,
                        message: line.message,
                        fields: line.fields,
                    }));
                }
            }
        }
        if !points.is_empty()
            && let Err(error) = self.0.store.insert_metrics(&points).await
        {
            tracing::warn!(error = chain(&error), dropped = points.len(), "samples were not stored");
        }
        if !lines.is_empty()
            && let Err(error) = self.0.store.insert_logs(&lines, self.0.limits.log_room()).await
        {
            tracing::warn!(error = chain(&error), dropped = lines.len(), "log lines were not stored");
        }
    }

    async fn exited(&self, id: &SandboxId, reason: KillReason, detail: &str) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let state = loop {
            match self.0.store.sandbox(id).await {
                Ok(sandbox) => break sandbox.state,
                Err(StoreError::NotFound { .. }) => return,
                Err(error) => {
                    tracing::error!(sandbox = %id, error = chain(&error), "an ended sandbox could not be looked up");
                    if !self.pause(backoff.pause()).await {
                        return;
                    }
                }
            }
        };
        // One that is being killed ends with the reason it is killed for, by the task that does it.
        if state == hutch_types::SandboxState::Killing {
            return;
        }
        if let Ok(next) = state.apply(SandboxEvent::Died)
            && next.is_final()
        {
            self.end(id, next, reason, Some(detail)).await;
        }
    }
}

fn point(sandbox: SandboxId, sample: ResourceSample) -> MetricPoint {
    MetricPoint {
        sandbox,
        at: sample.at,
        cpu_count: sample.cpu_count,
        cpu_used_pct: sample.cpu_used_pct,
        mem_used_bytes: sample.mem_used_bytes,
        mem_total_bytes: sample.mem_total_bytes,
        mem_cache_bytes: sample.mem_cache_bytes,
        disk_used_bytes: sample.disk_used_bytes,
        disk_total_bytes: sample.disk_total_bytes,
    }
}
