//! What the agent itself adds to a create. The fake runtime's own steps take next to nothing.

use std::time::{Duration, Instant};

use hutch_node_api::NodeClient;

use crate::support::Host;

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_costs_little_more_than_one_round_trip() {
    let host = Host::with(|c| c.pool.refill_quiet = Duration::from_secs(3600)).await;
    let (mut claims, mut colds, mut stops) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..5 {
        let size = if round < 4 { 20 } else { 0 };
        host.fill_pool(size).await;
        for _ in 0..20 {
            let request = host.request();
            let id = request.sandbox_id.clone();
            let begin = Instant::now();
            let started = host.agent.start_sandbox(request).await.unwrap();
            if started.from_pool { &mut claims } else { &mut colds }.push(begin.elapsed());
            let begin = Instant::now();
            host.agent.stop_sandbox(&id).await.unwrap();
            stops.push(begin.elapsed());
        }
    }
    for (name, times) in [("claim", &mut claims), ("cold", &mut colds), ("stop", &mut stops)] {
        let [p50, p95, p99] = [50, 95, 99].map(|p| percentile(times, p));
        println!("{name}: n {} p50 {p50:?} p95 {p95:?} p99 {p99:?}", times.len());
    }
    assert!(claims.len() >= 60, "{}", claims.len());
    // Generous: the build may be unoptimised and the machine busy. A missing TCP_NODELAY alone would cost 40 ms.
    assert!(percentile(&mut claims, 50) < Duration::from_millis(20));
}
