//! The host that fake instances live on.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hutch_runtime::{ExitCause, InstanceSpec, InstanceStats, RuntimeError};
use hutch_types::ids::random_hex;
use hutch_types::{BuildId, InstanceId, PauseMode};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::fault::{Fault, Faults, Step};
use crate::machine::{Machine, MachineView};
use crate::processes::Mark;

/// Makes the router of a guest that is not the real envd.
type MakeRouter = dyn Fn(&InstanceSpec) -> axum::Router + Send + Sync;

/// What runs in an instance.
#[derive(Clone)]
pub enum Guest {
    /// The real envd.
    Envd,
    /// What a test thinks up, for guests that misbehave.
    Custom(Arc<MakeRouter>),
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Envd => "Envd",
            Self::Custom(_) => "Custom",
        })
    }
}

/// The host that fake instances live on. Clones are the same host; dropping the last one ends all instances.
#[derive(Debug, Clone)]
pub struct FakeKernel {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    guest: Guest,
    pub faults: Faults,
    machines: Mutex<HashMap<InstanceId, Arc<Machine>>>,
    builds: Mutex<HashSet<BuildId>>,
    capacity: Mutex<usize>,
    started: AtomicUsize,
    /// On the processes of all instances.
    mark: Mark,
    /// Threads of the kernel's own: instances live on when the runtime of a test, its "daemon", is gone.
    threads: Option<Runtime>,
    handle: Handle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            // A plain drop waits for the threads, which is forbidden in asynchronous code.
            threads.shutdown_background();
        }
        if !self.machines.lock().is_empty() {
            self.mark.kill();
        }
    }
}

impl Default for FakeKernel {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeKernel {
    /// A host whose instances run the real envd.
    pub fn new() -> Self {
        Self::with_guest(Guest::Envd)
    }

    /// A host whose instances run `guest`.
    ///
    /// # Panics
    /// When the operating system gives no threads, in which case no test can run.
    pub fn with_guest(guest: Guest) -> Self {
        let threads =
            Builder::new_multi_thread().worker_threads(2).thread_name("fake-kernel").enable_all().build();
        let threads = threads.unwrap_or_else(|error| panic!("no threads for the fake kernel: {error}"));
        Self {
            inner: Arc::new(Inner {
                guest,
                faults: Faults::default(),
                machines: Mutex::default(),
                builds: Mutex::default(),
                capacity: Mutex::new(usize::MAX),
                started: AtomicUsize::new(0),
                mark: Mark::kernel(&random_hex(8)),
                handle: threads.handle().clone(),
                threads: Some(threads),
            }),
        }
    }

    /// Puts an image on the host.
    pub fn add_build(&self, build: BuildId) {
        self.inner.builds.lock().insert(build);
    }

    /// Instances that fit; further starts are refused as exhausted.
    pub fn set_capacity(&self, capacity: usize) {
        *self.inner.capacity.lock() = capacity;
    }

    /// Puts a fault in force, in place of the step's last one.
    pub fn inject(&self, step: Step, fault: Fault) {
        self.inner.faults.set(step, Some(fault));
    }

    /// Ends a fault.
    pub fn clear(&self, step: Step) {
        self.inner.faults.set(step, None);
    }

    /// All instances of which anything is left, in no order.
    pub fn instances(&self) -> Vec<InstanceId> {
        self.inner.machines.lock().keys().cloned().collect()
    }

    /// What an instance looks like; `None` when nothing is left of it.
    pub fn view(&self, id: &InstanceId) -> Option<MachineView> {
        self.inner.machine(id).map(|m| m.view())
    }

    /// Instances whose label `key` is `value`.
    pub fn labelled(&self, key: &str, value: &str) -> Vec<InstanceId> {
        let machines = self.inner.machines.lock();
        let has = |m: &Machine| m.labels.lock().get(key).is_some_and(|v| v == value);
        machines.values().filter(|m| has(m)).map(|m| m.spec.id.clone()).collect()
    }

    /// Processes that were started inside instances and still run. Blocks briefly.
    pub fn processes(&self) -> usize {
        self.inner.mark.processes().len()
    }

    /// Starts that were tried so far.
    pub fn starts(&self) -> usize {
        self.inner.started.load(Ordering::SeqCst)
    }

