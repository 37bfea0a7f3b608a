//! Starting, looking, ending.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use futures::future::join_all;
use hutch_types::BuildId;

use super::{PATIENCE, Suite, guest, kill, soon};
use crate::{ExitCause, RuntimeError};

pub(super) async fn healthy_then_killed(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    assert!(runtime.builds().await.expect("builds").contains(&suite.fixture.build()));
    runtime.prepare(suite.fixture.build(), suite.fixture.resources(), 1).await.expect("prepare");
    let instance = suite.start(&runtime).await;
    assert_eq!(guest::stdout(&*instance, "echo hello; id -u").await, "hello\n0");
    assert!(!suite.fixture.leftovers().await.is_empty(), "the fixture does not see a running instance");
    kill(&*instance).await;
    assert_eq!(soon("the exit", instance.exited()).await, ExitCause::Killed);
    // Not later: kill returns when nothing is left.
    assert_eq!(suite.fixture.leftovers().await, Vec::<String>::new());
    guest::health(&*instance).await.expect_err("envd still answers");
}

pub(super) async fn host_name(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    let instance = suite.start(&runtime).await;
    instance.set_hostname("izmir").await.expect("set the host name");
    if runtime.capabilities().isolated {
        assert_eq!(guest::stdout(&*instance, "uname -n").await, "izmir");
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        assert_ne!(own.trim(), "izmir", "the host's own name was changed");
    }
    kill(&*instance).await;
}

pub(super) async fn figures(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    let instance = suite.start(&runtime).await;
    let before = instance.stats().await.expect("stats");
    if runtime.capabilities().limits {
        assert!((2..100).contains(&before.processes), "{before:?}");
        let limit = u64::from(instance.spec().resources.memory_mib) << 20;
        assert!(before.memory_used_bytes > 100_000 && before.memory_used_bytes < limit, "{before:?}");
        let disk = u64::from(instance.spec().resources.disk_mib) << 20;
        assert!(before.disk_total_bytes > disk / 2 && before.disk_total_bytes <= disk, "{before:?}");
        guest::stdout(
            &*instance,
            "head -c 20000000 /dev/zero >/var/tmp/f; sync; head -c 300000000 /dev/zero | cksum",
        )
        .await;
        let after = instance.stats().await.expect("stats");
        assert!(after.cpu_usage_us > before.cpu_usage_us + 10_000, "{before:?} {after:?}");
        assert!(after.disk_used_bytes > before.disk_used_bytes + 15_000_000, "{before:?} {after:?}");
    }
    kill(&*instance).await;
}

pub(super) async fn killed_twice(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    let instance = suite.start(&runtime).await;
    // The first caller goes away midway.
    tokio::time::timeout(Duration::from_millis(1), instance.kill()).await.ok();
    let (one, two) = tokio::join!(instance.kill(), instance.kill());
    one.expect("kill");
    two.expect("kill at the same time");
    kill(&*instance).await;
    assert_eq!(suite.fixture.leftovers().await, Vec::<String>::new());
}

pub(super) async fn dropped_start(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    for wait_ms in [0, 1, 5, 15, 40, 100] {
        let start = runtime.start(suite.spec());
        if let Ok(started) = tokio::time::timeout(Duration::from_millis(wait_ms), start).await {
            kill(&*started.expect("start")).await;
        }
    }
    // Before the runtime is dropped: what was dropped is still being removed.
    suite.assert_nothing_left().await;
}

pub(super) async fn pid1_ends(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    let instance = suite.start(&runtime).await;
    let (a, b) = tokio::join!(async { soon("the exit", instance.exited()).await }, async {
        suite.fixture.kill_pid1(&instance.spec().id).await;
        soon("the exit", instance.exited()).await
    });
    assert_eq!((a, b), (ExitCause::Exited, ExitCause::Exited));
    kill(&*instance).await;
    assert_eq!(suite.fixture.leftovers().await, Vec::<String>::new());
}

pub(super) async fn unknown_build(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    let mut spec = suite.spec();
    spec.build_id = BuildId::random();
    let error = runtime.start(spec.clone()).await.expect_err("started from nothing");
    assert!(matches!(&error, RuntimeError::NoImage(build) if *build == spec.build_id), "{error:?}");
    assert_eq!(suite.fixture.leftovers().await, Vec::<String>::new());
}

pub(super) async fn ten_at_once(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    let instances = join_all((0..10).map(|_| suite.start(&runtime))).await;
    let places: HashSet<_> = instances.iter().map(|i| (i.address(), i.envd_port())).collect();
    assert_eq!(places.len(), 10, "two instances answer at the same place");
    join_all(instances.iter().map(|instance| kill(&**instance))).await;
    assert_eq!(suite.fixture.leftovers().await, Vec::<String>::new());
}

pub(super) async fn distinct(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    let (a, b) = tokio::join!(suite.start(&runtime), suite.start(&runtime));
    let boot_id = "cat /proc/sys/kernel/random/boot_id";
    let ids = HashSet::from([
        guest::stdout(&*a, boot_id).await,
        guest::stdout(&*b, boot_id).await,
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned(),
    ]);
    assert_eq!(ids.len(), 3, "boot ids: {ids:?}");
    assert!(ids.iter().all(|id| id.len() == 36), "boot ids: {ids:?}");
    // Neither sees the other's files nor processes.
    guest::stdout(&*a, "echo x > /tmp/mark; sleep 4321 >/dev/null 2>&1 &").await;
    let seen = "test -e /tmp/mark && echo FOUND; for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; done 2>/dev/null";
    let started = Instant::now();
    while !guest::shell(&*a, seen).await.stdout.contains("sleep 4321") {
        assert!(started.elapsed() < PATIENCE, "a process does not see its neighbour");
    }
    let other = guest::shell(&*b, seen).await;
    assert!(!other.stdout.contains("FOUND\n") && !other.stdout.contains("sleep 4321"), "{other:?}");
    kill(&*a).await;
    kill(&*b).await;
}
