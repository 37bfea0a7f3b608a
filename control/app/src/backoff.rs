//! Waiting between attempts.

use std::time::Duration;

use hutch_types::ids::fill_random;

/// Pauses that double from `first` up to `cap`, each shortened by up to a half at random so that many waiters do
/// not come back together.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    cap: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, cap: Duration) -> Self {
        Self { next: first, cap }
    }

    /// The pause before the next attempt.
    pub(crate) fn pause(&mut self) -> Duration {
        let full = self.next.min(self.cap);
        self.next = full.saturating_mul(2);
        let mut random = [0u8; 1];
        fill_random(&mut random);
        let [random] = random;
        full - full.mul_f64(f64::from(random) / 512.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_cap() {
        let (first, cap) = (Duration::from_millis(100), Duration::from_secs(1));
        let mut b = Backoff::new(first, cap);
        let early = b.pause();
        assert!(early > first / 2 && early <= first, "{early:?}");
        for _ in 0..80 {
            b.pause();
        }
        let late = b.pause();
        assert!(late > cap / 2 && late <= cap, "{late:?}");
    }
}
