//! Instances that are saved and brought back.

use std::collections::BTreeMap;

use hutch_types::{InstanceId, PauseMode};

use super::{Suite, guest, kill, soon};
use crate::{ExitCause, Instance, RuntimeError};

/// A process that knows what is nowhere but in its memory, and goes on counting.
const COUNTER: &str = "(secret=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n'); n=0; \
     while :; do n=$((n+1)); echo \"$secret $n $$\" > ~/tick.new; mv ~/tick.new ~/tick; sleep 0.05; done) \
     </dev/null >/dev/null 2>&1 & echo $!";

struct Tick {
    secret: String,
    count: u64,
}

async fn tick(instance: &dyn Instance) -> Tick {
    let text = guest::stdout(
        instance,
        "for i in 1 2 3 4 5 6 7 8 9; do [ -s ~/tick ] && break; sleep 0.1; done; cat ~/tick",
    )
    .await;
    let mut fields = text.split(' ');
    let secret = fields.next().expect("a secret").to_owned();
    Tick { secret, count: fields.next().and_then(|n| n.parse().ok()).expect("a count") }
}

async fn ticks_on(instance: &dyn Instance, since: &Tick) {
    soon("the next tick", async {
        loop {
            let now = tick(instance).await;
            assert_eq!(now.secret, since.secret, "another process answers");
            if now.count > since.count + 2 {
                return;
            }
        }
    })
    .await;
}

async fn pause(instance: &dyn Instance, mode: PauseMode) {
    if let Err(error) = instance.pause(mode).await {
        panic!("pause: {}", error.chain());
    }
    assert_eq!(soon("the exit", instance.exited()).await, ExitCause::Paused);
}

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("whose".to_owned(), "a sandbox's".to_owned())])
}

async fn is_running(instance: &dyn Instance, pid: &str) -> bool {
    guest::shell(instance, &format!("kill -0 {pid}")).await.is_success
}

pub(super) async fn with_memory(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    let before = suite.start(&runtime).await;
    before.set_labels(labels()).await.expect("set labels");
    before.set_hostname("kept").await.expect("set the host name");
    let pid = guest::stdout(&*before, COUNTER).await;
    let seen = tick(&*before).await;
    let (id, spec) = (before.spec().id.clone(), before.spec().clone());
    let mut before = before;
    // More than once: what is saved the second time was itself restored.
    for _ in 0..3 {
        // The server inside still holds its end of this afterwards, on whatever slot it is then.
        let connection = tokio::net::TcpStream::connect((before.address(), before.envd_port())).await;
        let connection = connection.expect("connect");
        guest::health(&*before).await.expect("health");
        pause(&*before, PauseMode::Full).await;
        drop(connection);
        if runtime.capabilities().isolated {
            assert!(guest::health(&*before).await.is_err(), "a paused instance answers");
        }
        drop(before);
        before = match runtime.resume(&id, PauseMode::Full).await {
            Ok(instance) => instance,
            Err(error) => panic!("resume: {}", error.chain()),
        };
        guest::wait_healthy(&*before).await;
        assert_eq!((before.spec(), before.labels()), (&spec, labels()));
        assert!(is_running(&*before, &pid).await, "the process is gone");
        ticks_on(&*before, &seen).await;
    }
    let not_paused = runtime.resume(&id, PauseMode::Full).await.expect_err("it runs");
    assert!(matches!(not_paused, RuntimeError::NotPaused(_)), "{not_paused:?}");
    kill(&*before).await;
}

