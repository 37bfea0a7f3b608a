//! The rules of who may know whom, checked on what cargo says. See docs/ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// A crate of the workspace: its folder, and what it depends on outside of its tests.
struct Crate {
    folder: String,
    needs: BTreeSet<String>,
}

fn workspace() -> BTreeMap<String, Crate> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let root = format!("{}/", metadata["workspace_root"].as_str().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let package = |package: &Value| {
        let manifest = text(&package["manifest_path"]);
        let folder = manifest.strip_prefix(&root).unwrap().strip_suffix("/Cargo.toml").unwrap().to_owned();
        let needs = package["dependencies"].as_array().unwrap().iter().filter(|d| d["kind"] != "dev");
        (text(&package["name"]), Crate { folder, needs: needs.map(|d| text(&d["name"])).collect() })
    };
    metadata["packages"].as_array().unwrap().iter().map(package).collect()
}

fn tier(folder: &str) -> &str {
    folder.split('/').next().unwrap_or_default()
}

/// All crates of the workspace that `name` reaches, itself left out.
fn reach(crates: &BTreeMap<String, Crate>, name: &str) -> BTreeSet<String> {
    let (mut found, mut open) = (BTreeSet::new(), vec![name.to_owned()]);
    while let Some(next) = open.pop() {
        for need in crates[&next].needs.iter().filter(|n| crates.contains_key(*n)) {
            if found.insert(need.clone()) {
                open.push(need.clone());
            }
        }
    }
    found
}

#[test]
fn tiers_depend_only_on_the_tiers_below_them() {
    let crates = workspace();
    assert!(crates.len() >= 15, "the whole workspace is seen");
    for (name, krate) in &crates {
        let allowed: &[&str] = match (tier(&krate.folder), name.as_str()) {
            ("core", _) => &["core"],
            ("control", _) => &["core", "control"],
            // The test backend runs the real envd in process.
            ("node", "hutch-runtime-fake") => &["core", "node", "guest"],
            ("node", _) => &["core", "node"],
            ("guest" | "edge" | "bench", _) => &["core"],
            ("apps", _) => &["core", "control", "node", "edge"],
            ("tests", _) => &[],
            (other, _) => panic!("{name}: {other} is not a tier; say here what it may depend on"),
        };
        // Whoever uses the test backend does so in tests, which are not looked at.
        for need in reach(&crates, name) {
            let below = tier(&crates[&need].folder);
            assert!(allowed.contains(&below), "{name} ({}) depends on {need} ({below})", krate.folder);
        }
    }
}

#[test]
fn envd_and_init_know_only_leaves_of_core() {
    let crates = workspace();
    for name in ["hutch-envd", "hutch-init"] {
        for need in reach(&crates, name) {
            assert!(["hutch-types", "hutch-proto"].contains(&need.as_str()), "{name} depends on {need}");
        }
    }
}

#[test]
fn special_crates_are_named_only_where_they_belong() {
    let belongs = |dependency: &str, folder: &str| match dependency {
        "sqlx" => folder == "control/store",
        "axum" => ["control/api", "guest/envd", "node/runtime-fake", "apps/hutch", "edge"].contains(&folder),
        "rustix" | "nix" | "libc" => {
            let is_kernel =
                folder.starts_with("node/runtime-") || ["node/net", "node/disk"].contains(&folder);
            // The binary raises its limit of open files and asks whether it is root; the edge sets options of sockets;
            // the benchmark measures in a sandbox's network namespace.
            let may_ask = dependency == "rustix" && ["apps/hutch", "edge", "bench"].contains(&folder);
            is_kernel || tier(folder) == "guest" || may_ask
        }
        "hutch-runtime-oci" | "hutch-runtime-fake" | "hutch-net" | "hutch-disk" => {
            folder == "apps/hutch" || folder.starts_with("node/runtime-")
        }
        "hutch-store" => ["control/app", "apps/hutch"].contains(&folder),
        _ => true,
    };
    for (name, krate) in workspace() {
        for need in &krate.needs {
            assert!(belongs(need, &krate.folder), "{name} ({}) names {need}", krate.folder);
        }
    }
}
