//! The events that control fetches: a bounded ring with a cursor.
//!
//! Cursors start at the time the agent was started, so that a cursor from an earlier life of the daemon is always
//! older than everything kept here and its owner learns that it missed something.

use std::collections::VecDeque;
use std::time::Duration;

use hutch_node_api::{NodeEvent, NodeEvents};
use hutch_types::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Events in one answer.
const PAGE: usize = 1000;
/// Bytes of log text kept over all events; the oldest events go when more comes.
const MAX_BYTES: usize = 32 << 20;

/// The ring. When it is full the oldest event is dropped, which its readers see as `missed`.
#[derive(Debug)]
pub(crate) struct EventRing {
    /// The cursor before the first event of this life.
    base: u64,
    capacity: usize,
    inner: Mutex<Inner>,
    /// The newest cursor; readers wait on it.
    newest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    events: VecDeque<NodeEvent>,
    bytes: usize,
    dropped: u64,
}

impl EventRing {
    /// An empty ring that keeps `capacity` events, at least one.
    pub fn new(capacity: usize, now: Timestamp) -> Self {
        // Room for a thousand events in every millisecond that the life before lasted.
        let base = u64::try_from(now.0).unwrap_or(0).saturating_mul(1000);
        Self { base, capacity: capacity.max(1), inner: Mutex::default(), newest: watch::Sender::new(base) }
    }

    /// Adds an event and wakes who waits. What the event tells must already show in the inventory.
    pub fn push(&self, event: NodeEvent) {
        let mut inner = self.inner.lock();
        inner.bytes += weight(&event);
        inner.events.push_back(event);
        while inner.events.len() > self.capacity || (inner.bytes > MAX_BYTES && inner.events.len() > 1) {
            let gone = inner.events.pop_front().map_or(0, |e| weight(&e));
            inner.bytes = inner.bytes.saturating_sub(gone);
            inner.dropped += 1;
        }
        self.newest.send_modify(|n| *n += 1);
    }

    /// The cursor of the newest event.
    pub fn cursor(&self) -> u64 {
        *self.newest.borrow()
    }

    /// Events after `after`, waiting up to `wait` for the first one. Cancellation safe.
    pub async fn after(&self, after: u64, wait: Duration) -> NodeEvents {
        let mut newest = self.newest.subscribe();
        // Waiting cannot fail: the sender lives in `self`. A cursor of another life does not wait.
        let news = newest.wait_for(|n| *n != after && (after != 0 || *n > self.base));
        drop(tokio::time::timeout(wait, news).await);
        self.page(after)
    }

    fn page(&self, after: u64) -> NodeEvents {
        let inner = self.inner.lock();
        let newest = self.cursor();
        // The cursor before the oldest event kept.
        let before = self.base + inner.dropped;
        let known = (before..=newest).contains(&after);
        let missed = if after == 0 { inner.dropped > 0 } else { !known };
        let from = if known { after } else { before };
        let skip = usize::try_from(from - before).unwrap_or(usize::MAX);
        let events: Vec<_> = inner.events.iter().skip(skip).take(PAGE).cloned().collect();
        let cursor = from + events.len() as u64;
        NodeEvents { events, cursor, missed }
    }
}

/// Roughly the memory an event takes beyond its fixed size.
fn weight(event: &NodeEvent) -> usize {
    match event {
        NodeEvent::Logs { lines, .. } => lines
            .iter()
            .map(|l| {
                64 + l.message.len() + l.fields.iter().map(|(k, v)| 64 + k.len() + v.len()).sum::<usize>()
            })
            .sum(),
        NodeEvent::Exited { .. } | NodeEvent::Sample { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hutch_types::{KillReason, SandboxId};

    fn event(n: usize) -> NodeEvent {
        NodeEvent::Exited { sandbox_id: SandboxId::random(), reason: KillReason::Died, detail: n.to_string() }
    }

    fn details(page: &NodeEvents) -> Vec<String> {
        page.events
            .iter()
            .map(|e| match e {
                NodeEvent::Exited { detail, .. } => detail.clone(),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[tokio::test]
    async fn a_cursor_continues_where_the_last_page_ended() {
        let ring = EventRing::new(10, Timestamp(1_000));
        for n in 0..3 {
            ring.push(event(n));
        }
        let page = ring.after(0, Duration::ZERO).await;
        assert_eq!((details(&page), page.missed), (vec!["0".into(), "1".into(), "2".into()], false));
        assert_eq!(page.cursor, ring.cursor());
        ring.push(event(3));
        let page = ring.after(page.cursor, Duration::ZERO).await;
        assert_eq!((details(&page), page.missed), (vec!["3".into()], false));
        let page = ring.after(page.cursor, Duration::ZERO).await;
        assert_eq!((page.events.len(), page.cursor, page.missed), (0, ring.cursor(), false));
    }

    #[tokio::test]
    async fn what_was_dropped_is_reported_as_missed() {
        let ring = EventRing::new(2, Timestamp(1_000));
        ring.push(event(0));
        let cursor = ring.cursor();
        ring.push(event(1));
        ring.push(event(2));
        let page = ring.after(cursor, Duration::ZERO).await;
        assert_eq!((details(&page), page.missed), (vec!["1".into(), "2".into()], false));
        ring.push(event(3));
        let page = ring.after(cursor, Duration::ZERO).await;
        assert_eq!((details(&page), page.missed), (vec!["2".into(), "3".into()], true));
        assert!(ring.after(0, Duration::ZERO).await.missed);
    }

    #[tokio::test]
    async fn a_cursor_of_an_earlier_or_later_life_is_missed_at_once() {
        let ring = EventRing::new(2, Timestamp(5_000));
        for stale in [4_000_003, 9_000_000] {
            let page = ring.after(stale, Duration::from_secs(60)).await;
            assert_eq!((page.events.len(), page.cursor, page.missed), (0, ring.cursor(), true));
        }
    }

    #[tokio::test]
    async fn a_reader_is_woken_by_the_first_event() {
        let ring = std::sync::Arc::new(EventRing::new(10, Timestamp(1)));
        let reader = ring.clone();
        let wait = async { reader.after(reader.cursor(), Duration::from_secs(60)).await };
        let push = async {
            tokio::task::yield_now().await;
            ring.push(event(7));
        };
        let (page, ()) = tokio::join!(wait, push);
        assert_eq!(details(&page), ["7"]);
    }

    #[tokio::test]
    async fn log_text_is_bounded_over_all_events() {
        let ring = EventRing::new(1000, Timestamp(1));
        let line = hutch_node_api::LogLine {
            at: Timestamp(1),
            level: "info".into(),
            message: "x".repeat(1 << 20),
            fields: Default::default(),
        };
        for _ in 0..40 {
            ring.push(NodeEvent::Logs { sandbox_id: SandboxId::random(), lines: vec![line.clone()] });
        }
        let page = ring.after(0, Duration::ZERO).await;
        assert_eq!((page.events.len(), page.missed), (31, true));
    }
}
