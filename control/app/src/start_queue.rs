//! The line in which starts wait, so that a burst neither swamps the node nor drops a connection.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::{AppError, ErrorClass};
use crate::limits::Limits;

/// A bounded line in front of a bounded number of starts.
#[derive(Debug)]
pub(crate) struct StartQueue {
    slots: Semaphore,
    concurrent: usize,
    max_queued: usize,
    /// Starts that hold a place: waiting or running.
    places: AtomicUsize,
    wait: Duration,
}

/// A place in the line. Dropping it gives it up, and with it the right to start.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    queue: &'a StartQueue,
}

impl StartQueue {
    pub(crate) fn new(limits: &Limits) -> Self {
        let concurrent = usize::try_from(limits.max_concurrent_starts).unwrap_or(1).max(1);
        Self {
            slots: Semaphore::new(concurrent),
            concurrent,
            max_queued: usize::try_from(limits.max_queued_starts).unwrap_or(usize::MAX),
            places: AtomicUsize::new(0),
            wait: Duration::from_secs(limits.start_queue_seconds.into()),
        }
    }

    /// Takes a place at the end of the line, or says that the line is full.
    pub(crate) fn enter(&self) -> Result<Place<'_>, AppError> {
        let bound = self.concurrent.saturating_add(self.max_queued);
        let taken = self.places.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
            (n < bound).then_some(n.saturating_add(1))
        });
        match taken {
            Ok(_) => Ok(Place { queue: self }),
            Err(_) => Err(AppError::new(
                ErrorClass::LimitReached,
                format!(
                    "too many sandboxes are being started: {} wait already, the limit (limits.max_queued_starts); \
                     please try again",
                    self.max_queued
                ),
            )),
        }
    }
}

impl<'a> Place<'a> {
    /// Waits for the turn. The start may run until the returned permit is dropped.
    pub(crate) async fn turn(&self) -> Result<SemaphorePermit<'a>, AppError> {
        match tokio::time::timeout(self.queue.wait, self.queue.slots.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(closed)) => Err(AppError::internal(closed)),
            Err(_) => Err(AppError::new(
                ErrorClass::Unavailable,
                format!(
                    "the sandbox could not be started within {} seconds of waiting in line \
                     (limits.start_queue_seconds); please try again",
                    self.queue.wait.as_secs()
                ),
            )
            .with_code("sandbox_capacity_unavailable")),
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.queue.places.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(concurrent: u32, queued: u32) -> StartQueue {
        StartQueue::new(&Limits {
            max_concurrent_starts: concurrent,
            max_queued_starts: queued,
            start_queue_seconds: 5,
            ..Limits::default()
        })
    }

    #[tokio::test]
    async fn the_line_is_bounded_and_a_place_given_up_is_free_again() {
        let q = queue(1, 1);
        let first = q.enter().unwrap();
        let second = q.enter().unwrap();
        let refused = q.enter().unwrap_err();
        assert_eq!(refused.class(), ErrorClass::LimitReached);
        assert!(refused.message().contains("limits.max_queued_starts"));
        drop(second);
        let third = q.enter().unwrap();
        drop((first, third));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_is_sent_away() {
        let q = queue(1, 1);
        let (a, b) = (q.enter().unwrap(), q.enter().unwrap());
        let running = a.turn().await.unwrap();
        let refused = b.turn().await.unwrap_err();
        assert_eq!(refused.class(), ErrorClass::Unavailable);
        drop(running);
        assert!(b.turn().await.is_ok());
    }
}
