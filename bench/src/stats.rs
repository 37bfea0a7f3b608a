//! Percentiles and the table.

use std::time::Duration;

use serde_json::{Value, json};

/// Rows of figures, printed at the end.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<(String, Vec<Duration>)>,
    notes: Vec<String>,
}

impl Table {
    pub fn add(&mut self, name: &str, mut times: Vec<Duration>) {
        times.sort_unstable();
        eprintln!("measured: {name}");
        self.rows.push((name.to_owned(), times));
    }

    /// A figure that is no time.
    pub fn note(&mut self, text: &str) {
        eprintln!("measured: {text}");
        self.notes.push(text.to_owned());
    }

    pub fn render(&self) -> String {
        let mut out = format!(
            "\n{:<52} {:>5} {:>9} {:>9} {:>9} {:>9}\n",
            "milliseconds", "n", "p50", "p95", "p99", "max"
        );
        for (name, times) in &self.rows {
            out.push_str(&format!(
                "{name:<52} {:>5} {:>9.2} {:>9.2} {:>9.2} {:>9.2}\n",
                times.len(),
                ms(percentile(times, 50)),
                ms(percentile(times, 95)),
                ms(percentile(times, 99)),
                ms(percentile(times, 100)),
            ));
        }
        for note in &self.notes {
            out.push_str(note);
            out.push('\n');
        }
        out
    }

    pub fn to_json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|(name, times)| {
                json!({
                    "name": name,
                    "n": times.len(),
                    "p50_ms": ms(percentile(times, 50)),
                    "p95_ms": ms(percentile(times, 95)),
                    "p99_ms": ms(percentile(times, 99)),
                    "max_ms": ms(percentile(times, 100)),
                })
            })
            .collect();
        json!({"rows": rows, "notes": self.notes})
    }
}

/// The smallest time that at least `percent` of the sorted `times` do not exceed.
fn percentile(times: &[Duration], percent: usize) -> Duration {
    let rank = (times.len() * percent).div_ceil(100).max(1);
    times.get(rank - 1).copied().unwrap_or_default()
}

/// The median of `times`, in whatever order they are.
pub fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    percentile(&sorted, 50)
}

/// The shortest of `times`: what a machine does when nothing else runs on it for a moment.
pub fn fastest(times: &[Duration]) -> Duration {
    times.iter().min().copied().unwrap_or_default()
}

pub fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let times: Vec<Duration> = (1..=20).map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 50).as_millis(), 10);
        assert_eq!(percentile(&times, 95).as_millis(), 19);
        assert_eq!(percentile(&times, 99).as_millis(), 20);
        assert_eq!(percentile(&times, 100).as_millis(), 20);
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
