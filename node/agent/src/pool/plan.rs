//! Decides which instance to boot next. Pure: it is given figures and returns a decision.

use tokio::time::Instant;

/// What the decision needs to know of one shelf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShelfView {
    /// Instances wanted ready.
    pub target: usize,
    /// Instances ready.
    pub ready: usize,
    /// Instances that boot.
    pub booting: usize,
    /// Requests that wait for an instance.
    pub waiting: usize,
    /// The ticket of the first waiting request that no boot is under way for; lower came earlier.
    pub first_unserved: Option<u64>,
    /// No refill before this time.
    pub not_before: Option<Instant>,
}

/// Bounds over all shelves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Boots at a time.
    pub starts: usize,
    /// Of those, refills that nobody waits for.
    pub refills: usize,
    /// The host is short of memory: no refills.
    pub pressure: bool,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Boot one for this shelf, then ask again.
    Boot(usize),
    /// Nothing until this time, unless something changes.
    WaitUntil(Instant),
    /// Nothing, unless something changes.
    Rest,
}

/// A request that waits comes first, in the order of arrival; it takes whichever boot of its shelf ends first, so that
/// a refill under way serves it. Refills begin only when nobody waits anywhere.
pub(super) fn next(shelves: &[ShelfView], limits: Limits, now: Instant) -> Next {
    let booting: usize = shelves.iter().map(|s| s.booting).sum();
    if booting >= limits.starts.max(1) {
        return Next::Rest;
    }
    let unserved = shelves.iter().enumerate().filter_map(|(i, s)| s.first_unserved.map(|ticket| (ticket, i)));
    if let Some((_, shelf)) = unserved.min() {
        return Next::Boot(shelf);
    }
    let anyone_waits = shelves.iter().any(|s| s.waiting > 0);
    if anyone_waits || limits.pressure || booting >= limits.refills {
        return Next::Rest;
    }
    let lacking = || shelves.iter().enumerate().filter(|(_, s)| s.ready + s.booting < s.target);
    let due = lacking().filter(|(_, s)| s.not_before.is_none_or(|t| t <= now));
    if let Some((shelf, _)) = due.min_by_key(|(_, s)| s.ready) {
        return Next::Boot(shelf);
    }
    lacking().filter_map(|(_, s)| s.not_before).min().map_or(Next::Rest, Next::WaitUntil)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const LIMITS: Limits = Limits { starts: 4, refills: 1, pressure: false };

    fn shelf(target: usize, ready: usize, booting: usize, waiting: usize) -> ShelfView {
        let first_unserved = (waiting > booting).then_some(10 + booting as u64);
        ShelfView { target, ready, booting, waiting, first_unserved, not_before: None }
    }

    fn check(shelves: &[ShelfView], limits: Limits) -> Next {
        next(shelves, limits, Instant::now())
    }

    #[test]
    fn the_request_that_came_first_is_served_first() {
        let mut late = shelf(0, 0, 0, 1);
        late.first_unserved = Some(11);
        assert_eq!(check(&[late, shelf(0, 0, 0, 3)], LIMITS), Next::Boot(1));
    }

    #[test]
    fn boots_are_bounded_over_all_shelves() {
        assert_eq!(check(&[shelf(0, 0, 2, 9), shelf(4, 0, 2, 9)], LIMITS), Next::Rest);
        assert_eq!(check(&[shelf(0, 0, 2, 9), shelf(4, 0, 1, 0)], LIMITS), Next::Boot(0));
    }

    #[test]
    fn a_refill_under_way_serves_a_request() {
        assert_eq!(check(&[shelf(4, 0, 1, 1)], LIMITS), Next::Rest);
        assert_eq!(check(&[shelf(4, 0, 1, 2)], LIMITS), Next::Boot(0));
    }

    #[test]
    fn refills_pause_while_anybody_waits_and_under_pressure() {
        assert_eq!(check(&[shelf(4, 2, 0, 0)], LIMITS), Next::Boot(0));
        assert_eq!(check(&[shelf(4, 2, 0, 0), shelf(0, 0, 1, 1)], LIMITS), Next::Rest);
        assert_eq!(check(&[shelf(4, 2, 0, 0)], Limits { pressure: true, ..LIMITS }), Next::Rest);
        assert_eq!(check(&[shelf(4, 2, 1, 0)], LIMITS), Next::Rest, "one refill at a time");
        assert_eq!(check(&[shelf(4, 4, 0, 0)], LIMITS), Next::Rest);
        assert_eq!(check(&[shelf(4, 0, 0, 1)], Limits { pressure: true, ..LIMITS }), Next::Boot(0));
    }

    #[test]
    fn the_emptiest_shelf_is_refilled_first_and_a_quiet_time_is_kept() {
        assert_eq!(check(&[shelf(4, 2, 0, 0), shelf(4, 1, 0, 0)], LIMITS), Next::Boot(1));
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let quiet = ShelfView { not_before: Some(later), ..shelf(4, 2, 0, 0) };
        assert_eq!(next(&[quiet], LIMITS, now), Next::WaitUntil(later));
        assert_eq!(next(&[quiet], LIMITS, later), Next::Boot(0));
    }
}