pub(super) async fn with_files(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    let before = suite.start(&runtime).await;
    before.set_labels(labels()).await.expect("set labels");
    guest::stdout(&*before, "head -c 3000000 /dev/urandom > ~/kept; ln -s kept ~/link").await;
    let sum = guest::stdout(&*before, "cksum < ~/link").await;
    let pid = guest::stdout(&*before, "sleep 7654 >/dev/null 2>&1 & echo $!").await;
    let boot_id = guest::stdout(&*before, "cat /proc/sys/kernel/random/boot_id").await;
    let id = before.spec().id.clone();
    pause(&*before, PauseMode::Filesystem).await;
    let unsaved = runtime.resume(&id, PauseMode::Full).await.expect_err("its memory was not saved");
    assert!(matches!(unsaved, RuntimeError::NotPaused(_)), "{unsaved:?}");
    let after = runtime.resume(&id, PauseMode::Filesystem).await.expect("resume");
    guest::wait_healthy(&*after).await;
    assert_eq!(after.labels(), labels());
    assert_eq!(guest::stdout(&*after, "cksum < ~/link").await, sum);
    if runtime.capabilities().isolated {
        assert!(
            !is_running(&*after, &pid).await
                || !guest::stdout(&*after, &format!("cat /proc/{pid}/cmdline")).await.contains("7654")
        );
        assert_ne!(guest::stdout(&*after, "cat /proc/sys/kernel/random/boot_id").await, boot_id);
    }
    kill(&*after).await;
}

pub(super) async fn found_by_the_next_daemon(suite: &Suite<'_>) {
    let mode = if suite.open().await.capabilities().memory { PauseMode::Full } else { PauseMode::Filesystem };
    let runtime = suite.open().await;
    let (kept, dropped) = (suite.start(&runtime).await, suite.start(&runtime).await);
    kept.set_labels(labels()).await.expect("set labels");
    guest::stdout(&*kept, "echo kept > ~/kept").await;
    let (kept_id, dropped_id) = (kept.spec().id.clone(), dropped.spec().id.clone());
    pause(&*kept, mode).await;
    pause(&*dropped, PauseMode::Filesystem).await;
    drop((kept, dropped, runtime));

    let runtime = suite.fixture.open().await;
    let adoption = runtime.adopt().await.expect("adopt");
    assert!(adoption.adopted.is_empty() && adoption.lost.is_empty(), "{adoption:?}");
    let mut found: Vec<_> = adoption.paused.iter().map(|p| (&p.spec.id, &p.labels, p.mode)).collect();
    found.sort_by_key(|(id, ..)| **id != kept_id);
    let none = BTreeMap::new();
    assert_eq!(found, [(&kept_id, &labels(), mode), (&dropped_id, &none, PauseMode::Filesystem)]);
    runtime.discard(&dropped_id).await.expect("discard");
    runtime.discard(&dropped_id).await.expect("discard what is gone");
    let left = suite.fixture.leftovers().await;
    assert!(!left.iter().any(|line| line.contains(dropped_id.as_str())), "{left:#?}");
    // Its memory can be left aside.
    let after = runtime.resume(&kept_id, PauseMode::Filesystem).await.expect("resume");
    guest::wait_healthy(&*after).await;
    assert_eq!(guest::stdout(&*after, "cat ~/kept").await, "kept");
    kill(&*after).await;
}

pub(super) async fn whatever_callers_do(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    let unknown = runtime.resume(&InstanceId::random(), PauseMode::Filesystem).await.expect_err("unknown");
    assert!(matches!(unknown, RuntimeError::NotPaused(_)), "{unknown:?}");
    runtime.discard(&InstanceId::random()).await.expect("discard what never was");

    // A caller that goes away does not leave it half paused.
    let instance = suite.start(&runtime).await;
    let id = instance.spec().id.clone();
    futures::future::select(instance.pause(PauseMode::Filesystem), std::pin::pin!(tokio::task::yield_now()))
        .await;
    assert_eq!(soon("the exit", instance.exited()).await, ExitCause::Paused);
    drop(instance);
    soon("the end of the pause", async {
        loop {
            match runtime.resume(&id, PauseMode::Filesystem).await {
                Ok(resumed) => return kill(&*resumed).await,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
        }
    })
    .await;

    // What was killed cannot be paused, and a kill in the middle of a pause leaves nothing.
    let instance = suite.start(&runtime).await;
    kill(&*instance).await;
    instance.pause(PauseMode::Filesystem).await.expect_err("it was killed");
    let instance = suite.start(&runtime).await;
    let (paused, killed) = tokio::join!(instance.pause(PauseMode::Filesystem), instance.kill());
    killed.expect("kill");
    if paused.is_ok() {
        runtime.discard(&instance.spec().id).await.expect("discard");
    }
}
