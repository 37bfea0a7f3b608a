//! Creating, filling, adopting, destroying and sweeping disks.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Instant;

use hutch_disk::{DiskError, DiskStore};
use hutch_types::InstanceId;

use crate::{Fixture, run, small_image};

#[test]
fn a_disk_shows_the_image_and_keeps_writes_to_itself() {
    let Some(fixture) = Fixture::new("a_disk_shows_the_image_and_keeps_writes_to_itself") else { return };
    let store = fixture.open();
    let image = small_image(&store);
    let (a, b) = (InstanceId::random(), InstanceId::random());
    let first = store.create_disk(&a, &image, 64).expect("first");
    let second = store.create_disk(&b, &image, 64).expect("second");

    let motd = first.root().join("etc/motd");
    assert_eq!(fs::read(&motd).expect("read"), b"hello\n");
    fs::write(&motd, "changed").expect("write");
    assert_eq!(fs::read(second.root().join("etc/motd")).expect("read"), b"hello\n");
    // The overlay renames directories that come from a layer, as an ordinary filesystem does.
    fs::rename(first.root().join("etc"), first.root().join("moved")).expect("rename a layer's directory");
    assert_eq!(fs::read(first.root().join("moved/motd")).expect("read"), b"changed");

    let root = fs::metadata(first.root()).expect("root");
    assert_eq!((root.uid(), root.gid(), root.mode() & 0o7777), (100_000, 100_000, 0o755));
    let parent = fs::metadata(first.root().parent().expect("parent")).expect("parent");
    assert_eq!(parent.permissions().mode() & 0o777, 0o711);

    first.destroy().expect("destroy");
    first.destroy().expect("destroying twice is no error");
    second.destroy().expect("destroy");
    assert_eq!((fixture.mount_count(), fixture.loop_count()), (0, 0));
    assert_eq!(store.disks().expect("disks"), []);
}

