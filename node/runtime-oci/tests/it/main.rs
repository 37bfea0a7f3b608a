//! Containers for real: the conformance suite, what hostile guests try, what ordinary programs need, how long things take.
//!
//! Needs root, runc, a root filesystem (`HUTCH_TEST_BASE_TAR`, which `make test` sets) and the guest
//! binaries (`HUTCH_TEST_GUEST_DIR`, else `target/release/guest`). Where one is missing it says so and does nothing.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a failed check is a panic")]

mod accidents;
mod guests;
mod rig;
mod timings;
mod views;

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use hutch_runtime::conformance;

/// One test, since the parts share an imported image and the machine.
#[tokio::test(flavor = "multi_thread")]
async fn containers() -> anyhow::Result<()> {
    let rig = match rig::Rig::new()? {
        Ok(rig) => rig,
        Err(reason) => {
            eprintln!("SKIP: containers: {reason}");
            return Ok(());
        }
    };
    let outcome = AssertUnwindSafe(parts(&rig)).catch_unwind().await;
    // Also after a failure: nothing may stay on the host.
    let closed = rig.close().await;
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    closed
}

async fn parts(rig: &rig::Rig) {
    if std::env::var_os("SPIKE").is_some() {
        return conformance::run(rig).await;
    }
    guests::ordinary_programs_work(rig).await;
    guests::hostile_ones_are_contained(rig).await;
    accidents::failing_starts_leave_nothing(rig).await;
    accidents::leftovers_of_all_kinds_are_swept(rig).await;
    views::instances_show_their_own_limits(rig).await;
    timings::print(rig).await;
    conformance::run(rig).await;
    devices_of_the_host_are_as_before();
}

/// Device nodes are bound into containers. Neither starting nor restoring one may give the host's own away.
fn devices_of_the_host_are_as_before() {
    use std::os::unix::fs::MetadataExt;
    for name in ["null", "zero", "full", "random", "urandom", "tty"] {
        let node = std::fs::metadata(format!("/dev/{name}")).expect("a device");
        assert_eq!((node.uid(), node.mode() & 0o777), (0, 0o666), "/dev/{name}");
    }
}
