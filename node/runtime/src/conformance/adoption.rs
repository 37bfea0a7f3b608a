//! What a restarted daemon finds.

use std::collections::BTreeMap;

use super::{Suite, guest, kill, soon};
use crate::ExitCause;

fn labels(value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("role".to_owned(), value.to_owned()), ("odd \"key\"\n".to_owned(), "ü".to_owned())])
}

pub(super) async fn taken_over(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    let before = suite.start(&runtime).await;
    assert!(before.labels().is_empty());
    before.set_labels(labels("first")).await.expect("set labels");
    before.set_labels(labels("second")).await.expect("set labels");
    before.set_hostname("kept").await.expect("set the host name");
    guest::stdout(&*before, "echo kept > /var/tmp/kept; sleep 7654 >/dev/null 2>&1 &").await;
    let (spec, address, port) = (before.spec().clone(), before.address(), before.envd_port());
    drop((before, runtime));

    let runtime = suite.fixture.open().await;
    let mut adoption = runtime.adopt().await.expect("adopt");
    assert!(adoption.lost.is_empty(), "{:?}", adoption.lost);
    assert_eq!(adoption.adopted.len(), 1);
    let after = adoption.adopted.remove(0);
    assert_eq!(after.labels(), labels("second"));
    assert_eq!((after.spec(), after.address(), after.envd_port()), (&spec, address, port));
    guest::wait_healthy(&*after).await;
    assert_eq!(guest::stdout(&*after, "cat /var/tmp/kept").await, "kept");
    assert!(guest::stdout(&*after, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await.contains("sleep 7654"));
    after.stats().await.expect("stats");
    // It is watched again, and new ones can be started beside it.
    let other = suite.start(&runtime).await;
    assert_ne!((other.address(), other.envd_port()), (address, port));
    kill(&*other).await;
    kill(&*after).await;
    assert_eq!(soon("the exit", after.exited()).await, ExitCause::Killed);
    assert_eq!(suite.fixture.leftovers().await, Vec::<String>::new());
}

pub(super) async fn lost(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    let dying = suite.start(&runtime).await;
    let living = suite.start(&runtime).await;
    dying.set_labels(labels("dying")).await.expect("set labels");
    let (dying_id, living_id) = (dying.spec().id.clone(), living.spec().id.clone());
    drop((dying, living, runtime));
    suite.fixture.kill_pid1(&dying_id).await;

    let runtime = suite.fixture.open().await;
    let adoption = runtime.adopt().await.expect("adopt");
    let lost: Vec<_> = adoption.lost.iter().map(|lost| (&lost.id, &lost.labels)).collect();
    assert_eq!(lost, [(&dying_id, &labels("dying"))]);
    assert!(adoption.lost.iter().all(|lost| !lost.reason.is_empty()));
    let left = suite.fixture.leftovers().await;
    assert!(!left.iter().any(|line| line.contains(dying_id.as_str())), "{left:#?}");
    assert_eq!(adoption.adopted.len(), 1);
    let living = adoption.adopted.first().expect("the other one");
    assert_eq!(living.spec().id, living_id);
    kill(&**living).await;
}
