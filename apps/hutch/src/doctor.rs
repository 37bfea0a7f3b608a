//! `hutch doctor`: what this host can do, which isolation follows from it, and what to install for more.

use std::path::Path;

use hutch_disk::DiskSupport;
use hutch_net::NetSupport;
use hutch_runtime_oci::OciSupport;
use hutch_types::Check;

use crate::config::Config;
use crate::node;

struct Line {
    name: String,
    ok: bool,
    required: bool,
    text: String,
}

/// Prints the findings; true when sandboxes can run here.
pub fn run(config: &Config) -> bool {
    let mut lines = vec![kernel(), kvm(), program("runsc", "gVisor is not supported by this version yet")];
    let oci = OciSupport::detect(&config.node.runc, Some(&config.criu()));
    let disk = DiskSupport::detect(&node::node_dir(config));
    let net = NetSupport::detect();
    let others = [
        ("overlayfs", true, disk.overlay),
        ("loop devices", true, disk.loop_devices),
        ("ext4 disks", true, disk.ext4),
        ("data directory", true, disk.data_dir),
        ("veth pairs", true, net.veth),
        ("nftables", true, net.nftables),
        ("forwarding", true, net.forwarding),
    ];
    let lxcfs = [("lxcfs", false, OciSupport::lxcfs(&config.node.lxcfs))];
    for (name, required, check) in oci_checks(oci).into_iter().chain(lxcfs).chain(others) {
        let ok = check.works();
        let (Check::Works(text) | Check::Fails(text)) = check;
        lines.push(Line { name: name.to_owned(), ok, required, text });
    }
    for (name, check) in crate::tls::checks(config) {
        let ok = check.works();
        let (Check::Works(text) | Check::Fails(text)) = check;
        lines.push(Line { name: name.to_owned(), ok, required: false, text });
    }
    if !net.dropping_chains.is_empty() {
        lines.push(Line {
            name: "other firewalls".to_owned(),
            ok: false,
            required: false,
            text: format!(
                "these chains drop by default and may cut sandboxes off: {}",
                net.dropping_chains.join(", ")
            ),
        });
    }
    for line in &lines {
        let mark = match (line.ok, line.required) {
            (true, _) => "ok     ",
            (false, true) => "MISSING",
            (false, false) => "no     ",
        };
        println!("{mark}  {:<18} {}", line.name, line.text);
    }
    let usable = lines.iter().all(|l| l.ok || !l.required);
    println!();
    if usable {
        println!("isolation: container ({})", isolation_reason());
    } else {
        println!("isolation: none. Sandboxes cannot run here before what is MISSING is there.");
    }
    usable
}

/// Why sandboxes on this host get the isolation they get.
pub fn isolation_reason() -> String {
    let kvm =
        if Path::new("/dev/kvm").exists() { "although /dev/kvm exists" } else { "there is no /dev/kvm" };
    format!("hardened container with its own user namespace: the only isolation of this version, {kvm}")
}

/// What containers need, each with its name and whether nothing runs without it.
pub fn oci_checks(support: OciSupport) -> [(&'static str, bool, Check); 6] {
    [
        ("root", true, support.root),
        ("runc", true, support.runc),
        ("user namespaces", true, support.user_namespaces),
        ("cgroups", true, support.cgroups),
        ("seccomp", true, support.seccomp),
        ("CRIU", false, support.criu),
    ]
}

fn kernel() -> Line {
    let uname = rustix::system::uname();
    Line {
        name: "kernel".to_owned(),
        ok: true,
        required: false,
        text: format!("{} {}", uname.release().to_string_lossy(), uname.machine().to_string_lossy()),
    }
}

fn kvm() -> Line {
    let ok = Path::new("/dev/kvm").exists();
    let text = if ok {
        "/dev/kvm exists; microVM isolation is not supported by this version yet"
    } else {
        "no /dev/kvm; microVM isolation is not supported by this version yet"
    };
    Line { name: "KVM".to_owned(), ok, required: false, text: text.to_owned() }
}

fn program(name: &str, remark: &str) -> Line {
    let found = std::env::var_os("PATH")
        .and_then(|path| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file()));
    let ok = found.is_some();
    let text = match found {
        Some(path) => format!("{}; {remark}", path.display()),
        None => format!("not installed; {remark}"),
    };
    Line { name: name.to_owned(), ok, required: false, text }
}
