use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use EventType::{
    EVENT_TYPE_CHMOD as CHMOD, EVENT_TYPE_CREATE as CREATE, EVENT_TYPE_REMOVE as REMOVE,
    EVENT_TYPE_RENAME as RENAME, EVENT_TYPE_WRITE as WRITE,
};

use super::*;

struct Watched {
    dir: tempfile::TempDir,
    tree: Tree,
}

impl Watched {
    fn new(recursive: bool, prepare: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path());
        let tree = Tree::new(dir.path(), recursive).unwrap();
        Self { dir, tree }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn changes(&mut self) -> Vec<(String, EventType)> {
        let mut out = Vec::new();
        self.tree.drain(&mut out).unwrap();
        out.into_iter().map(|c| (c.path.to_str().unwrap().to_owned(), c.kind)).collect()
    }

    fn expect(&mut self, want: &[(&str, EventType)]) {
        let got = self.changes();
        let got: Vec<_> = got.iter().map(|(path, kind)| (path.as_str(), *kind)).collect();
        assert_eq!(got, want);
    }
}

#[test]
fn a_directory_reports_its_entries_and_nothing_below() {
    let mut w = Watched::new(false, |dir| fs::create_dir(dir.join("sub")).unwrap());
    fs::write(w.at("f"), "x").unwrap();
    fs::set_permissions(w.at("f"), PermissionsExt::from_mode(0o600)).unwrap();
    fs::rename(w.at("f"), w.at("g")).unwrap();
    fs::remove_file(w.at("g")).unwrap();
    fs::write(w.at("sub/f"), "x").unwrap();
    fs::create_dir(w.at("new")).unwrap();
    fs::write(w.at("new/f"), "x").unwrap();
    w.expect(&[
        ("f", CREATE),
        ("f", WRITE),
        ("f", CHMOD),
        ("f", RENAME),
        ("g", CREATE),
        ("g", REMOVE),
        ("new", CREATE),
    ]);
    w.expect(&[]);
}

#[test]
fn a_tree_reports_what_happens_anywhere_in_it() {
    let mut w = Watched::new(true, |dir| fs::create_dir_all(dir.join("a/b/c")).unwrap());
    fs::write(w.at("a/b/c/f"), "x").unwrap();
    fs::set_permissions(w.at("a/b"), PermissionsExt::from_mode(0o700)).unwrap();
    fs::remove_dir_all(w.at("a/b/c")).unwrap();
    w.expect(&[
        ("a/b/c/f", CREATE),
        ("a/b/c/f", WRITE),
        ("a/b", CHMOD),
        ("a/b/c/f", REMOVE),
        ("a/b/c", REMOVE),
    ]);
}

#[test]
fn what_was_in_a_new_directory_before_it_was_watched_is_reported_once() {
    let mut w = Watched::new(true, |_| {});
    fs::create_dir_all(w.at("a/b/c")).unwrap();
    fs::write(w.at("a/b/c/f"), "x").unwrap();
    fs::write(w.at("a/empty"), "").unwrap();
    let mut got = w.changes();
    got.sort_by(|a, b| a.0.cmp(&b.0));
    let want = [
        ("a", CREATE),
        ("a/b", CREATE),
        ("a/b/c", CREATE),
        ("a/b/c/f", CREATE),
        ("a/b/c/f", WRITE),
        ("a/empty", CREATE),
    ];
    assert_eq!(got.iter().map(|(p, k)| (p.as_str(), *k)).collect::<Vec<_>>(), want);
    fs::write(w.at("a/b/c/g"), "").unwrap();
    w.expect(&[("a/b/c/g", CREATE)]);
}

