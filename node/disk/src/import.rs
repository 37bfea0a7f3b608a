//! Unpacks root filesystem archives into layers.
//!
//! Archives are hostile until proven otherwise. Every path is resolved by the kernel beneath the new tree and without
//! following symlinks, so nothing is written outside of it whatever the archive contains. Owners are shifted while
//! unpacking. Of extended attributes only `user.*` are kept: file capabilities (`security.capability`) are dropped,
//! since they would name the wrong user namespace; programs that relied on them are started through sudo instead.
//! Device nodes are skipped: sandboxes get theirs from the runtime.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{Attempt, DiskError, ImportError};
use crate::files;
use crate::image::LayerId;
use crate::store::DiskStore;
use crate::tarball::{Entry, Kind, Reader};
use crate::unpack::Unpacker;

/// Progress is reported about this often.
const PROGRESS_BYTES: u64 = 16 * 1024 * 1024;

const BUFFER_BYTES: usize = 256 * 1024;

/// What an archive may contain at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportLimits {
    /// Bytes of the archive, and of all files together.
    pub max_bytes: u64,
    /// Entries: files, directories, links.
    pub max_entries: u64,
}

impl Default for ImportLimits {
    fn default() -> Self {
        Self { max_bytes: 64 << 30, max_entries: 4_000_000 }
    }
}

/// How far an import is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImportProgress {
    /// Bytes of the archive that were read.
    pub archive_bytes: u64,
    /// Entries that were unpacked.
    pub entries: u64,
}

/// What was imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The layer.
    pub layer: LayerId,
    /// Entries unpacked.
    pub entries: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Device nodes that were left out.
    pub skipped_devices: u64,
    /// Whether the same archive had been imported before.
    pub was_present: bool,
}

impl DiskStore {
    /// Unpacks an uncompressed tar archive of a root filesystem into a layer. Durable on return.
    ///
    /// `progress` is called about every 16 MiB and at the end.
    ///
    /// # Errors
    /// [`ImportError`]; nothing of the archive is left then.
    pub fn import_tar(
        &self,
        archive: impl Read,
        limits: ImportLimits,
        progress: &mut dyn FnMut(ImportProgress),
    ) -> Result<Imported, ImportError> {
        let temporary = files::temporary_beside(&self.inner.layers_dir.join("layer"));
        files::make_dir(&temporary, 0o700)?;
        let imported = self.import_into(&temporary, archive, limits, progress);
        // After publishing there is nothing under this name any more.
        if let Err(error) = files::absent_is_fine(fs::remove_dir_all(&temporary)) {
            tracing::warn!(path = %temporary.display(), %error, "an unfinished layer is left for the next sweep");
        }
        imported.map_err(|error| match error {
            ImportError::Read(cause) if cause.kind() == io::ErrorKind::FileTooLarge => {
                ImportError::TooLarge { what: "bytes", limit: limits.max_bytes }
            }
            other => other,
        })
    }

    fn import_into(
        &self,
        temporary: &Path,
        archive: impl Read,
        limits: ImportLimits,
        progress: &mut dyn FnMut(ImportProgress),
    ) -> Result<Imported, ImportError> {
        let tree = temporary.join("tree");
        files::make_dir(&tree, 0o755)?;
        let mut unpacker =
            Unpacker::new(&tree, self.inner.shift).attempting(|| format!("open {}", tree.display()))?;
        let mut reader = Reader::new(Metered::new(archive, limits.max_bytes));
        let mut import =
            Import { limits, entries: 0, bytes: 0, skipped_devices: 0, buffer: vec![0; BUFFER_BYTES] };
        let mut reported = 0;
        while let Some(entry) = reader.next_entry()? {
            import.unpack(&entry, &mut reader, &mut unpacker)?;
            let archive_bytes = reader.source().bytes;
            if archive_bytes - reported >= PROGRESS_BYTES {
                reported = archive_bytes;
                progress(ImportProgress { archive_bytes, entries: import.entries });
            }
        }
        let archive = reader.into_source();
        let (digest, archive_bytes) = archive.finish()?;
        unpacker.finish().map_err(|source| ImportError::Write { entry: "/".to_owned(), source })?;
        let layer = LayerId::from_digest(&digest);
        let was_present = self.publish(temporary, &layer)?;
        progress(ImportProgress { archive_bytes, entries: import.entries });
        Ok(Imported {
            layer,
            entries: import.entries,
            bytes: import.bytes,
            skipped_devices: import.skipped_devices,
            was_present,
        })
    }

    /// Gives a finished layer its name. Returns whether there was one of that name already.
    fn publish(&self, temporary: &Path, layer: &LayerId) -> Result<bool, DiskError> {
        let target = self.inner.layers_dir.join(layer.as_str());
        let publish = || -> io::Result<bool> {
            match rustix::fs::renameat_with(
                rustix::fs::CWD,
                temporary,
                rustix::fs::CWD,
                &target,
                rustix::fs::RenameFlags::NOREPLACE,
            ) {
                Ok(()) => {}
                Err(rustix::io::Errno::EXIST) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
            files::sync_parent(&target)?;
            Ok(false)
        };
        publish().attempting(|| format!("publish layer {layer}"))
    }
}

/// Counts during one import.
struct Import {
    limits: ImportLimits,
    entries: u64,
    bytes: u64,
    skipped_devices: u64,
    buffer: Vec<u8>,
}

impl Import {
    fn unpack<R: Read>(
        &mut self,
        entry: &Entry,
        reader: &mut Reader<R>,
        unpacker: &mut Unpacker,
    ) -> Result<(), ImportError> {
        self.entries += 1;
        if self.entries > self.limits.max_entries {
            return Err(ImportError::TooLarge { what: "entries", limit: self.limits.max_entries });
        }
        match &entry.kind {
            Kind::Device => {
                self.skipped_devices += 1;
                Ok(())
            }
            Kind::File => {
                self.bytes = self.bytes.saturating_add(entry.size);
                if self.bytes > self.limits.max_bytes {
                    return Err(ImportError::TooLarge { what: "bytes", limit: self.limits.max_bytes });
                }
                let mut file = unpacker.create_file(entry)?;
                loop {
                    let count = reader.read_content(&mut self.buffer)?;
                    match self.buffer.get(..count) {
                        Some(chunk) if count > 0 => file.write(chunk).map_err(|e| write_error(entry, e))?,
                        _ => break,
                    }
                }
                file.finish(entry).map_err(|e| write_error(entry, e))
            }
            _ => unpacker.create_other(entry),
        }
    }
}

pub(crate) fn write_error(entry: &Entry, source: io::Error) -> ImportError {
    ImportError::Write { entry: String::from_utf8_lossy(&entry.path).into_owned(), source }
}

/// The archive's bytes on their way in: counted, capped and hashed.
struct Metered<R> {
    source: R,
    hash: Sha256,
    bytes: u64,
    limit: u64,
}

impl<R: Read> Metered<R> {
    fn new(source: R, limit: u64) -> Self {
        Self { source, hash: Sha256::new(), bytes: 0, limit }
    }

    /// Reads what is behind the end mark, so that the hash is that of the whole archive.
    fn finish(mut self) -> Result<(Vec<u8>, u64), ImportError> {
        io::copy(&mut self, &mut io::sink()).map_err(ImportError::Read)?;
        Ok((self.hash.finalize().to_vec(), self.bytes))
    }
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buf)?;
        self.bytes += count as u64;
        if self.bytes > self.limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.hash.update(buf.get(..count).unwrap_or_default());
        Ok(count)
    }
}
