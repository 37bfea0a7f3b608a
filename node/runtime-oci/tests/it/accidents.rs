//! What is left when something goes wrong at a bad moment, and that nothing of it stays.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use hutch_runtime::conformance::Fixture;
use hutch_runtime::{Instance, Runtime};
use hutch_types::InstanceId;

use crate::rig::Rig;

/// A runtime command that fails, or makes a container and fails then.
pub async fn failing_starts_leave_nothing(rig: &Rig) {
    let broken = rig.scratch().join("broken-runc");
    let last = "for last; do :; done; while [ \"$1\" != --log ]; do shift; done; log=$2";
    let say = "echo '{\"level\":\"error\",\"msg\":\"out of luck\"}' >> $log; exit 1";
    for (when, script) in [
        ("before", format!("{last}; {say}")),
        (
            "after",
            format!("case \"$*\" in *' run '*) runc \"$@\"; {last}; {say};; *) exec runc \"$@\";; esac"),
        ),
        ("with no pid", "case \"$*\" in *' run '*) exit 0;; *) exec runc \"$@\";; esac".to_owned()),
    ] {
        fs::write(&broken, format!("#!/bin/sh\n{script}\n")).expect("script");
        fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).expect("mode");
        let runtime = rig.open_with(&broken).await;
        let error = runtime.start(rig.spec()).await.expect_err("started").chain();
        assert!(when == "with no pid" || error.contains("out of luck"), "{error}");
        assert_eq!(rig.leftovers().await, Vec::<String>::new(), "failed {when}");
    }
}

/// Damages the directory of an instance.
type Spoil = fn(&Path);

/// The daemon dies at different moments; each time other things are there.
pub async fn leftovers_of_all_kinds_are_swept(rig: &Rig) {
    let spoil: [(&str, Spoil); 4] = [
        ("no record", |dir| fs::remove_file(dir.join("instance.json")).expect("remove")),
        ("half a record", |dir| {
            fs::write(dir.join("instance.json"), "{\"version\":1,\"spec\"").expect("write")
        }),
        ("no directory", |dir| fs::remove_dir_all(dir).expect("remove")),
        ("another's pid", |dir| {
            let record = fs::read_to_string(dir.join("instance.json")).expect("read");
            let mut record: serde_json::Value = serde_json::from_str(&record).expect("record");
            record["pid"] = std::process::id().into();
            fs::write(dir.join("instance.json"), record.to_string()).expect("write");
        }),
    ];
    for (what, spoil) in spoil {
        let (id, kept_id) = two(rig).await;
        spoil(&rig.data_dir().join("instances").join(id.as_str()));
        adopt_one(rig, what, &id, &kept_id, what != "no directory").await;
    }
    // The container's state alone is gone: the instance itself is not.
    let (id, kept_id) = two(rig).await;
    fs::remove_dir_all(rig.data_dir().join("runc").join(id.as_str())).expect("remove");
    let runtime = rig.open().await;
    let adopted = runtime.adopt().await.expect("adopt").adopted;
    let mut ids: Vec<&InstanceId> = adopted.iter().map(|i| &i.spec().id).collect();
    let mut expected = vec![&id, &kept_id];
    ids.sort();
    expected.sort();
    assert_eq!(ids, expected);
    for instance in &adopted {
        instance.kill().await.expect("kill");
    }
    assert_eq!(rig.leftovers().await, Vec::<String>::new());
}

async fn two(rig: &Rig) -> (InstanceId, InstanceId) {
    let runtime = rig.open().await;
    assert!(runtime.adopt().await.expect("adopt").adopted.is_empty());
    let (a, b): (Arc<dyn Instance>, _) = (rig.start(&runtime).await, rig.start(&runtime).await);
    (a.spec().id.clone(), b.spec().id.clone())
}

async fn adopt_one(rig: &Rig, what: &str, lost: &InstanceId, kept: &InstanceId, is_reported: bool) {
    let runtime: Arc<dyn Runtime> = rig.open().await;
    let adoption = runtime.adopt().await.expect("adopt");
    let reported = adoption.lost.iter().any(|l| l.id == *lost);
    assert_eq!(reported, is_reported, "{what}: {:?}", adoption.lost);
    let left = rig.leftovers().await;
    assert!(!left.iter().any(|line| line.contains(lost.as_str())), "{what}: {left:#?}");
    assert_eq!(adoption.adopted.len(), 1, "{what}");
    assert_eq!(adoption.adopted[0].spec().id, *kept, "{what}");
    hutch_runtime::conformance::guest::health(&*adoption.adopted[0]).await.expect("the other one answers");
    adoption.adopted[0].kill().await.expect("kill");
    assert_eq!(rig.leftovers().await, Vec::<String>::new(), "{what}");
}