#[test]
fn entries_made_while_their_directory_is_being_attached_are_reported_exactly_once() {
    let mut w = Watched::new(true, |_| {});
    let root = w.dir.path().to_owned();
    let writer = std::thread::spawn(move || {
        for i in 0..300 {
            let dir = root.join(format!("d{i}/x/y"));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("file"), "x").unwrap();
        }
    });
    let mut all = Vec::new();
    while !writer.is_finished() {
        all.extend(w.changes());
    }
    writer.join().unwrap();
    all.extend(w.changes());
    let mut created: Vec<String> = all.iter().filter(|(_, k)| *k == CREATE).map(|(p, _)| p.clone()).collect();
    let mut want: Vec<String> =
        (0..300).flat_map(|i| ["", "/x", "/x/y", "/x/y/file"].map(|p| format!("d{i}{p}"))).collect();
    want.sort();
    created.sort();
    assert!(created == want, "{} of {}", created.len(), want.len());
    // The kernel tells of a write after it can be seen, so that one may be found and told of as well.
    for i in 0..300 {
        let path = format!("d{i}/x/y/file");
        let writes = all.iter().filter(|(p, k)| *k == WRITE && *p == path).count();
        assert!((1..=2).contains(&writes), "{writes} for {path}");
    }
}

#[test]
fn a_directory_that_is_renamed_inside_keeps_being_watched_under_its_new_name() {
    let mut w = Watched::new(true, |dir| fs::create_dir_all(dir.join("a/b")).unwrap());
    fs::rename(w.at("a"), w.at("z")).unwrap();
    fs::write(w.at("z/b/f"), "").unwrap();
    w.expect(&[("a", RENAME), ("z", CREATE), ("z/b/f", CREATE)]);
    fs::create_dir(w.at("a")).unwrap();
    fs::write(w.at("z/b/f"), "x").unwrap();
    w.expect(&[("a", CREATE), ("z/b/f", WRITE)]);
}

#[test]
fn a_directory_that_leaves_is_not_watched_any_more_and_one_that_comes_is_complete() {
    let mut w = Watched::new(true, |dir| fs::create_dir_all(dir.join("a/b")).unwrap());
    let outside = tempfile::tempdir_in(w.dir.path().parent().unwrap()).unwrap();
    fs::rename(w.at("a"), outside.path().join("a")).unwrap();
    w.expect(&[("a", RENAME)]);
    fs::write(outside.path().join("a/b/f"), "x").unwrap();
    w.expect(&[]);
    assert!(w.tree.nodes.is_empty() && w.tree.children.is_empty());
    fs::rename(outside.path().join("a"), w.at("back")).unwrap();
    w.expect(&[("back", CREATE), ("back/b", CREATE), ("back/b/f", CREATE), ("back/b/f", WRITE)]);
}

#[test]
fn links_to_directories_are_entries_like_any_other() {
    let other = tempfile::tempdir().unwrap();
    let mut w = Watched::new(true, |dir| symlink(other.path(), dir.join("old")).unwrap());
    symlink(other.path(), w.at("new")).unwrap();
    fs::write(other.path().join("f"), "x").unwrap();
    w.expect(&[("new", CREATE)]);
}

#[test]
fn the_end_of_the_root_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("sub")).unwrap();
    let mut tree = Tree::new(&root, true).unwrap();
    fs::remove_dir_all(&root).unwrap();
    let mut out = Vec::new();
    tree.drain(&mut out).unwrap();
    let removed = |path: &str| out.contains(&Change { path: path.into(), kind: REMOVE });
    assert!(removed("sub") && removed("."), "{out:?}");
}

#[test]
fn events_that_the_kernel_had_to_drop_are_an_error() {
    let mut w = Watched::new(false, |_| {});
    let limit: usize =
        fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    for i in 0..limit.min(MAX_CHANGES) + 1 {
        // Different names, since the kernel merges equal events.
        let path = w.at(&format!("{}", i % 2));
        if fs::remove_file(&path).is_err() {
            fs::write(&path, "").unwrap();
        }
    }
    assert!(matches!(w.tree.drain(&mut Vec::new()), Err(WatchError::Lost)));
}

#[test]
fn ten_thousand_files_are_reported_completely() {
    let mut w = Watched::new(true, |_| {});
    fs::create_dir(w.at("d")).unwrap();
    w.changes();
    for i in 0..10_000 {
        fs::File::create(w.at(&format!("d/{i}"))).unwrap();
    }
    assert_eq!(w.changes().len(), 10_000);
}
