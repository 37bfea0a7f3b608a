//! What a start and a kill cost here, next to the bare runtime on the same bundle.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hutch_runtime::conformance::{Fixture, guest};
use hutch_runtime::{Instance, Runtime};

use crate::rig::Rig;

const ROUNDS: usize = 20;

/// Prints medians. Asserts only what is far off: machines that run tests are busy.
pub async fn print(rig: &Rig) {
    let runtime = rig.open().await;
    assert!(runtime.adopt().await.expect("adopt").adopted.is_empty());
    let (mut raw, mut start, mut ready, mut kill) = (vec![], vec![], vec![], vec![]);
    let mut descriptors = 0;
    for round in 0..ROUNDS {
        if round == 1 {
            descriptors = open_descriptors();
        }
        let clock = Instant::now();
        let instance = runtime.start(rig.spec()).await.expect("start");
        start.push(clock.elapsed());
        guest::wait_healthy(&*instance).await;
        ready.push(clock.elapsed());
        // On the disk and bundle of a running instance, so that only the bare runtime is measured.
        raw.push(bare_run(rig, &*instance));
        let clock = Instant::now();
        instance.kill().await.expect("kill");
        kill.push(clock.elapsed());
    }
    assert!(open_descriptors() <= descriptors + 4, "instances leave descriptors in the daemon");
    for (name, times) in [("bare runc run", raw), ("start", start), ("start to ready", ready), ("kill", kill)]
    {
        let (least, median, most) = summary(times);
        eprintln!("timing: {name}: min {least:?} p50 {median:?} max {most:?}");
        assert!(median < Duration::from_secs(5), "{name} takes {median:?}");
    }
    print_memory(rig, &runtime).await;
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("descriptors").count()
}

fn summary(mut times: Vec<Duration>) -> (Duration, Duration, Duration) {
    times.sort();
    (times[0], times[times.len() / 2], times[times.len() - 1])
}

fn bare_run(rig: &Rig, instance: &dyn Instance) -> Duration {
    let own = rig.data_dir().join("instances").join(instance.spec().id.as_str());
    let scratch = tempfile::tempdir().expect("scratch");
    let config = fs::read_to_string(own.join("config.json")).expect("config");
    let config = config.replace(&format!("/{}\"", instance.spec().id), "/bare\"");
    let config = config.replace("/bare/root\"", &format!("/{}/root\"", instance.spec().id));
    fs::write(scratch.path().join("config.json"), config).expect("config");
    let runc = |args: &[&str]| {
        let mut command = Command::new("runc");
        command.arg("--root").arg(scratch.path().join("state")).args(args);
        let status =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().expect("runc");
        assert!(status.success(), "runc {args:?}");
    };
    let bundle = scratch.path().display().to_string();
    let clock = Instant::now();
    runc(&["run", "--detach", "--bundle", &bundle, "bare"]);
    let elapsed = clock.elapsed();
    runc(&["delete", "--force", "bare"]);
    elapsed
}

/// What an idle instance costs: its processes' proportional memory.
async fn print_memory(rig: &Rig, runtime: &Arc<dyn Runtime>) {
    let instances = [rig.start(runtime).await, rig.start(runtime).await, rig.start(runtime).await];
    // Buffers and threads of the boot go after a moment.
    tokio::time::sleep(Duration::from_secs(4)).await;
    for instance in &instances {
        let record = rig.data_dir().join("instances").join(instance.spec().id.as_str()).join("instance.json");
        let record: serde_json::Value =
            serde_json::from_slice(&fs::read(record).expect("record")).expect("record");
        let namespace = |pid: &str| fs::metadata(format!("/proc/{pid}/ns/pid")).map(|m| (m.dev(), m.ino()));
        let own = namespace(&record["pid"].to_string()).expect("namespace");
        let pids = fs::read_dir("/proc").expect("proc").flatten();
        let pids = pids.filter_map(|entry| entry.file_name().into_string().ok());
        let pids: Vec<String> = pids.filter(|pid| namespace(pid).is_ok_and(|found| found == own)).collect();
        let pss: u64 = pids.iter().map(|pid| pss_kib(Path::new("/proc").join(pid).as_path())).sum();
        let used = instance.stats().await.expect("stats");
        eprintln!(
            "timing: idle instance: PSS {pss} KiB in {} processes, cgroup {} KiB",
            pids.len(),
            used.memory_used_bytes >> 10
        );
        assert!(pss < 12 * 1024, "an idle instance takes {pss} KiB");
    }
    for instance in instances {
        instance.kill().await.expect("kill");
    }
}

fn pss_kib(process: &Path) -> u64 {
    let rollup = fs::read_to_string(process.join("smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
