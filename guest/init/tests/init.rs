//! Runs the real binary, outside a PID namespace, with a shell script as envd.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SCRIPT: &str = r#"#!/bin/sh
printf '%s %s %s %s\n' "$$" "$HUTCH_SECRET" "$1" "$HUTCH_RESTART" >> "$OUT/starts"
# An orphan that ends at once: init has to reap it.
(sh -c 'echo $$ > "$OUT/orphan.tmp"; mv "$OUT/orphan.tmp" "$OUT/orphan"' &) &
trap 'echo term > "$OUT/stopped"; exit 0' TERM
while :; do sleep 0.05; done
"#;

struct Init {
    child: Child,
    folder: tempfile::TempDir,
}

impl Init {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("envd");
        fs::write(&script, SCRIPT).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_init"))
            .args([script.as_os_str(), "argument".as_ref()])
            .env("OUT", folder.path())
            .env("HUTCH_SECRET", "hunter2hunter2")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The n-th start of envd: pid, secret, argument, whether it is a restart.
    fn start_line(&self, n: usize) -> Vec<String> {
        let line = wait_for("a start of envd", || {
            let starts = fs::read_to_string(self.path("starts")).ok()?;
            starts.lines().nth(n).map(str::to_owned)
        });
        line.split(' ').map(str::to_owned).collect()
    }

    fn signal(pid: &str, signal: &str) {
        assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
    }
}

impl Drop for Init {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            Self::signal(&self.child.id().to_string(), "-TERM");
            self.child.wait().unwrap();
        }
    }
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn envd_gets_the_secret_and_init_does_not_show_it() {
    let init = Init::start();
    assert_eq!(init.start_line(0)[1..], ["hunter2hunter2", "argument", "0"]);
    let environ = fs::read(format!("/proc/{}/environ", init.child.id())).unwrap();
    assert!(!String::from_utf8_lossy(&environ).contains("hunter2"));
}

#[test]
fn envd_is_started_again_with_its_secret_when_it_dies() {
    let init = Init::start();
    let first = init.start_line(0);
    Init::signal(&first[0], "-KILL");
    let second = init.start_line(1);
    assert_ne!(first[0], second[0]);
    assert_eq!(second[1..], ["hunter2hunter2", "argument", "1"]);
}

#[test]
fn orphans_are_reaped() {
    let init = Init::start();
    let orphan = wait_for("the orphan", || fs::read_to_string(init.path("orphan")).ok());
    let proc = format!("/proc/{}", orphan.trim());
    wait_for("the orphan to be reaped", || (!Path::new(&proc).exists()).then_some(()));
}

#[test]
fn term_ends_envd_and_then_init() {
    let mut init = Init::start();
    init.start_line(0);
    // The trap is set after the line is written; a signal before it ends the script just as well.
    Init::signal(&init.child.id().to_string(), "-TERM");
    let status = wait_for("init to end", || init.child.try_wait().unwrap());
    assert!(status.success());
    let pid = init.start_line(0)[0].clone();
    wait_for("envd to end", || (!Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
}

#[test]
fn envd_starts_with_no_signal_blocked_and_ends_by_term() {
    let mut init = Command::new(env!("CARGO_BIN_EXE_init")).args(["/bin/sleep", "60"]).spawn().unwrap();
    let id = init.id();
    let children = format!("/proc/{id}/task/{id}/children");
    let envd = wait_for("envd", || {
        let pid = fs::read_to_string(&children).ok()?.trim().to_owned();
        // Until it has become the program, it is still a copy of init.
        let is_sleep =
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "sleep");
        is_sleep.then_some(pid)
    });
    let status = fs::read_to_string(format!("/proc/{envd}/status")).unwrap();
    assert!(status.contains("SigBlk:\t0000000000000000"), "{status}");
    let begin = Instant::now();
    Init::signal(&id.to_string(), "-TERM");
    let ended = wait_for("init to end", || init.try_wait().unwrap());
    assert!(
        ended.success() && begin.elapsed() < Duration::from_secs(2),
        "the grace period is for those that need it"
    );
    assert!(!Path::new(&format!("/proc/{envd}")).exists());
}

#[test]
fn a_missing_envd_is_a_failure_in_the_end() {
    let mut init =
        Command::new(env!("CARGO_BIN_EXE_init")).arg("/no/such/envd").stderr(Stdio::null()).spawn().unwrap();
    let status = wait_for("init to give up", || init.try_wait().unwrap());
    assert!(!status.success());
}
