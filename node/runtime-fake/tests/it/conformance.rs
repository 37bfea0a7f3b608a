//! The suite that every backend passes.

use std::sync::Arc;

use async_trait::async_trait;
use hutch_runtime::Runtime;
use hutch_runtime::conformance::{Fixture, run};
use hutch_runtime_fake::{FakeKernel, FakeRuntime};
use hutch_types::{BuildId, InstanceId, Resources};

struct Fake {
    kernel: FakeKernel,
    build: BuildId,
}

#[async_trait]
impl Fixture for Fake {
    async fn open(&self) -> Arc<dyn Runtime> {
        Arc::new(FakeRuntime::new(&self.kernel))
    }

    fn build(&self) -> BuildId {
        self.build
    }

    fn resources(&self) -> Resources {
        Resources { vcpus: 1, memory_mib: 256, disk_mib: 256, max_processes: 256 }
    }

    async fn leftovers(&self) -> Vec<String> {
        let mut left: Vec<String> = self.kernel.instances().iter().map(ToString::to_string).collect();
        let kernel = self.kernel.clone();
        let processes = tokio::task::spawn_blocking(move || kernel.processes()).await.unwrap();
        left.extend((processes > 0).then(|| format!("{processes} processes")));
        left
    }

    async fn kill_pid1(&self, id: &InstanceId) {
        self.kernel.die(id).await;
    }
}

#[tokio::test]
async fn the_fake_is_a_runtime_like_any_other() {
    let fake = Fake { kernel: FakeKernel::new(), build: BuildId::random() };
    fake.kernel.add_build(fake.build);
    run(&fake).await;
}
