//! Time. Nothing else in Hutch reads the system's clock.
//!
//! Leases are wall-clock deadlines in the store, so that they survive a restart. While the daemon runs, however, a
//! wall clock that is set must not end or prolong a lease. [`Clock::now`] therefore advances with the monotonic
//! clock; when the system's clock was set meanwhile, [`Clock::take_jump`] reports by how much, once, and from then
//! on `now` follows the new setting. The reaper moves all leases by the same amount.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// This time moved into the future by `d`, at most to the end of time.
    #[must_use]
    pub fn plus(self, d: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(d.as_millis()).unwrap_or(i64::MAX)))
    }

    /// How long until `self`, seen from `now`; zero when it has passed.
    pub fn until(self, now: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(now.0)).unwrap_or(0))
    }

    /// RFC 3339 in UTC with milliseconds, as the API shows times.
    pub fn to_rfc3339(self) -> String {
        jiff::Timestamp::from_millisecond(self.0)
            .map(|t| format!("{t:.3}"))
            .unwrap_or_else(|_| "1970-01-01T00:00:00.000Z".to_owned())
    }

    /// Parses RFC 3339.
    ///
    /// # Errors
    /// What was wrong with the text.
    pub fn parse_rfc3339(s: &str) -> Result<Self, jiff::Error> {
        s.parse::<jiff::Timestamp>().map(|t| Self(t.as_millisecond()))
    }
}

/// Jumps smaller than this are drift that a time daemon corrects; they are left alone.
const JUMP: i64 = 2_000;

/// The time source of a process; clones share one state.
#[derive(Debug, Clone)]
pub struct Clock(Arc<Source>);

#[derive(Debug)]
enum Source {
    System(Mutex<Base>),
    Manual(Mutex<Hand>),
}

#[derive(Debug)]
struct Hand {
    now: Timestamp,
    /// A jump that was not taken yet.
    jump: Option<i64>,
}

#[derive(Debug)]
struct Base {
    wall: i64,
    at: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self(Arc::new(Source::System(Mutex::new(Base { wall: system_ms(), at: Instant::now() }))))
    }

    /// A clock for tests that stands still until [`Clock::advance`] is called.
    pub fn manual(start: Timestamp) -> Self {
        Self(Arc::new(Source::Manual(Mutex::new(Hand { now: start, jump: None }))))
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        match &*self.0 {
            Source::System(base) => {
                let base = base.lock();
                Timestamp(base.wall).plus(base.at.elapsed())
            }
            Source::Manual(hand) => hand.lock().now,
        }
    }

    /// Moves a manual clock; a system clock is left alone.
    pub fn advance(&self, d: Duration) {
        if let Source::Manual(hand) = &*self.0 {
            let mut hand = hand.lock();
            hand.now = hand.now.plus(d);
        }
    }

    /// Makes a manual clock behave like a system's clock that is set by `ms`: the next [`Clock::take_jump`] reports it
    /// and [`Clock::now`] follows then. A system clock is left alone.
    pub fn set_by(&self, ms: i64) {
        if let Source::Manual(hand) = &*self.0 {
            hand.lock().jump = Some(ms);
        }
    }

    /// When the system's clock was set since the last call: by how many milliseconds. [`Clock::now`] jumps along.
    pub fn take_jump(&self) -> Option<i64> {
        let base = match &*self.0 {
            Source::System(base) => base,
            Source::Manual(hand) => {
                let mut hand = hand.lock();
                let jump = hand.jump.take()?;
                hand.now = Timestamp(hand.now.0.saturating_add(jump));
                return Some(jump);
            }
        };
        let mut base = base.lock();
        let (system, at) = (system_ms(), Instant::now());
        let expected = Timestamp(base.wall).plus(at.duration_since(base.at)).0;
        let jump = system.saturating_sub(expected);
        if jump.abs() < JUMP {
            return None;
        }
        *base = Base { wall: system, at };
        Some(jump)
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the system's clock")]
fn system_ms() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_rfc3339_and_read_back() {
        let t = Timestamp(1_767_323_045_006);
        assert_eq!(t.to_rfc3339(), "2026-01-02T03:04:05.006Z");
        assert_eq!(Timestamp::parse_rfc3339("2026-01-02T04:04:05.006+01:00").ok(), Some(t));
        assert!(Timestamp::parse_rfc3339("yesterday").is_err());
    }

    #[test]
    fn the_time_until_a_past_deadline_is_zero() {
        assert_eq!(Timestamp(5).until(Timestamp(9)), Duration::ZERO);
        assert_eq!(Timestamp(9).until(Timestamp(5)), Duration::from_millis(4));
    }

    #[test]
    fn a_system_clock_that_is_not_set_reports_no_jump() {
        let c = Clock::system();
        assert_eq!(c.take_jump(), None);
        assert!(c.now().0 > 1_700_000_000_000);
    }

    #[test]
    fn a_manual_clock_jumps_when_the_jump_is_taken() {
        let c = Clock::manual(Timestamp(100_000));
        c.set_by(-60_000);
        assert_eq!(c.now(), Timestamp(100_000));
        assert_eq!(c.take_jump(), Some(-60_000));
        assert_eq!(c.now(), Timestamp(40_000));
        assert_eq!(c.take_jump(), None);
    }

    #[test]
    fn a_clock_that_was_set_reports_the_jump_once() {
        let c = Clock(Arc::new(Source::System(Mutex::new(Base {
            wall: system_ms() - 60_000,
            at: Instant::now(),
        }))));
        let jump = c.take_jump().unwrap();
        assert!((59_000..61_000).contains(&jump), "{jump}");
        assert_eq!(c.take_jump(), None);
    }
}
