//! How often a silent stream says that it is alive.

use std::time::Duration;

use http::HeaderMap;

const DEFAULT: Duration = Duration::from_secs(90);

/// What `Keepalive-Ping-Interval` asks for, in seconds; 90 s when it is missing or makes no sense.
pub fn keepalive_interval(headers: &HeaderMap) -> Duration {
    headers
        .get("keepalive-ping-interval")
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .filter(|seconds| (1..=86_400).contains(seconds))
        .map_or(DEFAULT, Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_means_the_default() {
        let check = |value: &str, seconds: u64| {
            let headers =
                HeaderMap::from_iter([("keepalive-ping-interval".parse().unwrap(), value.parse().unwrap())]);
            assert_eq!(keepalive_interval(&headers), Duration::from_secs(seconds), "{value}");
        };
        check("50", 50);
        check("0", 90);
        check("-1", 90);
        check("soon", 90);
        check("18446744073709551615", 90);
        assert_eq!(keepalive_interval(&HeaderMap::new()), DEFAULT);
    }
}
