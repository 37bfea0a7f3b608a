//! Importing root filesystems, honest and hostile ones.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use hutch_disk::{
    DiskConfig, DiskError, DiskStore, ImageConfig, ImportError, ImportLimits, LayerId, UidShift,
};
use hutch_types::{BuildId, InstanceId};
use tar::EntryType;

use crate::{Fixture, archive, entry, import, run, small_image};

fn tree(fixture: &Fixture, layer: &LayerId) -> std::path::PathBuf {
    fixture.data.path().join("layers").join(layer.as_str()).join("tree")
}

#[test]
fn owners_are_shifted_and_modes_times_links_and_attributes_kept() {
    let Some(fixture) = Fixture::new("owners_are_shifted_and_modes_times_links_and_attributes_kept") else {
        return;
    };
    let store = fixture.open();
    // Made by the real tar from a real tree.
    let source = tempfile::tempdir().expect("tempdir");
    let root = source.path();
    fs::create_dir(root.join("bin")).expect("dir");
    fs::write(root.join("bin/su"), "program").expect("file");
    fs::hard_link(root.join("bin/su"), root.join("bin/su2")).expect("link");
    std::os::unix::fs::symlink("/bin/su", root.join("link")).expect("symlink");
    std::os::unix::fs::chown(root.join("bin/su"), Some(0), Some(42)).expect("chown");
    std::os::unix::fs::lchown(root.join("link"), Some(1000), Some(1000)).expect("chown");
    fs::set_permissions(root.join("bin/su"), fs::Permissions::from_mode(0o4755)).expect("chmod");
    fs::set_permissions(root.join("bin"), fs::Permissions::from_mode(0o1777)).expect("chmod");
    let long = "long-".repeat(45);
    fs::create_dir(root.join(&long)).expect("dir");
    fs::write(root.join(&long).join(&long), vec![0u8; 3 << 20]).expect("file");
    run("mkfifo", &[root.join("fifo").to_str().expect("utf8")]);
    run("touch", &["-d", "2001-02-03T04:05:06.789Z", root.join("bin/su").to_str().expect("utf8")]);
    run("touch", &["-d", "2002-02-03T04:05:06Z", root.join("bin").to_str().expect("utf8")]);
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root.join("bin/su2"), "user.note", b"kept", flags).expect("xattr");
    rustix::fs::setxattr(root.join("bin/su2"), "trusted.overlay.opaque", b"y", flags).expect("xattr");

    for format in ["gnu", "pax"] {
        let file = fixture.data.path().join(format!("{format}.tar"));
        let mut args = vec!["--numeric-owner", "--format", format, "-cf", file.to_str().expect("utf8")];
        if format == "pax" {
            args.extend(["--xattrs", "--xattrs-include=*"]);
        }
        args.extend(["-C", root.to_str().expect("utf8"), "."]);
        run("tar", &args);
        let imported = store
            .import_tar(fs::File::open(&file).expect("open"), ImportLimits::default(), &mut |_| {})
            .expect("import");
        let tree = tree(&fixture, &imported.layer);
        let su = fs::metadata(tree.join("bin/su")).expect("su");
        assert_eq!((su.uid(), su.gid(), su.mode() & 0o7777), (100_000, 100_042, 0o4755), "{format}");
        assert_eq!(su.mtime(), 981_173_106);
        assert_eq!(su.ino(), fs::metadata(tree.join("bin/su2")).expect("su2").ino());
        let bin = fs::metadata(tree.join("bin")).expect("bin");
        assert_eq!((bin.mode() & 0o7777, bin.mtime()), (0o1777, 1_012_709_106));
        assert_eq!(fs::read_link(tree.join("link")).expect("link"), std::path::Path::new("/bin/su"));
        assert_eq!(fs::symlink_metadata(tree.join("link")).expect("link").uid(), 101_000);
        let zeros = fs::metadata(tree.join(&long).join(&long)).expect("long names");
        assert_eq!(zeros.len(), 3 << 20);
        assert!(zeros.blocks() < 64, "zeros become holes: {} blocks", zeros.blocks());
        assert!(fs::metadata(tree.join("fifo")).expect("fifo").file_type().is_fifo());
        if format == "pax" {
            assert_eq!(su.mtime_nsec(), 789_000_000);
            let mut value = [0u8; 16];
            let len = rustix::fs::getxattr(tree.join("bin/su"), "user.note", &mut value).expect("kept");
            assert_eq!(&value[..len], b"kept");
            assert!(rustix::fs::getxattr(tree.join("bin/su"), "trusted.overlay.opaque", &mut value).is_err());
        }
    }
}

