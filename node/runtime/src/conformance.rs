//! One set of checks that every backend passes.
//!
//! A backend's own test provides a [`Fixture`] and calls [`run`]. The checks use the [`Runtime`] trait, and envd's wire
//! interface for what is to be seen from inside; what a backend cannot do ([`Capabilities`](crate::Capabilities)) is skipped
//! and said so.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a failed check is a panic"
)]

mod adoption;
pub mod guest;
mod lifecycle;
mod limits;
mod network;
mod pause;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use hutch_types::{BuildId, InstanceId, Resources, Secret};

use crate::{Instance, InstanceSpec, Runtime};

/// How long anything may take that normally takes well below a second. Generous: test machines are busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the suite needs from a backend's test.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Opens a runtime over the state of the one before, all handles of which were dropped: a restarted daemon. The suite
    /// calls [`Runtime::adopt`] itself.
    async fn open(&self) -> Arc<dyn Runtime>;

    /// A build that can be started, with a shell and coreutils.
    fn build(&self) -> BuildId;

    /// What instances get; some checks lower single limits.
    fn resources(&self) -> Resources;

    /// Everything of instances that is on this host, one line each. Empty when there are none.
    async fn leftovers(&self) -> Vec<String>;

    /// Ends PID 1 of an instance behind the runtime's back. Returns when it is gone.
    async fn kill_pid1(&self, id: &InstanceId);
}

/// Runs all checks, one after the other.
///
/// # Panics
/// On the first one that fails.
pub async fn run(fixture: &dyn Fixture) {
    let suite = Suite { fixture };
    let capabilities = suite.open().await.capabilities();
    suite.check("an instance becomes healthy and is killed", lifecycle::healthy_then_killed(&suite)).await;
    suite.check("a host name is set", lifecycle::host_name(&suite)).await;
    suite.check("figures are plausible", lifecycle::figures(&suite)).await;
    suite.check("killing twice and at once is fine", lifecycle::killed_twice(&suite)).await;
    suite.check("a start that is dropped leaves nothing", lifecycle::dropped_start(&suite)).await;
    suite.check("the end of PID 1 is noticed", lifecycle::pid1_ends(&suite)).await;
    suite.check("a build that is not here is named", lifecycle::unknown_build(&suite)).await;
    suite.check("ten at once", lifecycle::ten_at_once(&suite)).await;
    if capabilities.adopt {
        suite.check("a restarted daemon takes over", adoption::taken_over(&suite)).await;
        suite.check("what died meanwhile is reported", adoption::lost(&suite)).await;
    } else {
        skipped("adoption");
    }
    suite.check("an instance is paused and resumed with its files", pause::with_files(&suite)).await;
    if capabilities.memory {
        suite.check("an instance is paused and resumed with its memory", pause::with_memory(&suite)).await;
    } else {
        skipped("saving memory");
    }
    if capabilities.adopt {
        suite.check("paused instances are found again", pause::found_by_the_next_daemon(&suite)).await;
    }
    suite.check("pauses and callers", pause::whatever_callers_do(&suite)).await;
    if capabilities.isolated {
        suite.check("no two instances are alike", lifecycle::distinct(&suite)).await;
    } else {
        skipped("isolation");
    }
    if capabilities.network_policy {
        suite.check("everything is denied before a policy is set", network::denied_at_first(&suite)).await;
    } else {
        skipped("network policies");
    }
    if capabilities.limits {
        suite.check("a memory hog dies alone", limits::memory_hog(&suite)).await;
        suite.check("a full disk leaves the instance alive", limits::full_disk(&suite)).await;
        suite.check("a fork bomb leaves room for envd", limits::fork_bomb(&suite)).await;
    } else {
        skipped("limits");
    }
}

fn skipped(what: &str) {
    eprintln!("not applicable to this backend: {what}");
}

pub(crate) struct Suite<'a> {
    fixture: &'a dyn Fixture,
}

impl Suite<'_> {
    async fn check(&self, name: &str, check: impl Future<Output = ()>) {
        let started = Instant::now();
        eprintln!("conformance: {name} ...");
        check.await;
        self.assert_nothing_left().await;
        eprintln!("conformance: {name}: ok, {} ms", started.elapsed().as_millis());
    }

    async fn open(&self) -> Arc<dyn Runtime> {
        let runtime = self.fixture.open().await;
        let adoption = runtime.adopt().await.expect("adopt");
        assert!(
            adoption.adopted.is_empty() && adoption.paused.is_empty() && adoption.lost.is_empty(),
            "left by an earlier check: {adoption:?}"
        );
        runtime
    }

    fn spec(&self) -> InstanceSpec {
        self.spec_with(|_| {})
    }

    fn spec_with(&self, change: impl FnOnce(&mut Resources)) -> InstanceSpec {
        let mut resources = self.fixture.resources();
        change(&mut resources);
        InstanceSpec {
            id: InstanceId::random(),
            build_id: self.fixture.build(),
            resources,
            secret: Secret::random(16),
        }
    }

    /// An instance whose envd answers.
    async fn start(&self, runtime: &Arc<dyn Runtime>) -> Arc<dyn Instance> {
        self.start_with(runtime, self.spec()).await
    }

    async fn start_with(&self, runtime: &Arc<dyn Runtime>, spec: InstanceSpec) -> Arc<dyn Instance> {
        let instance = match runtime.start(spec).await {
            Ok(instance) => instance,
            Err(error) => panic!("start: {}", error.chain()),
        };
        guest::wait_healthy(&*instance).await;
        instance
    }

    async fn assert_nothing_left(&self) {
        let started = Instant::now();
        loop {
            let left = self.fixture.leftovers().await;
            if left.is_empty() {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "left over: {left:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn kill(instance: &dyn Instance) {
    if let Err(error) = instance.kill().await {
        panic!("kill: {}", error.chain());
    }
}

/// Waits for something that has to happen.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not happen within {PATIENCE:?}"),
    }
}
