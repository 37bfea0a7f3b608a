//! What instances see of their limits in /proc, and that this outlives lxcfs and the daemon.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hutch_runtime::conformance::{Fixture, guest};
use hutch_runtime::{Instance, Runtime};
use hutch_runtime_oci::OciSupport;

use crate::rig::Rig;

/// Far beyond what anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Prints the memory in KiB, the CPUs of /proc/cpuinfo and those online, and whether it has been up for less than a
/// minute; nothing of that when a file cannot be read.
const LOOK: &str = r#"awk '/MemTotal/{m=$2} /SwapTotal/{s=$2} END{printf "%s %s ", m, s}' /proc/meminfo &&
    grep -c ^processor /proc/cpuinfo && cat /sys/devices/system/cpu/online && grep -c '^cpu[0-9]' /proc/stat &&
    awk '{print ($1 < 60) ? "young" : "old"}' /proc/uptime && cat /proc/loadavg /proc/swaps /proc/diskstats >/dev/null && echo whole"#;

pub async fn instances_show_their_own_limits(rig: &Rig) {
    let support = OciSupport::lxcfs(Path::new("lxcfs"));
    if !support.works() {
        eprintln!("SKIP: instances_show_their_own_limits: {support:?}");
        return;
    }
    let runtime = rig.open_with_lxcfs().await;
    runtime.adopt().await.expect("adopt");
    let pid = pid_of_lxcfs(rig).expect("lxcfs runs");
    let mut spec = rig.spec();
    spec.resources.vcpus = 1;
    let instance = runtime.start(spec).await.expect("start");
    guest::wait_healthy(&*instance).await;
    assert_eq!(look(&*instance).await, "524288 0 1 0 1 young whole");
    // The count that most programs go by needs no lxcfs.
    assert_eq!(guest::shell(&*instance, "nproc").await.stdout.trim(), "1");
    let free = guest::shell(&*instance, "free -m | awk '/^Mem/{print $2}'").await;
    assert_eq!(free.stdout.trim(), "512");

    // What is there goes on when the daemon is replaced.
    drop((runtime, instance));
    let runtime = rig.open_with_lxcfs().await;
    let mut adopted = runtime.adopt().await.expect("adopt").adopted;
    assert_eq!((adopted.len(), pid_of_lxcfs(rig)), (1, Some(pid)));
    let instance = adopted.remove(0);
    assert_eq!(look(&*instance).await, "524288 0 1 0 1 young whole");

    // One that hangs holds up whoever reads these files and nobody else; one that dies holds up nobody.
    kill(pid, "STOP");
    let health = guest::health(&*instance).await;
    kill(pid, "KILL");
    health.expect("envd answers");
    within("a new lxcfs in the instance", async || {
        pid_of_lxcfs(rig).is_some_and(|new| new != pid) && look(&*instance).await.ends_with("whole")
    })
    .await;
    assert_eq!(look(&*instance).await, "524288 0 1 0 1 young whole");
    let mounts = guest::shell(&*instance, "grep -c lxcfs /proc/self/mountinfo").await;
    assert_eq!(mounts.stdout.trim(), "8", "the former ones are gone");
    let later = rig.start(&(Arc::new(runtime.clone()) as Arc<dyn Runtime>)).await;
    assert_eq!(look(&*later).await, format!("524288 0 {} young whole", cpus(2)));

    // Died while there was no daemon.
    drop((runtime, instance, later));
    drop(rig.open().await);
    let pid = pid_of_lxcfs(rig).expect("it runs on");
    kill(pid, "KILL");
    let runtime = rig.open_with_lxcfs().await;
    let adopted = runtime.adopt().await.expect("adopt").adopted;
    assert_eq!(adopted.len(), 2);
    within("lxcfs in all instances", async || {
        look(&*adopted[0]).await.ends_with("whole") && look(&*adopted[1]).await.ends_with("whole")
    })
    .await;
    for instance in adopted {
        instance.kill().await.expect("kill");
    }
    runtime.close().await.expect("close");
    assert_eq!(pid_of_lxcfs(rig), None);
    assert_eq!(rig.leftovers().await, Vec::<String>::new());
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert!(!mounts.contains(&rig.data_dir().display().to_string()), "its mount is gone");
}

/// What an instance with this many CPUs shows, on a host that may have fewer.
fn cpus(wanted: usize) -> String {
    let there = std::thread::available_parallelism().expect("CPUs").get().min(wanted);
    let online = if there == 1 { "0".to_owned() } else { format!("0-{}", there - 1) };
    format!("{there} {online} {there}")
}

async fn look(instance: &dyn Instance) -> String {
    guest::shell(instance, LOOK).await.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn pid_of_lxcfs(rig: &Rig) -> Option<u32> {
    let pid = fs::read_to_string(rig.data_dir().join("lxcfs/pid")).ok()?.trim().parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    (name.trim() == "lxcfs").then_some(pid)
}

fn kill(pid: u32, signal: &str) {
    let status = std::process::Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status();
    assert!(status.expect("kill").success());
}

async fn within(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < PATIENCE, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