#[test]
fn the_same_archive_is_the_same_layer() {
    let Some(fixture) = Fixture::new("the_same_archive_is_the_same_layer") else { return };
    let store = fixture.open();
    let bytes = archive(|b| entry(b, EntryType::Regular, "a", "", b"1"));
    let mut reports = Vec::new();
    let first =
        store.import_tar(&bytes[..], ImportLimits::default(), &mut |p| reports.push(p)).expect("first");
    assert!(!first.was_present);
    assert_eq!(reports.last().map(|p| p.archive_bytes), Some(bytes.len() as u64));
    let second = store.import_tar(&bytes[..], ImportLimits::default(), &mut |_| {}).expect("second");
    assert!(second.was_present);
    assert_eq!(first.layer, second.layer);
    assert_ne!(first.layer, import(&store, &archive(|b| entry(b, EntryType::Regular, "a", "", b"2"))));
    let names: Vec<_> = fs::read_dir(fixture.data.path().join("layers")).expect("list").collect();
    assert_eq!(names.len(), 2, "nothing temporary is left: {names:?}");
}

#[test]
fn hostile_archives_are_refused_and_leave_nothing() {
    let Some(fixture) = Fixture::new("hostile_archives_are_refused_and_leave_nothing") else { return };
    let store = fixture.open();
    let victim = tempfile::tempdir().expect("tempdir");
    let outside = victim.path().to_str().expect("utf8").to_owned();
    fs::write(victim.path().join("secret"), "secret").expect("write");
    let regular = EntryType::Regular;
    let mut cases: Vec<(&str, Vec<u8>)> = vec![
        ("absolute", archive(|b| entry(b, regular, &format!("{outside}/pwned"), "", b"x"))),
        ("dotdot", archive(|b| entry(b, regular, "../../../../../../../../tmp/pwned", "", b"x"))),
        ("inner dotdot", archive(|b| entry(b, regular, "a/../../pwned", "", b"x"))),
        (
            "through a symlink",
            archive(|b| {
                entry(b, EntryType::Symlink, "out", &outside, b"");
                entry(b, regular, "out/pwned", "", b"x");
            }),
        ),
        (
            "directory through a symlink",
            archive(|b| {
                entry(b, EntryType::Symlink, "out", &outside, b"");
                entry(b, EntryType::Directory, "out/pwned", "", b"");
            }),
        ),
        (
            "through a relative symlink",
            archive(|b| {
                entry(b, EntryType::Symlink, "out", "..", b"");
                entry(b, regular, "out/pwned", "", b"x");
            }),
        ),
        (
            "hard link outside",
            archive(|b| entry(b, EntryType::Link, "stolen", &format!("{outside}/secret"), b"")),
        ),
        ("hard link dotdot", archive(|b| entry(b, EntryType::Link, "stolen", "../../secret", b""))),
        (
            "hard link through a symlink",
            archive(|b| {
                entry(b, EntryType::Symlink, "out", &outside, b"");
                entry(b, EntryType::Link, "stolen", "out/secret", b"");
            }),
        ),
        (
            "hard link to a directory",
            archive(|b| {
                entry(b, EntryType::Directory, "d", "", b"");
                entry(b, EntryType::Link, "e", "d", b"");
            }),
        ),
        (
            "file over a directory",
            archive(|b| {
                entry(b, regular, "d/f", "", b"x");
                entry(b, regular, "d", "", b"x");
            }),
        ),
        ("file over the root", archive(|b| entry(b, regular, "./", "", b"x"))),
        ("no end mark", {
            let mut bytes = archive(|b| entry(b, regular, "a", "", b"x"));
            bytes.truncate(1024);
            bytes
        }),
        ("cut inside a file", {
            let mut bytes = archive(|b| entry(b, regular, "a", "", &[1; 4096]));
            bytes.truncate(2048);
            bytes
        }),
    ];
    let mut stranger = tar::Header::new_gnu();
    stranger.set_path("a").expect("path");
    stranger.set_uid(70_000);
    stranger.set_gid(0);
    stranger.set_mode(0o644);
    stranger.set_mtime(0);
    stranger.set_size(0);
    stranger.set_cksum();
    cases.push(("an owner outside the range", archive(|b| b.append(&stranger, &b""[..]).expect("append"))));

    for (name, bytes) in cases {
        // A regular entry whose name ends in a slash is a directory by an old convention: the root is fine then.
        let result = store.import_tar(&bytes[..], ImportLimits::default(), &mut |_| {});
        if name == "file over the root" {
            result.expect("counts as a directory");
            continue;
        }
        let error = result.err().unwrap_or_else(|| panic!("{name} was imported"));
        assert!(
            matches!(error, ImportError::Refused { .. } | ImportError::Malformed { .. }),
            "{name}: {error:?}"
        );
    }
    let left: Vec<_> =
        fs::read_dir(victim.path()).expect("list").map(|e| e.expect("entry").file_name()).collect();
    assert_eq!(left, ["secret"]);
    assert_eq!(fs::metadata(victim.path().join("secret")).expect("meta").nlink(), 1);
    let layers = fs::read_dir(fixture.data.path().join("layers")).expect("list").count();
    assert_eq!(layers, 1, "only the one honest layer is left");
}

