//! What is kept on disk about an instance for the next daemon.
//!
//! Written to a temporary file and renamed, so that a reader finds the old content or the new one. Not synced: an instance
//! does not survive a crash of the host, and then its record is of no use either.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use hutch_runtime::InstanceSpec;
use hutch_types::PauseMode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const RECORD: &str = "instance.json";
const LABELS: &str = "labels.json";
const SAVED: &str = "saved.json";

/// The version of the format. A daemon that finds another one ends the instance.
const VERSION: u32 = 1;

/// How to find a running instance again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    /// What it was started with. Holds a secret: the directory is root's alone.
    pub spec: InstanceSpec,
    /// The index of its slot.
    pub slot: u32,
    /// Its first process on the host.
    pub pid: i32,
    /// When that was started, in clock ticks since the host's boot.
    pub start_ticks: u64,
    /// Addresses that it had in earlier lives.
    #[serde(default)]
    pub former: Vec<Ipv4Addr>,
}

impl Record {
    pub fn new(spec: InstanceSpec, slot: u32, pid: i32, start_ticks: u64) -> Self {
        Self { version: VERSION, spec, slot, pid, start_ticks, former: Vec::new() }
    }

    pub fn write(&self, dir: &Path) -> io::Result<()> {
        replace(&dir.join(RECORD), &serde_json::to_vec(self)?)
    }

    pub fn read(dir: &Path) -> io::Result<Self> {
        let record: Self = read_json(&dir.join(RECORD))?;
        if record.version != VERSION {
            let what = format!("its record has version {}, not {VERSION}", record.version);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(record)
    }
}

/// That an instance is saved. Once this is on disk it is paused, whatever else is left of it; before, it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Saved {
    version: u32,
    /// What is saved.
    pub mode: PauseMode,
    /// What it was started with. Holds a secret: the directory is root's alone.
    pub spec: InstanceSpec,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Addresses that it has had, the last one at the end.
    pub former: Vec<Ipv4Addr>,
}

impl Saved {
    pub fn new(
        mode: PauseMode,
        spec: InstanceSpec,
        labels: BTreeMap<String, String>,
        former: Vec<Ipv4Addr>,
    ) -> Self {
        Self { version: VERSION, mode, spec, labels, former }
    }

    /// Durable on return.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let path = dir.join(SAVED);
        replace_durable(&path, &serde_json::to_vec(self)?)
    }

    /// `None` when it is not saved.
    pub fn read(dir: &Path) -> io::Result<Option<Self>> {
        match read_json::<Self>(&dir.join(SAVED)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Ok(saved) if saved.version != VERSION => {
                let what = format!("it was saved in version {}, not {VERSION}", saved.version);
                Err(io::Error::new(io::ErrorKind::InvalidData, what))
            }
            other => other.map(Some),
        }
    }

    /// It runs again.
    pub fn remove(dir: &Path) -> io::Result<()> {
        match fs::remove_file(dir.join(SAVED)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => File::open(dir)?.sync_all(),
        }
    }
}

/// The labels of an instance; none when they were never set.
pub(crate) fn read_labels(dir: &Path) -> io::Result<BTreeMap<String, String>> {
    match read_json(&dir.join(LABELS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        other => other,
    }
}

/// Replaces the labels of an instance as a whole.
pub(crate) fn write_labels(dir: &Path, labels: &BTreeMap<String, String>) -> io::Result<()> {
    replace(&dir.join(LABELS), &serde_json::to_vec(labels)?)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    drop(write_beside(path, content)?);
    fs::rename(path.with_extension("tmp"), path)
}

/// As [`replace`], for what has to survive a crash of the host.
fn replace_durable(path: &Path, content: &[u8]) -> io::Result<()> {
    write_beside(path, content)?.sync_all()?;
    fs::rename(path.with_extension("tmp"), path)?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

fn write_beside(path: &Path, content: &[u8]) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let mut file =
        options.write(true).create(true).truncate(true).mode(0o600).open(path.with_extension("tmp"))?;
    file.write_all(content)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::tests::spec;

    #[test]
    fn a_record_is_read_back_and_only_root_can() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let record = Record::new(spec(), 7, 1234, 99);
        record.write(dir.path()).unwrap();
        assert_eq!(Record::read(dir.path()).unwrap(), record);
        let mode = fs::metadata(dir.path().join(RECORD)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_record_of_another_version_or_half_a_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = Record::new(spec(), 7, 1234, 99);
        record.version = 2;
        record.write(dir.path()).unwrap();
        assert!(Record::read(dir.path()).unwrap_err().to_string().contains("version 2"));
        fs::write(dir.path().join(RECORD), "{\"version\":1,").unwrap();
        assert!(Record::read(dir.path()).is_err());
    }

    #[test]
    fn labels_are_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_labels(dir.path()).unwrap().is_empty());
        let labels = |key: &str| BTreeMap::from([(key.to_owned(), "v".to_owned())]);
        write_labels(dir.path(), &labels("a")).unwrap();
        write_labels(dir.path(), &labels("b")).unwrap();
        assert_eq!(read_labels(dir.path()).unwrap(), labels("b"));
    }
}