    /// PID 1 of an instance ends by itself. What belongs to the instance stays until it is killed.
    pub async fn die(&self, id: &InstanceId) {
        if let Some(machine) = self.inner.machine(id) {
            machine.exit(ExitCause::Exited).await;
        }
    }

    /// envd of an instance ends for good, while PID 1 lives on.
    pub async fn end_envd(&self, id: &InstanceId) {
        if let Some(machine) = self.inner.machine(id) {
            machine.end_envd().await;
        }
    }

    /// The next adoption cannot keep the instance.
    pub fn lose(&self, id: &InstanceId, reason: &str) {
        if let Some(machine) = self.inner.machine(id) {
            *machine.lost.lock() = Some(reason.to_owned());
        }
    }

    /// Sets the figures of an instance.
    pub fn set_stats(&self, id: &InstanceId, stats: InstanceStats) {
        if let Some(machine) = self.inner.machine(id) {
            *machine.stats.lock() = stats;
        }
    }

    /// Replaces the labels of an instance.
    pub fn set_labels(&self, id: &InstanceId, labels: BTreeMap<String, String>) {
        if let Some(machine) = self.inner.machine(id) {
            *machine.labels.lock() = labels;
        }
    }
}

impl Inner {
    pub fn machine(&self, id: &InstanceId) -> Option<Arc<Machine>> {
        self.machines.lock().get(id).cloned()
    }

    pub fn machines(&self) -> Vec<Arc<Machine>> {
        self.machines.lock().values().cloned().collect()
    }

    pub fn builds(&self) -> Vec<BuildId> {
        self.builds.lock().iter().copied().collect()
    }

    pub async fn start(&self, spec: InstanceSpec) -> Result<Arc<Machine>, RuntimeError> {
        self.started.fetch_add(1, Ordering::SeqCst);
        if !self.builds.lock().contains(&spec.build_id) {
            return Err(RuntimeError::NoImage(spec.build_id));
        }
        self.faults.pass(Step::Start).await?;
        let mut machines = self.machines.lock();
        if machines.len() >= *self.capacity.lock() {
            return Err(RuntimeError::Exhausted { what: "fake instances".to_owned() });
        }
        let mark = self.mark.instance(&spec.id);
        let machine = Machine::boot(spec, &self.guest, mark, &self.handle, None)?;
        machines.insert(machine.spec.id.clone(), machine.clone());
        Ok(machine)
    }

    pub async fn pause(&self, machine: &Machine, mode: PauseMode) -> Result<(), RuntimeError> {
        self.faults.pass(Step::Pause).await?;
        if machine.has_exited() {
            return Err(RuntimeError::failed("pause a fake instance", "it has ended"));
        }
        machine.pause(mode).await;
        Ok(())
    }

    pub async fn resume(&self, id: &InstanceId, mode: PauseMode) -> Result<Arc<Machine>, RuntimeError> {
        let not_paused = || RuntimeError::NotPaused(id.clone());
        let machine = self.machine(id).ok_or_else(not_paused)?;
        let saved = machine.paused.lock().ok_or_else(not_paused)?;
        if mode == PauseMode::Full && saved == PauseMode::Filesystem {
            return Err(not_paused());
        }
        self.faults.pass(Step::Resume).await?;
        if mode == PauseMode::Full {
            machine.go_on();
            return Ok(machine);
        }
        machine.exit(ExitCause::Paused).await;
        let (spec, mark) = (machine.spec.clone(), self.mark.instance(id));
        let booted = Machine::boot(spec, &self.guest, mark, &self.handle, machine.take_scratch())?;
        *booted.labels.lock() = machine.labels.lock().clone();
        self.machines.lock().insert(id.clone(), booted.clone());
        Ok(booted)
    }

    /// Removes everything of a machine.
    pub async fn destroy(&self, machine: &Machine) -> Result<(), RuntimeError> {
        self.faults.pass(Step::Kill).await?;
        machine.exit(ExitCause::Killed).await;
        self.faults.pass(Step::CleanUp).await?;
        machine.remove_scratch()?;
        self.machines.lock().remove(&machine.spec.id);
        Ok(())
    }
}
