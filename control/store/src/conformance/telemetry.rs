//! Samples and log lines.

use hutch_types::{SandboxId, Timestamp};

use super::Subject;
use super::fixture::{at, pairs};
use crate::{LogEntry, LogQuery, MetricPoint, SortOrder, Store};

pub(super) fn sample(id: &SandboxId, ms: i64) -> MetricPoint {
    MetricPoint {
        sandbox: id.clone(),
        at: at(ms),
        cpu_count: 2,
        cpu_used_pct: 12.34,
        mem_used_bytes: 5_000_000_000,
        mem_total_bytes: 8 << 30,
        mem_cache_bytes: 1,
        disk_used_bytes: 0,
        disk_total_bytes: 1 << 40,
    }
}

pub(super) fn line(id: &SandboxId, ms: i64, level: &str, message: &str) -> LogEntry {
    LogEntry {
        sandbox: id.clone(),
        at: at(ms),
        level: level.to_owned(),
        message: message.to_owned(),
        fields: pairs(&[("logger", "envd"), ("ключ", "\"")]),
    }
}

/// Room for all lines of a test.
pub(super) const ROOM: u64 = 1 << 30;

fn times(points: &[MetricPoint]) -> Vec<i64> {
    points.iter().map(|p| p.at.0 - at(0).0).collect()
}

pub(super) async fn samples_come_oldest_first_within_their_range(subject: &dyn Subject) {
    let store = subject.open().await;
    let (id, other) = (SandboxId::random(), SandboxId::random());
    store.insert_metrics(&[]).await.unwrap();
    store
        .insert_metrics(&[sample(&id, 30), sample(&other, 15), sample(&id, 10), sample(&id, 20)])
        .await
        .unwrap();
    let read = async |start: Option<i64>, end: Option<i64>| {
        times(&store.metrics(&id, start.map(at), end.map(at), 1).await.unwrap())
    };
    assert_eq!(read(None, None).await, [10, 20, 30]);
    assert_eq!(read(Some(20), None).await, [20, 30]);
    assert_eq!(read(None, Some(20)).await, [10, 20]);
    assert_eq!(read(Some(11), Some(19)).await, [0; 0]);
    assert_eq!(read(Some(30), Some(10)).await, [0; 0]);
    assert_eq!(store.metrics(&id, None, Some(at(10)), 1).await.unwrap(), [sample(&id, 10)]);
    assert_eq!(store.metrics(&SandboxId::random(), None, None, 1).await.unwrap(), []);
    let extent = async |start: Option<i64>, end: Option<i64>| {
        let extent = store.metrics_extent(&id, start.map(at), end.map(at)).await.unwrap();
        extent.map(|(first, last)| (first.0 - at(0).0, last.0 - at(0).0))
    };
    assert_eq!(extent(None, None).await, Some((10, 30)));
    assert_eq!(extent(Some(11), None).await, Some((20, 30)));
    assert_eq!(extent(None, Some(20)).await, Some((10, 20)));
    assert_eq!(extent(Some(11), Some(19)).await, None);

    let odd = MetricPoint { cpu_used_pct: f64::NAN, mem_used_bytes: u64::MAX, ..sample(&id, 40) };
    store.insert_metrics(&[odd]).await.unwrap();
    let stored = store.metrics(&id, Some(at(40)), None, 1).await.unwrap();
    assert_eq!(stored.iter().map(|p| p.cpu_used_pct).collect::<Vec<_>>(), [0.0], "no number is no use");

    let again = MetricPoint { cpu_count: 4, ..sample(&id, 10) };
    store.insert_metrics(std::slice::from_ref(&again)).await.unwrap();
    assert_eq!(store.metrics(&id, None, Some(at(10)), 1).await.unwrap(), [again], "one sample a moment");
}

