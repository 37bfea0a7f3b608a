//! Use-cases of the control plane, one file each.
//!
//! [`App`] holds what they share: the store, the node, the clock, the limits. It decides whether and where; how a
//! sandbox is run is the node's business. Nothing here knows HTTP, SQL or a kernel interface.
//!
//! ```text
//! api, cli --> App --> Store          what is acknowledged is in here first
//!                 \--> NodeClient     what really runs
//! background: reaper (leases), node events, reconciliation, retention
//! ```

mod authenticate;
mod backoff;
mod connect_sandbox;
mod create_sandbox;
mod error;
mod get_sandbox;
mod idempotency;
pub mod keys;
mod kill_sandbox;
mod limits;
mod list_sandboxes;
mod node_events;
mod options;
mod pause_sandbox;
mod reaper;
mod reconcile;
mod refresh_sandbox;
mod resume_sandbox;
mod retention;
mod sandbox_logs;
mod sandbox_metrics;
mod set_timeout;
mod signed_urls;
mod start_queue;
mod teams;
mod template_ref;
mod templates;
mod transition;
mod verdict;

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use hutch_node_api::NodeClient;
use hutch_store::Store;
use hutch_types::supervise::Supervisor;
use hutch_types::{Clock, SandboxId};
use parking_lot::Mutex;
use tokio::sync::{Notify, RwLock, Semaphore};

pub use authenticate::Caller;
pub use create_sandbox::CreateSandbox;
pub use error::{AppError, ErrorClass, Retry};
pub use idempotency::{AnswerRecord, IdempotentCreate};
pub use keys::CreatedKey;
pub use limits::Limits;
pub use list_sandboxes::ListSandboxes;
pub use options::{CreateOptions, NetworkOptions};
pub use resume_sandbox::{Connected, ResumeOptions};
pub use sandbox_logs::{LogsQuery, MAX_LOG_LINES, MAX_LOG_SEARCH};
pub use sandbox_metrics::MAX_METRICS_IDS;
pub use template_ref::TemplateRef;
pub use templates::TemplateView;

// What use-cases return.
pub use hutch_store::{
    ApiKey, IdempotencyRecord, LogEntry, MetricPoint, PageToken, Sandbox, SandboxPage, SortOrder, Team,
    Template, TemplateBuild,
};

/// Signed URLs without a sandbox's name that are looked up at the same time.
const MAX_SIGNED_LOOKUPS: usize = 2;

/// What an [`App`] is made of.
#[expect(missing_debug_implementations, reason = "the node client is a trait object without Debug")]
pub struct AppDeps {
    /// Durable state.
    pub store: Arc<dyn Store>,
    /// The node that runs the sandboxes.
    pub node: Arc<dyn NodeClient>,
    /// The time.
    pub clock: Clock,
    /// Owner of all background tasks.
    pub supervisor: Supervisor,
    /// The operator's limits. [`Limits::problems`] must be empty.
    pub limits: Limits,
    /// The domain that sandbox host names are under; `None`: clients use the one that they are configured with.
    pub domain: Option<String>,
}

/// The control plane. Clones are cheap and share everything.
#[derive(Clone)]
pub struct App(Arc<Inner>);

pub(crate) struct Inner {
    store: Arc<dyn Store>,
    node: Arc<dyn NodeClient>,
    clock: Clock,
    supervisor: Supervisor,
    limits: Limits,
    domain: Option<String>,
    /// Writers of deadlines hold it shared while they compute and store one; the reaper holds it alone while it
    /// decides who is overdue and while it moves all deadlines, so that neither sees half of the other.
    lease_gate: RwLock<()>,
    /// A deadline came or moved.
    leases_changed: Notify,
    starts: start_queue::StartQueue,
    kill_slots: Semaphore,
    pause_slots: Semaphore,
    signed_lookups: Semaphore,
    /// Sandboxes that a task of this process is starting: reconciliation leaves them alone.
    starting: Mutex<HashSet<SandboxId>>,
    /// Sandboxes that a task of this process is killing.
    killing: Mutex<HashSet<SandboxId>>,
    transitions: transition::Transitions,
    key_uses: authenticate::KeyUses,
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App")
            .field("limits", &self.0.limits)
            .field("domain", &self.0.domain)
            .finish_non_exhaustive()
    }
}

impl App {
    /// A control plane over `deps`. Nothing runs in the background before [`App::start`].
    pub fn new(deps: AppDeps) -> Self {
        let AppDeps { store, node, clock, supervisor, limits, domain } = deps;
        let starts = start_queue::StartQueue::new(&limits);
        let slots = |n: u32| Semaphore::new(usize::try_from(n).unwrap_or(1).max(1));
        let kill_slots = slots(limits.max_concurrent_kills);
        let pause_slots = slots(limits.max_concurrent_pauses);
        Self(Arc::new(Inner {
            store,
            node,
            clock,
            supervisor,
            limits,
            domain,
            lease_gate: RwLock::new(()),
            leases_changed: Notify::new(),
            starts,
            kill_slots,
            pause_slots,
            signed_lookups: Semaphore::new(MAX_SIGNED_LOOKUPS),
            starting: Mutex::default(),
            killing: Mutex::default(),
            transitions: transition::Transitions::default(),
            key_uses: authenticate::KeyUses::default(),
        }))
    }

    /// Brings the store and the node to the same view, then starts the reaper and the other background tasks.
    /// Call once, before serving; afterwards all that the node reported as lost is ended in the store.
    ///
    /// # Errors
    /// When the node or the store does not answer. Nothing runs in the background then.
    pub async fn start(&self) -> Result<(), AppError> {
        let cursor = self.catch_up().await?;
        self.spawn_task("node-events", |app| node_events::follow(app, cursor));
        self.spawn_task("reaper", reaper::run);
        self.spawn_task("retention", retention::run);
        Ok(())
    }

    /// The limits in force.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// The domain of sandbox host names, where one is configured.
    pub fn domain(&self) -> Option<&str> {
        self.0.domain.as_deref()
    }

    /// Whether the daemon is shutting down.
    pub fn is_draining(&self) -> bool {
        self.0.supervisor.is_stopping()
    }

    /// Runs a background task that has the app.
    fn spawn_task<F, T>(&self, name: &'static str, task: F)
    where
        F: FnOnce(App) -> T,
        T: Future<Output = ()> + Send + 'static,
    {
        self.0.supervisor.spawn(name, task(self.clone()));
    }
}
