//! What guests see and can do.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;

use hutch_runtime::Instance;
use hutch_runtime::conformance::{Fixture, guest};
use hutch_types::NetworkPolicy;

use crate::rig::Rig;

/// Each prints lines; one that starts with `FAIL` is a failure, and the last one is `done`.
const ORDINARY: &str = include_str!("ordinary.sh");
const HOSTILE: &str = include_str!("hostile.py");

pub async fn ordinary_programs_work(rig: &Rig) {
    let runtime = rig.open().await;
    let instance = rig.start(&runtime).await;
    instance.set_hostname("sandbox").await.expect("host name");
    instance.set_network(&NetworkPolicy { allow_internet_access: true }).await.expect("policy");
    assert_passes(&*instance, ORDINARY, "sh").await;
    instance.kill().await.expect("kill");
}

/// As root inside, which is the most that a guest can be.
pub async fn hostile_ones_are_contained(rig: &Rig) {
    let runtime = rig.open().await;
    let instance = rig.start(&runtime).await;
    // Something of the host's for them to find: an abstract socket, and a secret file.
    let socket = SocketAddr::from_abstract_name("hutch-test-abstract").expect("name");
    let _listener = std::os::unix::net::UnixListener::bind_addr(&socket).expect("abstract socket");
    assert_passes(&*instance, HOSTILE, "python3 -u").await;
    instance.kill().await.expect("kill");
}

async fn assert_passes(instance: &dyn Instance, script: &str, interpreter: &str) {
    let here = format!(
        "cat > /var/tmp/script <<'END-OF-SCRIPT'\n{script}\nEND-OF-SCRIPT\n{interpreter} /var/tmp/script 2>&1"
    );
    let output = guest::shell(instance, &here).await.stdout;
    let failures: Vec<&str> = output.lines().filter(|line| line.starts_with("FAIL")).collect();
    assert!(failures.is_empty() && output.trim_end().ends_with("done"), "{output}");
}
