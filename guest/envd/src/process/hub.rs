//! Hands the output of one process to any number of clients.
//!
//! A client that reads slowly fills its own queue first; only then does it hold the process back, since that is the
//! only way not to lose its data. A client that is gone holds nothing: dropping its [`Subscription`] wakes the pump.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Bytes that one client may be behind before it holds the process back.
const QUEUE_BYTES: usize = 512 * 1024;

/// Where output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Channel {
    Stdout,
    Stderr,
    Pty,
}

/// What a client sees of a process after its start.
#[derive(Debug, Clone)]
pub(super) enum Event {
    Output(Channel, Bytes),
    End,
}

/// The clients of one process.
#[derive(Debug, Default)]
pub(super) struct Hub {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    ended: bool,
    subscribers: Vec<Subscriber>,
}

/// The channel itself has no bound: the budget is what bounds it.
#[derive(Debug, Clone)]
struct Subscriber {
    queue: UnboundedSender<Queued>,
    budget: Arc<Semaphore>,
}

#[derive(Debug)]
struct Queued {
    event: Event,
    /// Given back when the client takes the event.
    _space: Option<OwnedSemaphorePermit>,
}

/// One client's end. Dropping it unsubscribes.
#[derive(Debug)]
pub(super) struct Subscription {
    queue: UnboundedReceiver<Queued>,
    budget: Arc<Semaphore>,
}

impl Subscription {
    /// The next event; `None` after the end. Loses nothing when cancelled.
    pub(super) async fn next(&mut self) -> Option<Event> {
        self.queue.recv().await.map(|queued| queued.event)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.budget.close();
    }
}

impl Hub {
    /// A client that sees everything from now on; `None` when all is over.
    pub(super) fn subscribe(&self) -> Option<Subscription> {
        let mut inner = self.inner.lock();
        if inner.ended {
            return None;
        }
        let (sender, queue) = mpsc::unbounded_channel();
        let budget = Arc::new(Semaphore::new(QUEUE_BYTES));
        inner.subscribers.push(Subscriber { queue: sender, budget: budget.clone() });
        Some(Subscription { queue, budget })
    }

    /// Whether anyone would see output.
    pub(super) fn has_subscribers(&self) -> bool {
        let mut inner = self.inner.lock();
        inner.subscribers.retain(|s| !s.queue.is_closed());
        !inner.subscribers.is_empty()
    }

    /// Gives `data` to every client, waiting for those that are too far behind. Once `hurry` is set it waits for
    /// nobody: what is left then is little, and the caller bounds it.
    pub(super) async fn publish(&self, channel: Channel, data: &Bytes, hurry: &CancellationToken) {
        let subscribers = self.inner.lock().subscribers.clone();
        let size = u32::try_from(data.len().min(QUEUE_BYTES)).unwrap_or(0);
        for subscriber in subscribers {
            let space = tokio::select! {
                biased;
                space = subscriber.budget.clone().acquire_many_owned(size) => match space {
                    Ok(space) => Some(space),
                    Err(_closed) => continue,
                },
                () = hurry.cancelled() => None,
            };
            // A client that left meanwhile needs nothing.
            drop(
                subscriber.queue.send(Queued { event: Event::Output(channel, data.clone()), _space: space }),
            );
        }
    }

    /// Tells everyone the end and lets them go.
    pub(super) fn end(&self) {
        let mut inner = self.inner.lock();
        inner.ended = true;
        for subscriber in inner.subscribers.drain(..) {
            drop(subscriber.queue.send(Queued { event: Event::End, _space: None }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn chunk(fill: u8) -> Bytes {
        Bytes::from(vec![fill; 32 * 1024])
    }

    async fn blocks(hub: &Hub, hurry: &CancellationToken) -> bool {
        tokio::time::timeout(Duration::from_millis(50), hub.publish(Channel::Stdout, &chunk(9), hurry))
            .await
            .is_err()
    }

    #[tokio::test]
    async fn a_slow_client_holds_the_process_back_only_when_its_queue_is_full_and_loses_nothing() {
        let (hub, hurry) = (Hub::default(), CancellationToken::new());
        let mut slow = hub.subscribe().unwrap();
        let fits = QUEUE_BYTES / chunk(0).len();
        for i in 0..fits {
            hub.publish(Channel::Stdout, &chunk(u8::try_from(i).unwrap()), &hurry).await;
        }
        assert!(blocks(&hub, &hurry).await);
        for i in 0..fits {
            let Some(Event::Output(Channel::Stdout, data)) = slow.next().await else { panic!("lost {i}") };
            assert_eq!(usize::from(data[0]), i);
        }
        assert!(!blocks(&hub, &hurry).await);
    }

    #[tokio::test]
    async fn a_client_that_leaves_frees_the_process_at_once() {
        let (hub, hurry) = (Hub::default(), CancellationToken::new());
        let stuck = hub.subscribe().unwrap();
        while !blocks(&hub, &hurry).await {}
        let data = chunk(1);
        let publishing = hub.publish(Channel::Stderr, &data, &hurry);
        let leaving = async { drop(stuck) };
        tokio::join!(publishing, leaving);
        assert!(!hub.has_subscribers());
    }

    #[tokio::test]
    async fn after_the_exit_nobody_is_waited_for_and_the_end_comes_last() {
        let (hub, hurry) = (Hub::default(), CancellationToken::new());
        let mut slow = hub.subscribe().unwrap();
        while !blocks(&hub, &hurry).await {}
        hurry.cancel();
        assert!(!blocks(&hub, &hurry).await);
        hub.end();
        assert!(hub.subscribe().is_none());
        let mut last = None;
        while let Some(event) = slow.next().await {
            last = Some(event);
        }
        assert!(matches!(last, Some(Event::End)));
    }
}