#[test]
fn the_disk_limit_is_exact_and_ends_with_enospc() {
    let Some(fixture) = Fixture::new("the_disk_limit_is_exact_and_ends_with_enospc") else { return };
    let store = fixture.open();
    let image = small_image(&store);
    let disk = store.create_disk(&InstanceId::random(), &image, 64).expect("create");
    let before = disk.usage().expect("usage");
    assert!(before.total_bytes <= 64 << 20 && before.total_bytes > 56 << 20, "{before:?}");
    assert!(before.used_bytes < 1 << 20, "{before:?}");

    let mut file = File::create(disk.root().join("big")).expect("create");
    let chunk = vec![7u8; 1 << 20];
    let mut written = 0u64;
    let error = loop {
        match file.write(&chunk) {
            Ok(n) => written += n as u64,
            Err(error) => break error,
        }
        assert!(written <= 64 << 20, "wrote beyond the limit");
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    file.sync_all().expect("what was accepted reaches the disk");
    let full = disk.usage().expect("usage");
    assert!(full.free_bytes < 1 << 20, "{full:?}");
    assert!(written >= before.free_bytes - (1 << 20), "{written} of {before:?}");
    // `df` inside shows the same figures: it asks the overlay.
    let seen = rustix::fs::statvfs(disk.root()).expect("statvfs");
    assert_eq!(seen.f_blocks * seen.f_frsize, full.total_bytes);

    // The sandbox goes on: space that is freed can be used again, and the host gets it back.
    drop(file);
    fs::remove_file(disk.root().join("big")).expect("remove");
    fs::write(disk.root().join("small"), "fits").expect("write after freeing");
    rustix::fs::syncfs(File::open(disk.root()).expect("open")).expect("sync");
    disk.destroy().expect("destroy");
}

#[test]
fn a_big_limit_costs_little_until_it_is_used() {
    let Some(fixture) = Fixture::new("a_big_limit_costs_little_until_it_is_used") else { return };
    let store = fixture.open();
    let image = small_image(&store);
    let id = InstanceId::random();
    let disk = store.create_disk(&id, &image, 10 * 1024).expect("create");
    rustix::fs::syncfs(File::open(disk.root()).expect("open")).expect("sync");
    let file =
        fs::metadata(fixture.data.path().join("disks").join(id.as_str()).join("disk.img")).expect("meta");
    assert_eq!(file.len(), 10 << 30);
    assert!(file.blocks() * 512 < 4 << 20, "{} KiB", file.blocks() / 2);
    let total = disk.usage().expect("usage").total_bytes;
    assert!(total > 9 << 30, "{total}");
}

#[test]
fn destroying_a_disk_with_unwritten_data_does_not_wait_for_it() {
    let Some(fixture) = Fixture::new("destroying_a_disk_with_unwritten_data_does_not_wait_for_it") else {
        return;
    };
    let store = fixture.open();
    let image = small_image(&store);
    let disk = store.create_disk(&InstanceId::random(), &image, 1024).expect("create");
    fs::write(disk.root().join("dirty"), vec![1u8; 128 << 20]).expect("write");
    let begun = Instant::now();
    disk.destroy().expect("destroy");
    println!("MEASURE destroy with 128 MiB unwritten: {:?}", begun.elapsed());
    assert_eq!((fixture.mount_count(), fixture.loop_count()), (0, 0));
}

#[test]
fn twenty_disks_at_the_same_time_are_all_made_and_all_removed() {
    let Some(fixture) = Fixture::new("twenty_disks_at_the_same_time_are_all_made_and_all_removed") else {
        return;
    };
    let store = fixture.open();
    let image = small_image(&store);
    store.ensure_template(256).expect("template");
    let begun = Instant::now();
    let disks: Vec<_> = std::thread::scope(|scope| {
        let tasks: Vec<_> = (0..20)
            .map(|_| scope.spawn(|| store.create_disk(&InstanceId::random(), &image, 256).expect("create")))
            .collect();
        tasks.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    println!("MEASURE 20 disks in parallel: {:?}", begun.elapsed());
    assert_eq!((fixture.mount_count(), fixture.loop_count()), (40, 20));
    for (n, disk) in disks.iter().enumerate() {
        fs::write(disk.root().join("n"), n.to_string()).expect("write");
    }
    for (n, disk) in disks.iter().enumerate() {
        assert_eq!(fs::read_to_string(disk.root().join("n")).expect("read"), n.to_string());
    }
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for disk in &disks {
            scope.spawn(|| disk.destroy().expect("destroy"));
        }
    });
    println!("MEASURE 20 destroyed in parallel: {:?}", begun.elapsed());
    assert_eq!((fixture.mount_count(), fixture.loop_count()), (0, 0));
}

#[test]
fn one_disk_after_the_other_is_quick() {
    let Some(fixture) = Fixture::new("one_disk_after_the_other_is_quick") else { return };
    let store = fixture.open();
    let image = small_image(&store);
    store.ensure_template(10 * 1024).expect("template");
    let (mut made, mut gone) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let begun = Instant::now();
        let disk = store.create_disk(&InstanceId::random(), &image, 10 * 1024).expect("create");
        made.push(begun.elapsed());
        let begun = Instant::now();
        disk.destroy().expect("destroy");
        gone.push(begun.elapsed());
    }
    made.sort();
    gone.sort();
    println!(
        "MEASURE create p50 {:?} max {:?}, destroy p50 {:?} max {:?}",
        made[10], made[19], gone[10], gone[19]
    );
}