#[test]
fn a_symlink_is_replaced_and_never_followed() {
    let Some(fixture) = Fixture::new("a_symlink_is_replaced_and_never_followed") else { return };
    let store = fixture.open();
    let victim = tempfile::NamedTempFile::new().expect("tempfile");
    let target = victim.path().to_str().expect("utf8");
    let layer = import(
        &store,
        &archive(|b| {
            entry(b, EntryType::Symlink, "a", target, b"");
            entry(b, EntryType::Regular, "a", "", b"mine");
            entry(b, EntryType::Symlink, "d", target, b"");
            entry(b, EntryType::Directory, "d", "", b"");
        }),
    );
    assert_eq!(fs::read(tree(&fixture, &layer).join("a")).expect("read"), b"mine");
    assert!(fs::symlink_metadata(tree(&fixture, &layer).join("d")).expect("d").is_dir());
    assert_eq!(fs::metadata(victim.path()).expect("meta").len(), 0);
}

#[test]
fn bombs_are_stopped_at_the_limits_and_devices_left_out() {
    let Some(fixture) = Fixture::new("bombs_are_stopped_at_the_limits_and_devices_left_out") else { return };
    let store = fixture.open();
    let limits = ImportLimits { max_bytes: 1 << 20, max_entries: 10 };
    let many = archive(|b| (0..11).for_each(|n| entry(b, EntryType::Regular, &n.to_string(), "", b"")));
    let error = store.import_tar(&many[..], limits, &mut |_| {}).expect_err("too many");
    assert!(matches!(error, ImportError::TooLarge { what: "entries", limit: 10 }), "{error}");
    let mut huge = tar::Header::new_gnu();
    huge.set_path("huge").expect("path");
    huge.set_size(1 << 40);
    huge.set_uid(0);
    huge.set_gid(0);
    huge.set_mode(0o644);
    huge.set_mtime(0);
    huge.set_cksum();
    let error = store.import_tar(&huge.as_bytes()[..], limits, &mut |_| {}).expect_err("too big");
    assert!(matches!(error, ImportError::TooLarge { what: "bytes", .. }), "{error}");
    let empty = archive(|_| {});
    let endless = std::io::Read::chain(&empty[..], std::io::repeat(0));
    let error = store.import_tar(endless, limits, &mut |_| {}).expect_err("endless");
    assert!(matches!(error, ImportError::TooLarge { .. }), "{error}");

    let devices = archive(|b| {
        entry(b, EntryType::Block, "dev/sda", "", b"");
        entry(b, EntryType::Char, "dev/mem", "", b"");
        entry(b, EntryType::Regular, "x", "", b"x");
    });
    let imported = store.import_tar(&devices[..], limits, &mut |_| {}).expect("import");
    assert_eq!(imported.skipped_devices, 2);
    assert!(!tree(&fixture, &imported.layer).join("dev/sda").exists());
}

