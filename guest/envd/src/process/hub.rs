//! Hands the output of one process to any number of clients.
//!
//! A client that reads slowly fills its own queue first. While nobody else waits it then holds the process back, since
//! that is the only way not to lose its data. Others it does not hold back for long: when it takes nothing for
//! [`GRACE`] while another client has taken all there is, it is let go, which it learns by an error after what was
//! queued for it. A client that is gone holds nothing: dropping its [`Subscription`] wakes the pump.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Bytes that one client may be behind before it holds the process back.
const QUEUE_BYTES: usize = 512 * 1024;
/// How long a client with a full queue may hold other clients back.
const GRACE: Duration = Duration::from_secs(1);
/// How often it is looked whether it does. Nobody may have been held back at first: others can join at any time.
const LOOK: Duration = Duration::from_millis(50);

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
    /// This client was let go, since it held others back. Some output did not reach it.
    TooSlow,
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

impl Subscriber {
    /// A client that has left meanwhile needs nothing.
    fn send(&self, event: Event, space: Option<OwnedSemaphorePermit>) {
        drop(self.queue.send(Queued { event, _space: space }));
    }
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

    /// Gives `data` to every client, waiting for those that are too far behind as the module says. Once `hurry` is set
    /// it waits for nobody: what is left then is little, and the caller bounds it.
    pub(super) async fn publish(&self, channel: Channel, data: &Bytes, hurry: &CancellationToken) {
        let subscribers = self.inner.lock().subscribers.clone();
        let size = u32::try_from(data.len().min(QUEUE_BYTES)).unwrap_or(0);
        // Those with room get it at once, however many others have none.
        let (mut behind, event) = (Vec::new(), Event::Output(channel, data.clone()));
        for subscriber in &subscribers {
            match subscriber.budget.clone().try_acquire_many_owned(size) {
                Ok(space) => subscriber.send(event.clone(), Some(space)),
                Err(tokio::sync::TryAcquireError::NoPermits) => behind.push(subscriber),
                Err(tokio::sync::TryAcquireError::Closed) => {}
            }
        }
        join_all(behind.into_iter().map(|s| self.wait_for(s, size, event.clone(), hurry))).await;
    }

    /// Waits until `subscriber` has room, has left, or is let go.
    async fn wait_for(&self, subscriber: &Subscriber, size: u32, event: Event, hurry: &CancellationToken) {
        let mut holds_back_since = None;
        let room = subscriber.budget.clone().acquire_many_owned(size);
        tokio::pin!(room);
        loop {
            tokio::select! {
                biased;
                space = &mut room => {
                    return if let Ok(space) = space { subscriber.send(event, Some(space)) };
                }
                () = hurry.cancelled() => return subscriber.send(event, None),
                () = tokio::time::sleep(LOOK) => {}
            }
            if !self.holds_back(subscriber) {
                holds_back_since = None;
            } else if holds_back_since.get_or_insert_with(Instant::now).elapsed() >= GRACE {
                let is_it = |s: &Subscriber| Arc::ptr_eq(&s.budget, &subscriber.budget);
                self.inner.lock().subscribers.retain(|s| !is_it(s));
                return subscriber.send(Event::TooSlow, None);
            }
        }
    }

    /// Whether someone other than `subscriber` has taken everything and waits for more.
    fn holds_back(&self, subscriber: &Subscriber) -> bool {
        let waits = |s: &Subscriber| !s.queue.is_closed() && s.budget.available_permits() == QUEUE_BYTES;
        let inner = self.inner.lock();
        inner.subscribers.iter().any(|s| !Arc::ptr_eq(&s.budget, &subscriber.budget) && waits(s))
    }

    /// Tells everyone the end and lets them go.
    pub(super) fn end(&self) {
        let mut inner = self.inner.lock();
        inner.ended = true;
        for subscriber in inner.subscribers.drain(..) {
            subscriber.send(Event::End, None);
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

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_let_go_when_it_holds_others_back_and_learns_it() {
        let (hub, hurry) = (Hub::default(), CancellationToken::new());
        let mut stuck = hub.subscribe().unwrap();
        while !blocks(&hub, &hurry).await {}
        // Alone it may take its time.
        let data = chunk(7);
        let publishing = hub.publish(Channel::Stdout, &data, &hurry);
        tokio::pin!(publishing);
        assert!(tokio::time::timeout(GRACE * 60, &mut publishing).await.is_err());
        // Another one that joins while the process is held back is not held back for long.
        let mut other = hub.subscribe().unwrap();
        tokio::time::timeout(GRACE * 2, publishing).await.unwrap();
        for fill in 0..100 {
            hub.publish(Channel::Stdout, &chunk(fill), &hurry).await;
            assert!(matches!(other.next().await, Some(Event::Output(_, data)) if data[0] == fill));
        }
        let mut last = None;
        while let Some(event) = stuck.next().await {
            last = Some(event);
        }
        assert!(matches!(last, Some(Event::TooSlow)), "{last:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_read_at_all_keep_everything_however_uneven_they_are() {
        let (hub, hurry) = (Hub::default(), CancellationToken::new());
        let (mut quick, mut slow) = (hub.subscribe().unwrap(), hub.subscribe().unwrap());
        let publishing = async {
            for fill in 0..200 {
                hub.publish(Channel::Stdout, &chunk(fill), &hurry).await;
            }
            hub.end();
        };
        let (mut taken_quickly, mut taken_slowly) = (0, 0);
        let taking = async {
            while let Some(Event::Output(..)) = quick.next().await {
                taken_quickly += 1;
            }
        };
        let taking_slowly = async {
            while let Some(Event::Output(..)) = slow.next().await {
                taken_slowly += 1;
                tokio::time::sleep(GRACE / 2).await;
            }
        };
        tokio::join!(publishing, taking, taking_slowly);
        assert_eq!((taken_quickly, taken_slowly), (200, 200));
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
