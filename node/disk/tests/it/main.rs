//! Disks on the real kernel: loop devices, ext4, overlay. Needs root; without it every test here prints `SKIP`.

#![allow(clippy::expect_used, reason = "a test ends where a step fails")]

mod disks;
mod imports;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use hutch_disk::{DiskConfig, DiskStore, DiskSupport, Image, ImageConfig, ImportLimits, LayerId};
use hutch_types::BuildId;
use hutch_types::ids::random_base36;
use rustix::mount::UnmountFlags;

/// A data directory and a mount directory, removed at the end of the test, however it ends.
struct Fixture {
    data: tempfile::TempDir,
    mounts: PathBuf,
}

impl Fixture {
    /// `None`, with a visible reason, where disks cannot be made.
    fn new(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: {test}: not root");
            return None;
        }
        let data = tempfile::tempdir().expect("tempdir");
        let support = DiskSupport::detect(data.path());
        if !support.works() {
            println!("SKIP: {test}: {support:?}");
            return None;
        }
        Some(Self { data, mounts: PathBuf::from(format!("/run/hutch-test-{}", random_base36(10))) })
    }

    fn config(&self) -> DiskConfig {
        let mut config = DiskConfig::new(self.data.path());
        config.mount_dir = self.mounts.clone();
        config.reserve_mib = 64;
        config
    }

    fn open(&self) -> DiskStore {
        DiskStore::open(self.config()).expect("open the store")
    }

    /// How many mounts there are of ours, the mount directory itself left out.
    fn mount_count(&self) -> usize {
        let prefix = format!("{}/", self.mounts.display());
        std::fs::read_to_string("/proc/self/mountinfo")
            .expect("mountinfo")
            .lines()
            .filter(|line| line.split(' ').nth(4).is_some_and(|target| target.starts_with(&prefix)))
            .count()
    }

    /// Loop devices with a file of ours behind them.
    fn loop_count(&self) -> usize {
        std::fs::read_dir("/sys/block")
            .expect("/sys/block")
            .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("loop/backing_file")).ok())
            .filter(|file| Path::new(file).starts_with(self.data.path()))
            .count()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Ok(store) = DiskStore::open(self.config())
            && let Err(error) = store.sweep(&HashSet::new())
        {
            eprintln!("leftovers in {}: {error:?}", self.mounts.display());
        }
        while rustix::mount::unmount(&self.mounts, UnmountFlags::NOFOLLOW).is_ok() {}
        drop(std::fs::remove_dir(&self.mounts));
    }
}

/// An archive made by the given steps.
fn archive(fill: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    fill(&mut builder);
    builder.into_inner().expect("archive")
}

/// One entry with a path that is written as it is, however hostile.
fn entry(builder: &mut tar::Builder<Vec<u8>>, kind: tar::EntryType, path: &str, link: &str, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_mode(if kind == tar::EntryType::Directory { 0o755 } else { 0o644 });
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_700_000_000);
    let gnu = header.as_gnu_mut().expect("gnu");
    gnu.name[..path.len()].copy_from_slice(path.as_bytes());
    gnu.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    builder.append(&header, content).expect("append");
}

fn import(store: &DiskStore, archive: &[u8]) -> LayerId {
    store.import_tar(archive, ImportLimits::default(), &mut |_| {}).expect("import").layer
}

/// A tiny image: `/etc/motd`, `/home/user`, a directory to rename.
fn small_image(store: &DiskStore) -> Image {
    let bytes = archive(|b| {
        entry(b, tar::EntryType::Directory, "./", "", b"");
        entry(b, tar::EntryType::Directory, "./etc/", "", b"");
        entry(b, tar::EntryType::Regular, "./etc/motd", "", b"hello\n");
        entry(b, tar::EntryType::Directory, "./home/user/", "", b"");
    });
    let layer = import(store, &bytes);
    store.register_image(BuildId::random(), ImageConfig::default(), vec![layer]).expect("register")
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect("run");
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
