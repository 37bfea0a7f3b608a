//! `hutch doctor`: what this host can do, which isolation follows from it, and what to install for more.

use std::path::Path;

use hutch_disk::{Check as DiskCheck, DiskSupport};
use hutch_net::{Check as NetCheck, NetSupport};
use hutch_runtime_oci::{Check as OciCheck, OciSupport};

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
    for (name, required, check) in oci_checks(oci) {
        let ok = check.works();
        let (OciCheck::Works(text) | OciCheck::Fails(text)) = check;
        lines.push(Line { name: name.to_owned(), ok, required, text });
    }
    let disk = DiskSupport::detect(&node::node_dir(config));
    for (name, check) in [
        ("overlayfs", disk.overlay),
        ("loop devices", disk.loop_devices),
        ("ext4 disks", disk.ext4),
        ("data directory", disk.data_dir),
    ] {
        let ok = check.works();
        let (DiskCheck::Works(text) | DiskCheck::Fails(text)) = check;
        lines.push(Line { name: name.to_owned(), ok, required: true, text });
    }
    let net = NetSupport::detect();
    for (name, check) in
        [("veth pairs", net.veth), ("nftables", net.nftables), ("forwarding", net.forwarding)]
    {
        let ok = check.works();
        let (NetCheck::Works(text) | NetCheck::Fails(text)) = check;
        lines.push(Line { name: name.to_owned(), ok, required: true, text });
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
pub fn oci_checks(support: OciSupport) -> [(&'static str, bool, OciCheck); 6] {
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
