//! How much each sandbox has in flight.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Counts what is in flight, in total and per source, and refuses beyond either limit.
#[derive(Debug)]
pub(super) struct Sources {
    most: usize,
    most_per_source: usize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_source: HashMap<Ipv4Addr, usize>,
}

/// One thing in flight, until it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    sources: Arc<Sources>,
    source: Ipv4Addr,
}

impl Sources {
    pub(super) fn new(most: usize, most_per_source: usize) -> Self {
        Self { most, most_per_source, counts: Mutex::default() }
    }

    /// `None` when a limit is reached.
    pub(super) fn admit(self: &Arc<Self>, source: Ipv4Addr) -> Option<Permit> {
        let mut counts = self.counts.lock();
        let of_source = counts.by_source.get(&source).copied().unwrap_or(0);
        if counts.total >= self.most || of_source >= self.most_per_source {
            return None;
        }
        counts.total += 1;
        counts.by_source.insert(source, of_source + 1);
        Some(Permit { sources: Arc::clone(self), source })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.sources.counts.lock();
        counts.total = counts.total.saturating_sub(1);
        let left = counts.by_source.get(&self.source).copied().unwrap_or(0).saturating_sub(1);
        if left == 0 {
            counts.by_source.remove(&self.source);
        } else {
            counts.by_source.insert(self.source, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_cannot_take_everything_and_nothing_is_left_behind() {
        let sources = Arc::new(Sources::new(3, 2));
        let (greedy, modest) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 3));
        let first = sources.admit(greedy).expect("room");
        let second = sources.admit(greedy).expect("room");
        assert!(sources.admit(greedy).is_none(), "its share is used up");
        let third = sources.admit(modest).expect("others have room");
        assert!(sources.admit(modest).is_none(), "the total is used up");
        drop(first);
        let fourth = sources.admit(modest).expect("room again");
        drop((second, third, fourth));
        assert_eq!(sources.counts.lock().total, 0);
        assert!(sources.counts.lock().by_source.is_empty());
    }
}
