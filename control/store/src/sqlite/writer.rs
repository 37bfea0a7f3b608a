//! The writer task of a database: takes jobs from a queue and commits them in groups.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use hutch_types::supervise::Supervisor;
use sqlx::{Connection, SqliteConnection};
use tokio::sync::{mpsc, oneshot};

use super::database::{Durability, Location, Work};
use crate::StoreError;

/// Writes in one transaction at most: bounds how long a reader sees nothing new, and how much a failed commit takes
/// with it.
const GROUP: usize = 64;

/// Why a whole group failed; shared by its jobs.
type Failure = Arc<dyn Error + Send + Sync>;

/// One write on its way through the writer. It is run once, and then answered once.
pub(super) trait Job: Send {
    /// What it does, for errors.
    fn attempted(&self) -> &'static str;
    fn durability(&self) -> Durability;
    /// Whether nobody waits for the answer any more.
    fn is_abandoned(&self) -> bool;
    /// Does the work and keeps the result. False: the work failed and is to be taken back.
    fn run<'c>(&'c mut self, conn: &'c mut SqliteConnection) -> Running<'c>;
    /// Hands the result to the caller, or this error instead of it.
    fn answer(self: Box<Self>, instead: Option<StoreError>);
}

type Running<'c> = Pin<Box<dyn Future<Output = bool> + Send + 'c>>;

/// The one kind of [`Job`].
pub(super) struct Write<T, F> {
    attempted: &'static str,
    durability: Durability,
    work: Option<F>,
    result: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Write<T, F> {
    pub(super) fn new(
        attempted: &'static str,
        durability: Durability,
        work: F,
        reply: oneshot::Sender<Result<T, StoreError>>,
    ) -> Self {
        Self { attempted, durability, work: Some(work), result: None, reply }
    }
}

impl<T, F> Job for Write<T, F>
where
    T: Send,
    F: for<'c> FnOnce(&'c mut SqliteConnection) -> Work<'c, T> + Send,
{
    fn attempted(&self) -> &'static str {
        self.attempted
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn run<'c>(&'c mut self, conn: &'c mut SqliteConnection) -> Running<'c> {
        Box::pin(async move {
            let Some(work) = self.work.take() else { return false };
            let result = work(conn).await;
            let keep = result.is_ok();
            self.result = Some(result);
            keep
        })
    }

    fn answer(self: Box<Self>, instead: Option<StoreError>) {
        let answer = match (instead, self.result) {
            (Some(error), _) => Err(error),
            (None, Some(result)) => result,
            (None, None) => return,
        };
        // The caller may have gone; the write stands all the same.
        drop(self.reply.send(answer));
    }
}

/// Owns the connection that writes.
pub(super) struct Writer {
    location: Location,
    /// `None` after a failure that leaves its state unknown; opened anew with the next group.
    conn: Option<SqliteConnection>,
    /// What `PRAGMA synchronous` is set to on `conn`.
    durability: Durability,
    queue: mpsc::Receiver<Box<dyn Job>>,
    tasks: Supervisor,
}

impl Writer {
    pub(super) fn new(
        location: Location,
        conn: SqliteConnection,
        queue: mpsc::Receiver<Box<dyn Job>>,
        tasks: Supervisor,
    ) -> Self {
        Self { location, conn: Some(conn), durability: Durability::Synced, queue, tasks }
    }

    /// Works until all senders are gone or shutdown is asked for; what is queued then is still done.
    pub(super) async fn run(mut self) {
        let mut group = Vec::with_capacity(GROUP);
        let tasks = self.tasks.clone();
        let stopping = tasks.stopping();
        tokio::pin!(stopping);
        loop {
            tokio::select! {
                taken = self.queue.recv_many(&mut group, GROUP) => if taken == 0 { break },
                () = &mut stopping, if !self.queue.is_closed() => {
                    self.queue.close();
                    continue;
                }
            }
            self.commit(&mut group).await;
        }
        if let Some(conn) = self.conn.take()
            && let Err(error) = conn.close().await
        {
            tracing::warn!(path = %self.location.shown().display(), %error, "closing the database failed");
        }
    }

    /// Commits all jobs of `group` and answers them.
    async fn commit(&mut self, group: &mut Vec<Box<dyn Job>>) {
        group.retain(|job| !job.is_abandoned());
        if group.is_empty() {
            return;
        }
        let failure = self.transact(group).await.err();
        if let Some(error) = &failure {
            tracing::warn!(path = %self.location.shown().display(), %error, writes = group.len(), "a transaction failed");
            self.recover().await;
        }
        for job in group.drain(..) {
            let attempted = job.attempted();
            job.answer(
                failure
                    .as_ref()
                    .map(|error| StoreError::Unavailable { attempted, source: Box::new(Arc::clone(error)) }),
            );
        }
    }

    async fn transact(&mut self, group: &mut [Box<dyn Job>]) -> Result<(), Failure> {
        let conn = match &mut self.conn {
            Some(conn) => conn,
            None => {
                self.durability = Durability::Synced;
                self.conn.insert(self.location.connect().await.map_err(|e| -> Failure { Arc::new(e) })?)
            }
        };
        let durability = if group.iter().any(|job| job.durability() == Durability::Synced) {
            Durability::Synced
        } else {
            Durability::Relaxed
        };
        if durability != self.durability {
            execute(
                conn,
                match durability {
                    Durability::Synced => "PRAGMA synchronous = FULL",
                    Durability::Relaxed => "PRAGMA synchronous = NORMAL",
                },
            )
            .await?;
            self.durability = durability;
        }
        execute(conn, "BEGIN IMMEDIATE").await?;
        for job in group {
            execute(conn, "SAVEPOINT job").await?;
            if !job.run(conn).await {
                execute(conn, "ROLLBACK TO job").await?;
            }
            execute(conn, "RELEASE job").await?;
        }
        execute(conn, "COMMIT").await
    }

    /// After a failed transaction: rolls back, and if that is not possible gives the connection up.
    async fn recover(&mut self) {
        let Some(conn) = &mut self.conn else { return };
        // A database in memory is its connection.
        if execute(conn, "ROLLBACK").await.is_err() && self.location.path.is_some() {
            self.conn = None;
        }
    }
}

async fn execute(conn: &mut SqliteConnection, sql: &'static str) -> Result<(), Failure> {
    match sqlx::query(sql).execute(conn).await {
        Ok(_) => Ok(()),
        Err(error) => Err(Arc::new(error)),
    }
}