pub(super) async fn samples_of_the_same_step_become_one_with_the_peaks(subject: &dyn Subject) {
    let store = subject.open().await;
    let id = SandboxId::random();
    // Aligned, so that steps begin where the test counts from.
    let base = at(0).0 / 1000 * 1000 + 1000;
    let sample = |ms: i64, mem: u64, cpu: f64| MetricPoint {
        at: Timestamp(base + ms),
        mem_used_bytes: mem,
        cpu_used_pct: cpu,
        ..sample(&id, 0)
    };
    store
        .insert_metrics(&[
            sample(0, 9, 1.0),
            sample(999, 1, 50.0),
            sample(1000, 2, 3.0),
            sample(2500, 3, 4.0),
            sample(2999, 7, 2.0),
        ])
        .await
        .unwrap();
    let read = async |start: i64, end: i64, step| -> Vec<(i64, u64, f64)> {
        let points = store.metrics(&id, Some(Timestamp(base + start)), Some(Timestamp(base + end)), step);
        points.await.unwrap().iter().map(|p| (p.at.0 - base, p.mem_used_bytes, p.cpu_used_pct)).collect()
    };
    assert_eq!(read(0, 9999, 1000).await, [(999, 9, 50.0), (1000, 2, 3.0), (2999, 7, 4.0)]);
    assert_eq!(
        read(0, 2500, 1000).await,
        [(999, 9, 50.0), (1000, 2, 3.0), (2500, 3, 4.0)],
        "none beyond the end"
    );
    assert_eq!(read(1, 9999, 1_000_000_000).await, [(2999, 7, 50.0)]);
    assert_eq!(read(0, 9999, 0).await.len(), 5);
}

pub(super) async fn the_latest_sample_of_each_is_found(subject: &dyn Subject) {
    let store = subject.open().await;
    let (a, b, silent) = (SandboxId::random(), SandboxId::random(), SandboxId::random());
    store.insert_metrics(&[sample(&a, 2), sample(&a, 1), sample(&b, 9)]).await.unwrap();
    let mut latest = store.latest_metrics(&[b.clone(), a.clone(), silent, b.clone()]).await.unwrap();
    latest.sort_by_key(|p| p.at);
    assert_eq!(latest, [sample(&a, 2), sample(&b, 9)]);
    assert_eq!(store.latest_metrics(&[]).await.unwrap(), []);
}

fn all_lines(id: &SandboxId) -> LogQuery {
    LogQuery {
        sandbox: id.clone(),
        cursor: None,
        order: SortOrder::Asc,
        min_level: None,
        search: None,
        limit: 1000,
    }
}

async fn messages(store: &dyn Store, query: LogQuery) -> Vec<String> {
    store.logs(query).await.unwrap().into_iter().map(|l| l.message).collect()
}

pub(super) async fn log_lines_are_read_in_both_directions(subject: &dyn Subject) {
    let store = subject.open().await;
    let id = SandboxId::random();
    store.insert_logs(&[], ROOM).await.unwrap();
    let lines = [
        line(&id, 10, "info", "one"),
        line(&id, 20, "info", "two"),
        line(&id, 20, "info", "three"),
        line(&SandboxId::random(), 20, "info", "another's"),
        line(&id, 30, "info", "four"),
    ];
    store.insert_logs(&lines, ROOM).await.unwrap();
    assert_eq!(store.logs(all_lines(&id)).await.unwrap()[..2], lines[..2]);
    let read = async |order, cursor: Option<i64>, limit| {
        messages(&*store, LogQuery { order, cursor: cursor.map(at), limit, ..all_lines(&id) }).await
    };
    assert_eq!(read(SortOrder::Asc, None, 1000).await, ["one", "two", "three", "four"]);
    assert_eq!(read(SortOrder::Desc, None, 1000).await, ["four", "three", "two", "one"]);
    assert_eq!(read(SortOrder::Asc, Some(20), 1000).await, ["two", "three", "four"]);
    assert_eq!(read(SortOrder::Desc, Some(20), 1000).await, ["three", "two", "one"]);
    assert_eq!(read(SortOrder::Asc, None, 2).await, ["one", "two"]);
    assert_eq!(read(SortOrder::Desc, None, 2).await, ["four", "three"]);
    assert_eq!(read(SortOrder::Asc, Some(31), 2).await, Vec::<String>::new());
    assert_eq!(messages(&*store, all_lines(&SandboxId::random())).await, Vec::<String>::new());
}

