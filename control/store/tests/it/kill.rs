//! A process that dies by SIGKILL at some moment has lost nothing that it acknowledged.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use hutch_store::{CreateOutcome, NewSandbox, SqliteStore, Store};
use hutch_types::{BuildId, Resources, SandboxId, Secret, TeamId, Timestamp};

/// Names the database to the child, which is this test binary again.
const CHILD: &str = "HUTCH_STORE_TEST_CHILD";
const ACK: &str = "acknowledged ";

fn new_sandbox(team: TeamId) -> NewSandbox {
    NewSandbox {
        id: SandboxId::random(),
        team,
        template: "base".parse().unwrap(),
        build: BuildId::random(),
        alias: None,
        resources: Resources { vcpus: 1, memory_mib: 512, disk_mib: 1024, max_processes: 100 },
        metadata: Default::default(),
        access_token: Secret::random(16),
        traffic_token: None,
        allow_internet_access: None,
        auto_pause: None,
        extra: serde_json::json!({"padding": "x".repeat(500)}),
        created_at: Timestamp(1),
        end_at: Timestamp(2),
    }
}

/// Writes until it is killed, several at a time, and says what was acknowledged. Does nothing in a normal test run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_writes() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let store = std::sync::Arc::new(SqliteStore::open(path.as_ref()).await.unwrap());
    let team = store.default_team(Timestamp(1)).await.unwrap().id;
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = std::sync::Arc::clone(&store);
        writers.spawn(async move {
            loop {
                let new = new_sandbox(team);
                assert_eq!(store.insert_sandbox(new.clone(), None).await.unwrap(), CreateOutcome::Created);
                store.mark_running(&new.id, Timestamp(1), Timestamp(9), "v", "container").await.unwrap();
                // One write call, so that lines of several tasks and a kill do not mix.
                std::io::stdout().write_all(format!("{ACK}{}\n", new.id).as_bytes()).unwrap();
            }
        });
    }
    writers.join_next().await.unwrap().unwrap();
}

/// Kills the child also when the test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_a_killed_process_acknowledged_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hutch.db");
    let mut acknowledged = BTreeSet::new();
    for round in 1..=4 {
        let mut child = Killed(
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "kill::child_that_writes", "--nocapture"])
                .env(CHILD, &path)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        let mut heard = 0;
        for line in lines {
            // A line that the kill cut off is not a promise that can be read.
            if let Some(id) = line.unwrap().strip_prefix(ACK).and_then(|id| id.parse::<SandboxId>().ok()) {
                acknowledged.insert(id);
                heard += 1;
            }
            if heard == 150 * round {
                child.0.kill().unwrap();
            }
        }
        assert!(heard >= 150 * round, "the child ended by itself after {heard}");
        drop(child);

        let store = SqliteStore::open(&path).await.unwrap();
        let stored: BTreeSet<_> = store
            .live_sandboxes()
            .await
            .unwrap()
            .into_iter()
            .filter(|s| s.state == hutch_types::SandboxState::Running)
            .map(|s| s.asked.id)
            .collect();
        let lost: Vec<_> = acknowledged.difference(&stored).collect();
        assert!(lost.is_empty(), "round {round}: {} of {} are lost", lost.len(), acknowledged.len());
    }
}
