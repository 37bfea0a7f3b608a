//! What tests of other crates rely on.

use std::sync::Arc;
use std::time::Duration;

use hutch_runtime::{ExitCause, Instance, InstanceSpec, Runtime, RuntimeError};
use hutch_runtime_fake::{FakeKernel, FakeRuntime, Fault, Step};
use hutch_types::{BuildId, InstanceId, Resources, Secret};

fn spec(build_id: BuildId) -> InstanceSpec {
    let resources = Resources { vcpus: 1, memory_mib: 128, disk_mib: 256, max_processes: 64 };
    InstanceSpec { id: InstanceId::random(), build_id, resources, secret: Secret::random(16) }
}

fn host() -> (FakeKernel, FakeRuntime, BuildId) {
    let (kernel, build) = (FakeKernel::new(), BuildId::random());
    kernel.add_build(build);
    let runtime = FakeRuntime::new(&kernel);
    (kernel, runtime, build)
}

async fn answers(instance: &Arc<dyn Instance>) -> bool {
    let address = (instance.address(), instance.envd_port());
    tokio::net::TcpStream::connect(address).await.is_ok()
}

#[tokio::test]
async fn an_instance_answers_until_it_is_killed_and_leaves_nothing() {
    let (kernel, runtime, build) = host();
    let instance = runtime.start(spec(build)).await.unwrap();
    assert!(answers(&instance).await);
    let exited = instance.exited();
    instance.kill().await.unwrap();
    assert_eq!(exited.await, ExitCause::Killed);
    assert!(!answers(&instance).await);
    assert_eq!(kernel.instances(), []);
    instance.kill().await.unwrap();
}

#[tokio::test]
async fn instances_outlive_the_daemon_and_are_adopted_with_their_labels() {
    let kernel = FakeKernel::new();
    let build = BuildId::random();
    kernel.add_build(build);
    let host = kernel.clone();
    // A daemon whose threads are gone before the next one starts.
    let id = std::thread::spawn(move || {
        let daemon = tokio::runtime::Runtime::new().unwrap();
        daemon.block_on(async {
            let instance = FakeRuntime::new(&host).start(spec(build)).await.unwrap();
            instance.set_labels([("a".to_owned(), "b".to_owned())].into()).await.unwrap();
            instance.spec().id.clone()
        })
    })
    .join()
    .unwrap();
    let adoption = FakeRuntime::new(&kernel).adopt().await.unwrap();
    assert_eq!((adoption.adopted.len(), adoption.lost.len()), (1, 0));
    let instance = &adoption.adopted[0];
    assert_eq!((&instance.spec().id, instance.labels().get("a").map(String::as_str)), (&id, Some("b")));
    assert!(answers(instance).await);
}

#[tokio::test]
async fn what_died_meanwhile_is_lost_and_gone() {
    let (kernel, runtime, build) = host();
    let instance = runtime.start(spec(build)).await.unwrap();
    kernel.die(&instance.spec().id).await;
    assert_eq!(instance.exited().await, ExitCause::Exited);
    let adoption = FakeRuntime::new(&kernel).adopt().await.unwrap();
    assert_eq!((adoption.adopted.len(), adoption.lost.len()), (0, 1));
    assert_eq!(kernel.instances(), []);
}

#[tokio::test]
async fn faults_do_what_they_say() {
    let (kernel, runtime, build) = host();
    assert!(matches!(runtime.start(spec(BuildId::random())).await, Err(RuntimeError::NoImage(_))));
    kernel.inject(Step::Start, Fault::Fail(1));
    assert!(matches!(runtime.start(spec(build)).await, Err(RuntimeError::Failed { .. })));
    let instance = runtime.start(spec(build)).await.unwrap();
    kernel.set_capacity(1);
    assert!(matches!(runtime.start(spec(build)).await, Err(RuntimeError::Exhausted { .. })));
    assert_eq!(kernel.starts(), 4);

    kernel.inject(Step::Kill, Fault::Stall);
    let kill = instance.kill();
    let ends = tokio::time::timeout(Duration::from_millis(20), kill).await;
    assert!(ends.is_err(), "a stalled step does not end");
    let kill = instance.kill();
    let clear = async { kernel.clear(Step::Kill) };
    let (result, ()) = tokio::join!(kill, clear);
    result.unwrap();
    assert_eq!(kernel.instances(), []);
}
