//! One instance inside the kernel.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hutch_envd::state::Update;
use hutch_envd::{Config, State, Users};
use hutch_runtime::{ExitCause, InstanceSpec, InstanceStats, RuntimeError};
use hutch_types::supervise::Supervisor;
use hutch_types::{NetworkPolicy, PauseMode};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::kernel::Guest;
use crate::processes::Mark;

/// Longest wait for the tasks of an envd that was told to end.
const GRACE: Duration = Duration::from_secs(5);

/// What a test can see of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineView {
    /// What it was started with.
    pub spec: InstanceSpec,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its host name; `None` before one was set.
    pub hostname: Option<String>,
    /// The network policy in force; `None` while everything is denied.
    pub network: Option<NetworkPolicy>,
    /// What is saved of it, while it is paused.
    pub paused: Option<PauseMode>,
}

#[derive(Debug)]
pub(crate) struct Machine {
    pub spec: InstanceSpec,
    pub address: SocketAddr,
    pub labels: Mutex<BTreeMap<String, String>>,
    pub hostname: Mutex<Option<String>>,
    pub network: Mutex<Option<NetworkPolicy>>,
    pub stats: Mutex<InstanceStats>,
    /// What is saved of it, while it is paused. With its memory, it simply lives on where nobody reaches it.
    pub paused: Mutex<Option<PauseMode>>,
    /// Why the next adoption must not keep it.
    pub lost: Mutex<Option<String>>,
    exit: watch::Sender<Option<ExitCause>>,
    /// On all its processes.
    mark: Mark,
    /// Runs envd and all that it started.
    tasks: Supervisor,
    /// Where its processes are at home; removed with it.
    scratch: Mutex<Option<TempDir>>,
}

impl Machine {
    /// Starts envd on the kernel's threads, with the files in `scratch` or with none.
    pub fn boot(
        spec: InstanceSpec,
        guest: &Guest,
        mark: Mark,
        kernel: &Handle,
        scratch: Option<TempDir>,
    ) -> Result<Arc<Self>, RuntimeError> {
        let failed = |what: &'static str| move |e: std::io::Error| RuntimeError::failed(what, e);
        let scratch = match scratch {
            Some(scratch) => scratch,
            None => tempfile::tempdir().map_err(failed("create a scratch folder"))?,
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(failed("listen on 127.0.0.1"))?;
        listener.set_nonblocking(true).map_err(failed("listen on 127.0.0.1"))?;
        let address = listener.local_addr().map_err(failed("listen on 127.0.0.1"))?;

        // What is created and spawned while this is held belongs to the kernel.
        let _inside = kernel.enter();
        let listener = TcpListener::from_std(listener).map_err(failed("listen on 127.0.0.1"))?;
        let tasks = match guest {
            Guest::Envd => {
                let state = State::new(Config {
                    secret: Some(spec.secret.clone()),
                    users: Users::Everyone { home: scratch.path().to_owned() },
                    ..Config::default()
                });
                state.update(Update { system_vars: [mark.variable()].into(), ..Update::default() });
                let tasks = state.tasks.clone();
                tasks.spawn("fake-envd", async move {
                    if let Err(error) = hutch_envd::server::serve_state(listener, state).await {
                        tracing::error!(%error, "envd of a fake instance ended");
                    }
                });
                tasks
            }
            Guest::Custom(router) => {
                let (tasks, router) = (Supervisor::new(), router(&spec));
                let stop = tasks.clone();
                tasks.spawn("fake-guest", async move {
                    let server = axum::serve(listener, router);
                    tokio::select! {
                        result = server => drop(result),
                        () = stop.stopping() => {}
                    }
                });
                tasks
            }
        };
        Ok(Arc::new(Self {
            spec,
            address,
            labels: Mutex::default(),
            hostname: Mutex::default(),
            network: Mutex::default(),
            stats: Mutex::new(InstanceStats {
                processes: 1,
                disk_total_bytes: 1 << 30,
                ..InstanceStats::default()
            }),
            paused: Mutex::default(),
            lost: Mutex::default(),
            exit: watch::Sender::new(None),
            mark,
            tasks,
            scratch: Mutex::new(Some(scratch)),
        }))
    }

    pub fn view(&self) -> MachineView {
        MachineView {
            spec: self.spec.clone(),
            labels: self.labels.lock().clone(),
            hostname: self.hostname.lock().clone(),
            network: self.network.lock().clone(),
            paused: *self.paused.lock(),
        }
    }

    /// Saves it. With `Filesystem` all that runs ends.
    pub async fn pause(&self, mode: PauseMode) {
        *self.paused.lock() = Some(mode);
        *self.network.lock() = None;
        if mode == PauseMode::Filesystem {
            self.exit(ExitCause::Paused).await;
        } else {
            self.exit.send_replace(Some(ExitCause::Paused));
        }
    }

    /// Lets it go on, when it was paused with its memory.
    pub fn go_on(&self) {
        *self.paused.lock() = None;
        self.exit.send_replace(None);
    }

    /// Hands its files over to a machine that takes its place.
    pub fn take_scratch(&self) -> Option<TempDir> {
        self.scratch.lock().take()
    }

    /// PID 1 is gone, and with it everything it started. The first cause counts.
    pub async fn exit(&self, cause: ExitCause) {
        self.exit.send_if_modified(|exit| {
            let is_first = exit.is_none();
            exit.get_or_insert(cause);
            is_first
        });
        self.end_envd().await;
        let mark = self.mark.clone();
        if !matches!(tokio::task::spawn_blocking(move || mark.kill()).await, Ok(true)) {
            tracing::warn!(instance = %self.spec.id, "processes of a fake instance are left");
        }
    }

    /// Ends envd alone: nobody answers any more.
    pub async fn end_envd(&self) {
        if self.tasks.shutdown(GRACE).await > 0 {
            tracing::warn!(instance = %self.spec.id, "tasks of a fake instance did not end");
        }
    }

    pub fn remove_scratch(&self) -> Result<(), RuntimeError> {
        match self.scratch.lock().take() {
            Some(folder) => folder.close().map_err(|e| RuntimeError::failed("remove a scratch folder", e)),
            None => Ok(()),
        }
    }

    pub fn has_exited(&self) -> bool {
        self.exit.borrow().is_some()
    }

    pub async fn exited(&self) -> ExitCause {
        let mut exit = self.exit.subscribe();
        // The sender lives in `self`, so that waiting cannot fail.
        exit.wait_for(Option::is_some).await.ok().and_then(|cause| *cause).unwrap_or(ExitCause::Exited)
    }
}