#[test]
fn a_second_daemon_is_refused_and_a_restarted_one_adopts() {
    let Some(fixture) = Fixture::new("a_second_daemon_is_refused_and_a_restarted_one_adopts") else { return };
    let store = fixture.open();
    let image = small_image(&store);
    let (kept, lost) = (InstanceId::random(), InstanceId::random());
    let disk = store.create_disk(&kept, &image, 64).expect("create");
    fs::write(disk.root().join("note"), "still here").expect("write");
    drop(store.create_disk(&lost, &image, 64).expect("create"));
    assert!(matches!(DiskStore::open(fixture.config()), Err(DiskError::InUse(_))));

    // The old daemon is gone once nothing holds its lock any more.
    drop(disk);
    drop(store);
    let store = fixture.open();
    // A crash in the middle of making things leaves these behind.
    let data = fixture.data.path();
    fs::create_dir_all(data.join("layers/.tmp-half/tree/etc")).expect("dir");
    fs::create_dir_all(data.join("disks/nhalfmade0000000")).expect("dir");
    fs::create_dir_all(fixture.mounts.join("nhalfmade0000000/mnt")).expect("dir");
    let stray = data.join("disks/nhalfmade0000000/disk.img");
    File::create(&stray).expect("file").set_len(16 << 20).expect("len");
    run("losetup", &["-f", stray.to_str().expect("utf8")]);

    let swept = store.sweep(&HashSet::from([kept.clone()])).expect("sweep");
    assert_eq!((swept.disks, swept.loop_devices, swept.temporaries), (2, 1, 1));
    assert_eq!(store.disks().expect("disks"), std::slice::from_ref(&kept));
    assert_eq!((fixture.mount_count(), fixture.loop_count()), (2, 1));

    let disk = store.open_disk(&kept).expect("adopt");
    assert_eq!(fs::read_to_string(disk.root().join("note")).expect("read"), "still here");
    assert_eq!((disk.disk_mib(), disk.build_id()), (64, image.build_id));
    assert!(matches!(store.open_disk(&lost), Err(DiskError::NoDisk(_))));
    assert!(matches!(store.create_disk(&kept, &image, 64), Err(DiskError::DiskExists(_))));

    // What is left of a disk after a restart of the host.
    run("umount", &[disk.root().to_str().expect("utf8")]);
    assert!(matches!(store.open_disk(&kept), Err(DiskError::NotMounted { .. })));
    store.destroy_disk(&kept).expect("destroy");
    assert_eq!((fixture.mount_count(), fixture.loop_count()), (0, 0));
}

#[test]
fn the_hosts_reserve_is_not_touched() {
    let Some(fixture) = Fixture::new("the_hosts_reserve_is_not_touched") else { return };
    let mut config = fixture.config();
    config.reserve_mib = u64::MAX / (1024 * 1024);
    let store = DiskStore::open(config).expect("open");
    let image = small_image(&store);
    let error = store.create_disk(&InstanceId::random(), &image, 64).expect_err("refused");
    assert!(error.is_exhausted(), "{error}");
    assert_eq!(store.disks().expect("disks"), []);
}

#[test]
fn paths_with_overlays_separators_work() {
    let Some(fixture) = Fixture::new("paths_with_overlays_separators_work") else { return };
    let mut config = fixture.config();
    config.data_dir = fixture.data.path().join("a:b,c d\\e");
    let store = DiskStore::open(config).expect("open");
    let image = small_image(&store);
    let disk = store.create_disk(&InstanceId::random(), &image, 64).expect("create");
    assert_eq!(fs::read(disk.root().join("etc/motd")).expect("read"), b"hello\n");
    disk.destroy().expect("destroy");
    assert_eq!((fixture.mount_count(), fixture.loop_count()), (0, 0));
}

#[test]
fn a_mount_directory_that_guests_cannot_reach_is_refused() {
    let Some(fixture) = Fixture::new("a_mount_directory_that_guests_cannot_reach_is_refused") else { return };
    let mut config = fixture.config();
    config.mount_dir = fixture.data.path().join("mounts");
    fs::set_permissions(fixture.data.path(), fs::Permissions::from_mode(0o700)).expect("chmod");
    let Err(DiskError::Config { what }) = DiskStore::open(config) else { panic!("guests cannot get there") };
    assert!(what.contains("searchable"), "{what}");
}