pub(super) async fn log_lines_are_filtered_by_level_and_text(subject: &dyn Subject) {
    let store = subject.open().await;
    let id = SandboxId::random();
    let lines: Vec<_> = ["debug", "info", "warn", "error"]
        .iter()
        .zip(1..)
        .map(|(level, ms)| line(&id, ms, level, &format!("{level}: 100% of Größe_{ms}")))
        .collect();
    store.insert_logs(&lines, ROOM).await.unwrap();
    for (level, expected) in [("debug", 4), ("info", 3), ("warn", 2), ("error", 1)] {
        let query = LogQuery { min_level: Some(level.to_owned()), ..all_lines(&id) };
        assert_eq!(messages(&*store, query).await.len(), expected, "{level}");
    }
    for (search, expected) in
        [("Größe", 4), ("größe", 0), ("warn", 1), ("%", 4), ("100%_", 0), ("e_2", 1), ("", 4), ("'", 0)]
    {
        let query = LogQuery { search: Some(search.to_owned()), ..all_lines(&id) };
        assert_eq!(messages(&*store, query).await.len(), expected, "{search:?}");
    }
    let both =
        LogQuery { min_level: Some("warn".to_owned()), search: Some("err".to_owned()), ..all_lines(&id) };
    assert_eq!(messages(&*store, both).await.len(), 1);
}

pub(super) async fn the_oldest_lines_make_room_for_new_ones(subject: &dyn Subject) {
    let store = subject.open().await;
    let (id, other) = (SandboxId::random(), SandboxId::random());
    let text = "é".repeat(450);
    let lines = |id: &SandboxId, from: i64, to: i64| -> Vec<_> {
        (from..to).map(|ms| line(id, ms, "info", &text)).collect()
    };
    // A line takes more than 900 and less than 1100 bytes.
    store.insert_logs(&lines(&other, 0, 100), ROOM).await.unwrap();
    for batch in 0..20 {
        store.insert_logs(&lines(&id, batch * 10, batch * 10 + 10), 50_000).await.unwrap();
        let kept = store.logs(all_lines(&id)).await.unwrap();
        assert!(kept.len() <= 55, "{}", kept.len());
        assert_eq!(kept.last().map(|l| l.at), Some(at(batch * 10 + 9)), "the newest stay");
        assert!(batch < 4 || kept.len() >= 40, "no more than needed goes: {}", kept.len());
        assert!(kept.windows(2).all(|w| w[1].at.0 - w[0].at.0 == 1), "what goes is the oldest");
    }
    assert_eq!(store.logs(all_lines(&other)).await.unwrap().len(), 100, "each has room of its own");

    store.insert_logs(&lines(&id, 500, 501), 10).await.unwrap();
    assert_eq!(store.logs(all_lines(&id)).await.unwrap().len(), 1, "the newest line stays, however long");

    // What purging removes makes room as well.
    store.purge_telemetry(at(600)).await.unwrap();
    store.insert_logs(&lines(&id, 700, 740), 50_000).await.unwrap();
    assert_eq!(store.logs(all_lines(&id)).await.unwrap().len(), 40);
}

pub(super) async fn old_telemetry_is_purged(subject: &dyn Subject) {
    let store = subject.open().await;
    let id = SandboxId::random();
    let points: Vec<_> = (0..5000).map(|ms| sample(&id, ms)).collect();
    let lines: Vec<_> = (0..100).map(|ms| line(&id, ms, "info", "x")).collect();
    store.insert_metrics(&points).await.unwrap();
    store.insert_logs(&lines, ROOM).await.unwrap();
    assert_eq!(store.purge_telemetry(at(0)).await.unwrap(), 0);
    assert_eq!(store.purge_telemetry(at(4990)).await.unwrap(), 4990 + 100);
    assert_eq!(store.metrics(&id, None, None, 1).await.unwrap().len(), 10);
    assert_eq!(store.purge_telemetry(Timestamp(i64::MAX)).await.unwrap(), 10);
    assert_eq!(store.logs(all_lines(&id)).await.unwrap(), []);
}
