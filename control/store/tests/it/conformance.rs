//! The suite, on a file and in memory.

use std::sync::Arc;

use async_trait::async_trait;
use hutch_store::conformance::{Subject, run};
use hutch_store::{SqliteStore, Store};
use tempfile::TempDir;

struct InFile(TempDir);

#[async_trait]
impl Subject for InFile {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(SqliteStore::open(&self.0.path().join("hutch.db")).await.unwrap())
    }
}

struct InMemory(Arc<SqliteStore>);

#[async_trait]
impl Subject for InMemory {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::<SqliteStore>::clone(&self.0)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sqlite_in_a_file_conforms() {
    run(async || InFile(tempfile::tempdir().unwrap())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sqlite_in_memory_conforms() {
    run(async || InMemory(Arc::new(SqliteStore::open_in_memory().await.unwrap()))).await;
}
