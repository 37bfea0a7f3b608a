//! The [`Runtime`] on a [`FakeKernel`].

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hutch_runtime::{
    Adoption, Capabilities, ExitCause, Instance, InstanceSpec, InstanceStats, LostInstance, PausedInstance,
    Runtime, RuntimeError,
};
use hutch_types::{BuildId, InstanceId, Isolation, NetworkPolicy, PauseMode, Resources};

use crate::fault::Step;
use crate::kernel::{FakeKernel, Inner};
use crate::machine::Machine;

/// One daemon's view of a [`FakeKernel`].
#[derive(Debug, Clone)]
pub struct FakeRuntime {
    kernel: Arc<Inner>,
}

impl FakeRuntime {
    /// A runtime on this host.
    pub fn new(kernel: &FakeKernel) -> Self {
        Self { kernel: kernel.inner.clone() }
    }

    fn handle(&self, machine: Arc<Machine>) -> Arc<dyn Instance> {
        Arc::new(FakeInstance { kernel: self.kernel.clone(), machine })
    }
}

#[async_trait]
impl Runtime for FakeRuntime {
    fn isolation(&self) -> Isolation {
        Isolation::Fake
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { adopt: true, limits: false, network_policy: false, memory: true, isolated: false }
    }

    async fn builds(&self) -> Result<Vec<BuildId>, RuntimeError> {
        Ok(self.kernel.builds())
    }

    async fn start(&self, spec: InstanceSpec) -> Result<Arc<dyn Instance>, RuntimeError> {
        Ok(self.handle(self.kernel.start(spec).await?))
    }

    async fn resume(&self, id: &InstanceId, mode: PauseMode) -> Result<Arc<dyn Instance>, RuntimeError> {
        Ok(self.handle(self.kernel.resume(id, mode).await?))
    }

    async fn discard(&self, id: &InstanceId) -> Result<(), RuntimeError> {
        match self.kernel.machine(id) {
            Some(machine) => self.kernel.destroy(&machine).await,
            None => Ok(()),
        }
    }

    async fn adopt(&self) -> Result<Adoption, RuntimeError> {
        let mut adoption = Adoption::default();
        for machine in self.kernel.machines() {
            let lost = machine.lost.lock().take();
            let paused = *machine.paused.lock();
            if let (None, Some(mode)) = (&lost, paused) {
                let (spec, labels) = (machine.spec.clone(), machine.labels.lock().clone());
                adoption.paused.push(PausedInstance { spec, labels, mode });
                continue;
            }
            let exited = machine.has_exited().then(|| "its first process ended".to_owned());
            match lost.or(exited) {
                None => adoption.adopted.push(self.handle(machine)),
                Some(reason) => {
                    let (id, labels) = (machine.spec.id.clone(), machine.labels.lock().clone());
                    self.kernel.destroy(&machine).await?;
                    adoption.lost.push(LostInstance { id, labels, reason });
                }
            }
        }
        Ok(adoption)
    }

    async fn prepare(
        &self,
        build: BuildId,
        _resources: Resources,
        _count: usize,
    ) -> Result<(), RuntimeError> {
        if self.kernel.builds().contains(&build) { Ok(()) } else { Err(RuntimeError::NoImage(build)) }
    }
}

/// A handle to an instance in a [`FakeKernel`].
#[derive(Debug)]
pub struct FakeInstance {
    kernel: Arc<Inner>,
    machine: Arc<Machine>,
}

#[async_trait]
impl Instance for FakeInstance {
    fn spec(&self) -> &InstanceSpec {
        &self.machine.spec
    }

    fn address(&self) -> IpAddr {
        self.machine.address.ip()
    }

    fn envd_port(&self) -> u16 {
        self.machine.address.port()
    }

    async fn set_labels(&self, labels: BTreeMap<String, String>) -> Result<(), RuntimeError> {
        self.kernel.faults.pass(Step::Labels).await?;
        *self.machine.labels.lock() = labels;
        Ok(())
    }

    fn labels(&self) -> BTreeMap<String, String> {
        self.machine.labels.lock().clone()
    }

    async fn set_hostname(&self, name: &str) -> Result<(), RuntimeError> {
        self.kernel.faults.pass(Step::Hostname).await?;
        *self.machine.hostname.lock() = Some(name.to_owned());
        Ok(())
    }

    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), RuntimeError> {
        self.kernel.faults.pass(Step::Network).await?;
        *self.machine.network.lock() = Some(policy.clone());
        Ok(())
    }

    async fn stats(&self) -> Result<InstanceStats, RuntimeError> {
        self.kernel.faults.pass(Step::Stats).await?;
        Ok(*self.machine.stats.lock())
    }

    async fn pause(&self, mode: PauseMode) -> Result<(), RuntimeError> {
        self.kernel.pause(&self.machine, mode).await
    }

    async fn kill(&self) -> Result<(), RuntimeError> {
        self.kernel.destroy(&self.machine).await
    }

    async fn exited(&self) -> ExitCause {
        self.machine.exited().await
    }
}
