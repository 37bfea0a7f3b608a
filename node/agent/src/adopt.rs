//! Takes over what an earlier daemon left running.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use hutch_node_api::NodeEvent;
use hutch_runtime::{Instance, RuntimeError};
use hutch_types::KillReason;

use crate::envd::{Call, Envd, Known};
use crate::labels::Owner;
use crate::node::{Node, Paused};
use crate::pool::Warm;
use crate::sandbox::spawn_adopted;

/// How long a warm instance may take to answer; one that does not is no loss.
const WARM_TIMEOUT: Duration = Duration::from_millis(500);

/// Takes over sandboxes and warm instances. What cannot be kept is removed and, if it was a sandbox, told as exited.
/// Whether a sandbox's envd answers is found out by its actor, so that a busy one does not hold up the others.
pub(crate) async fn adopt(node: &Arc<Node>) -> Result<(), RuntimeError> {
    let found = node.shared.runtime.adopt().await?;
    let (kept, lost) = (found.adopted.len(), found.lost.len());
    for instance in found.lost {
        let reason = instance.reason;
        if let Some(Owner::Sandbox(labels)) = Owner::from_labels(&instance.labels) {
            let sandbox_id = labels.sandbox_id;
            tracing::warn!(sandbox = %sandbox_id, instance = %instance.id, reason, "lost while the daemon was away");
            node.events.push(NodeEvent::Exited { sandbox_id, reason: KillReason::Orphaned, detail: reason });
        } else {
            tracing::debug!(instance = %instance.id, reason, "an instance of nobody was lost");
        }
    }
    let mut seen = HashSet::new();
    let mut warm = Vec::new();
    for instance in found.adopted {
        let id = instance.spec().id.clone();
        match Owner::from_labels(&instance.labels()) {
            Some(Owner::Sandbox(labels)) if seen.insert(labels.sandbox_id.clone()) => {
                tracing::info!(sandbox = %labels.sandbox_id, instance = %id, "adopted");
                let envd = Envd::new(&*instance);
                spawn_adopted(node, instance, envd, labels);
            }
            Some(Owner::Pool) => warm.push(take_warm(node, instance)),
            // A second instance of one sandbox, or one that had not come up.
            owner => {
                tracing::debug!(instance = %id, ?owner, "removing a leftover instance");
                node.shared.reap_behind(instance);
            }
        }
    }
    for saved in found.paused {
        let id = saved.spec.id;
        match Owner::from_labels(&saved.labels) {
            Some(Owner::Sandbox(labels)) if seen.insert(labels.sandbox_id.clone()) => {
                tracing::info!(sandbox = %labels.sandbox_id, instance = %id, mode = %saved.mode, "found paused");
                let paused = Paused { instance: id, mode: saved.mode, labels: labels.clone() };
                node.paused.lock().insert(labels.sandbox_id, paused);
            }
            _ => {
                if let Err(error) = node.shared.runtime.discard(&id).await {
                    tracing::error!(instance = %id, error = error.chain(), "a leftover is not removed");
                }
            }
        }
    }
    join_all(warm).await;
    if kept + lost > 0 {
        tracing::info!(found = kept, lost, sandboxes = seen.len(), "adopted what an earlier daemon left");
    }
    Ok(())
}

async fn take_warm(node: &Arc<Node>, instance: Arc<dyn Instance>) {
    let mut envd = Envd::new(&*instance);
    match envd.call_until(&Call::health(), WARM_TIMEOUT, Known::Up).await {
        Ok(_) => node.pool.adopt(Warm { instance, envd }),
        Err(_) => node.shared.reap_behind(instance),
    }
}