#[test]
fn images_survive_a_restart_and_are_kept_while_they_are_used() {
    let Some(fixture) = Fixture::new("images_survive_a_restart_and_are_kept_while_they_are_used") else {
        return;
    };
    let store = fixture.open();
    let image = small_image(&store);
    let other = store
        .register_image(BuildId::random(), ImageConfig::default(), image.layers.clone())
        .expect("a second image of the same layer");
    let missing: LayerId = "0123456789abcdef0123456789abcdef".parse().expect("id");
    let error =
        store.register_image(BuildId::random(), ImageConfig::default(), vec![missing]).expect_err("refused");
    assert!(matches!(error, DiskError::NoLayer(_)), "{error}");
    drop(store);

    let store = fixture.open();
    assert_eq!(store.image(image.build_id).expect("image"), image);
    assert_eq!(store.images().expect("images").len(), 2);
    let disk = store.create_disk(&InstanceId::random(), &image, 64).expect("disk");
    assert!(matches!(store.remove_image(image.build_id), Err(DiskError::ImageInUse { .. })));
    store.remove_image(other.build_id).expect("not in use");
    assert!(tree(&fixture, &image.layers[0]).is_dir(), "another image has the layer");
    disk.destroy().expect("destroy");
    store.remove_image(image.build_id).expect("free now");
    store.remove_image(image.build_id).expect("removing twice is no error");
    assert!(!tree(&fixture, &image.layers[0]).exists());
    assert!(matches!(store.image(image.build_id), Err(DiskError::NoImage(_))));
}

#[test]
fn a_data_directory_made_for_another_shift_is_refused() {
    let Some(fixture) = Fixture::new("a_data_directory_made_for_another_shift_is_refused") else { return };
    drop(fixture.open());
    let config = DiskConfig { shift: UidShift { base: 200_000, len: 65_536 }, ..fixture.config() };
    assert!(matches!(DiskStore::open(config), Err(DiskError::Config { .. })));
}

/// `HUTCH_TEST_BASE_TAR=/path/to/rootfs.tar` measures a real one.
#[test]
fn a_real_root_filesystem_is_imported() {
    let Some(path) = std::env::var_os("HUTCH_TEST_BASE_TAR") else {
        println!("SKIP: a_real_root_filesystem_is_imported: HUTCH_TEST_BASE_TAR is not set");
        return;
    };
    let Some(fixture) = Fixture::new("a_real_root_filesystem_is_imported") else { return };
    let store = fixture.open();
    let begun = std::time::Instant::now();
    let file = fs::File::open(path).expect("open");
    let imported = store.import_tar(file, ImportLimits::default(), &mut |_| {}).expect("import");
    println!("MEASURE {imported:?} in {:?}", begun.elapsed());
    let sudo = fs::metadata(tree(&fixture, &imported.layer).join("usr/bin/sudo")).expect("sudo");
    assert_eq!((sudo.uid(), sudo.mode() & 0o7777), (100_000, 0o4755));
}
