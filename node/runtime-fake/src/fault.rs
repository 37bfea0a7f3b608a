//! Faults that tests inject.

use std::collections::HashMap;
use std::time::Duration;

use hutch_runtime::RuntimeError;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A step of the runtime that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// [`Runtime::start`](hutch_runtime::Runtime::start).
    Start,
    /// [`Instance::set_labels`](hutch_runtime::Instance::set_labels).
    Labels,
    /// [`Instance::set_hostname`](hutch_runtime::Instance::set_hostname).
    Hostname,
    /// [`Instance::set_network`](hutch_runtime::Instance::set_network).
    Network,
    /// [`Instance::stats`](hutch_runtime::Instance::stats).
    Stats,
    /// [`Instance::pause`](hutch_runtime::Instance::pause).
    Pause,
    /// [`Runtime::resume`](hutch_runtime::Runtime::resume).
    Resume,
    /// [`Instance::kill`](hutch_runtime::Instance::kill).
    Kill,
    /// What [`Instance::kill`](hutch_runtime::Instance::kill) does when the processes are gone already.
    CleanUp,
}

/// What happens at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails so many times, then works.
    Fail(usize),
    /// It takes this long.
    Delay(Duration),
    /// It does not end until the fault is cleared or replaced.
    Stall,
}

/// The faults in force.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    faults: Mutex<HashMap<Step, Fault>>,
    changed: Notify,
}

impl Faults {
    pub fn set(&self, step: Step, fault: Option<Fault>) {
        let mut faults = self.faults.lock();
        match fault {
            Some(fault) => faults.insert(step, fault),
            None => faults.remove(&step),
        };
        drop(faults);
        self.changed.notify_waiters();
    }

    /// Goes through `step` as the fault in force wants it.
    pub async fn pass(&self, step: Step) -> Result<(), RuntimeError> {
        loop {
            // Before the look at the faults, so that no change in between is missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            match self.take(step) {
                None => return Ok(()),
                Some(Fault::Fail(_)) => {
                    return Err(RuntimeError::failed(format!("{step:?}"), "a fault injected by a test"));
                }
                Some(Fault::Delay(time)) => {
                    tokio::time::sleep(time).await;
                    return Ok(());
                }
                Some(Fault::Stall) => changed.await,
            }
        }
    }

    fn take(&self, step: Step) -> Option<Fault> {
        let mut faults = self.faults.lock();
        let fault = *faults.get(&step)?;
        match fault {
            Fault::Fail(0) => {
                faults.remove(&step);
                return None;
            }
            Fault::Fail(n) => drop(faults.insert(step, Fault::Fail(n - 1))),
            Fault::Delay(_) | Fault::Stall => {}
        }
        Some(fault)
    }
}
