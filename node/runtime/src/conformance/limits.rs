//! Limits hold, and what runs into one takes nothing else along.

use std::sync::Arc;

use super::{Suite, guest, kill};
use crate::Instance;

/// The instance's PID 1 and envd did not notice.
async fn assert_unharmed(instance: &Arc<dyn Instance>, envd_before: &str) {
    guest::wait_healthy(&**instance).await;
    assert_eq!(envd_pid(instance).await, envd_before, "envd was restarted");
}

async fn envd_pid(instance: &Arc<dyn Instance>) -> String {
    guest::stdout(&**instance, "grep -lx envd /proc/[0-9]*/comm | head -1").await
}

pub(super) async fn memory_hog(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    let instance = suite.start_with(&runtime, suite.spec_with(|r| r.memory_mib = 256)).await;
    let envd = envd_pid(&instance).await;
    // tail looks for the end of a line that never ends.
    let hog = "tail /dev/zero > /dev/null";
    for hog in [hog.to_owned(), format!("head -c 1G /dev/zero > /dev/shm/fill; {hog}")] {
        let output = guest::shell(&*instance, &hog).await;
        assert!(!output.is_success, "{hog} got more memory than there is: {output:?}");
        assert_unharmed(&instance, &envd).await;
    }
    kill(&*instance).await;
}

pub(super) async fn full_disk(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    let instance = suite.start_with(&runtime, suite.spec_with(|r| r.disk_mib = 128)).await;
    let envd = envd_pid(&instance).await;
    let output = guest::shell(&*instance, "dd if=/dev/zero of=/var/tmp/fill bs=1M count=512").await;
    assert!(!output.is_success && output.stderr.contains("No space left on device"), "{output:?}");
    assert_unharmed(&instance, &envd).await;
    guest::stdout(&*instance, "rm /var/tmp/fill; echo fits > /var/tmp/small && cat /var/tmp/small").await;
    kill(&*instance).await;
}

pub(super) async fn fork_bomb(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    let instance = suite.start_with(&runtime, suite.spec_with(|r| r.max_processes = 128)).await;
    let envd = envd_pid(&instance).await;
    // As an unprivileged user, whose processes stay after the shell that failed.
    let bomb = "i=0; while [ $i -lt 400 ]; do sleep 1000 & i=$((i+1)); done";
    let script = format!(
        "setpriv --reuid=1000 --regid=1000 --clear-groups sh -c '{bomb}' >/dev/null 2>/tmp/bomb; cat /tmp/bomb"
    );
    let output = guest::shell(&*instance, &script).await;
    assert!(output.stdout.to_lowercase().contains("fork"), "nothing was refused: {output:?}");
    let stats = instance.stats().await.expect("stats");
    assert!((64..=128).contains(&stats.processes), "{stats:?}");
    assert_unharmed(&instance, &envd).await;
    kill(&*instance).await;
}
