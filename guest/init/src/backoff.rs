//! How long to wait before envd is started again.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);
/// Who lived this long is not in a crash loop.
const HEALTHY: Duration = Duration::from_secs(30);

/// Doubles the pause from life to life, up to a bound, until one of them is long enough.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    last: Option<Duration>,
}

impl Backoff {
    /// The pause after a life of `lived`.
    pub(crate) fn next(&mut self, lived: Duration) -> Duration {
        let pause = match self.last {
            Some(last) if lived < HEALTHY => (last * 2).min(LONGEST),
            _ => FIRST,
        };
        self.last = Some(pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_start_over_after_a_healthy_life() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u128> = (0..9).map(|_| backoff.next(Duration::from_secs(1)).as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.next(HEALTHY), FIRST);
        assert_eq!(backoff.next(Duration::ZERO), FIRST * 2);
    }
}
