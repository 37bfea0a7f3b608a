use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

#[test]
fn modes_are_worded_as_sdks_expect() {
    let check = |mode: u32, want: &str| assert_eq!(permissions(mode), want, "{mode:o}");
    check(0o100_644, "-rw-r--r--");
    check(0o040_755, "drwxr-xr-x");
    check(0o120_777, "Lrwxrwxrwx");
    check(0o041_777, "dtrwxrwxrwx");
    check(0o104_755, "urwxr-xr-x");
    check(0o106_711, "ugrwx--x--x");
    check(0o020_666, "Dcrw-rw-rw-");
    check(0o060_660, "Drw-rw----");
    check(0o010_600, "prw-------");
    check(0o140_755, "Srwxr-xr-x");
    check(0o100_000, "----------");
}

#[test]
fn names_are_the_last_part_of_a_path() {
    for (path, name) in [("/a/b", "b"), ("/a/b/", "b"), ("/", "/"), ("/a/..", "..")] {
        assert_eq!(name_of(Path::new(path)), name, "{path}");
    }
}

#[test]
fn a_link_is_described_with_the_type_of_what_it_leads_to() {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().canonicalize().unwrap();
    std::fs::write(real.join("file"), "1234").unwrap();
    std::fs::set_permissions(real.join("file"), PermissionsExt::from_mode(0o640)).unwrap();
    symlink("file", real.join("one")).unwrap();
    symlink("one", real.join("two")).unwrap();
    symlink("nowhere", real.join("dead")).unwrap();
    symlink(".", real.join("dir")).unwrap();

    let entry = |name: &str| describe(&real.join(name), &mut Names::default()).unwrap();
    let two = entry("two");
    assert_eq!(two.r#type, EnumValue::Known(FileType::FILE_TYPE_FILE));
    assert_eq!((two.mode, two.size), (0o640, 3));
    assert_eq!(two.permissions, "Lrwxrwxrwx");
    assert!(!two.is_symlink, "newer SDKs would make another type of it");
    assert_eq!(two.symlink_target.as_deref(), real.join("file").to_str());

    let dead = entry("dead");
    assert_eq!(dead.r#type, EnumValue::Known(FileType::FILE_TYPE_UNSPECIFIED));
    assert_eq!((dead.mode, dead.symlink_target.as_deref()), (0, real.join("dead").to_str()));
    assert_eq!(entry("dir").r#type, EnumValue::Known(FileType::FILE_TYPE_DIRECTORY));

    let file = entry("file");
    assert_eq!((file.name.as_str(), file.size, file.mode), ("file", 4, 0o640));
    assert!(file.symlink_target.is_none());
    assert!(file.modified_time.as_option().is_some_and(|t| t.seconds > 1_700_000_000));
    let missing = describe(&real.join("missing"), &mut Names::default());
    assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
}
