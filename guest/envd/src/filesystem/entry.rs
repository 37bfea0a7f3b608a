//! Descriptions of files, directories and links.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use buffa::{EnumValue, Inline, MessageField};
use buffa_types::google::protobuf::Timestamp;
use hutch_proto::filesystem::{EntryInfo, FileType};

use crate::files::metadata;
use crate::users;

/// Names of owners, looked up once each. One of these serves one request, since names may change.
#[derive(Debug, Default)]
pub(crate) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    fn user(&mut self, uid: u32) -> String {
        let find = || users::user_name(uid).unwrap_or_else(|| uid.to_string());
        self.users.entry(uid).or_insert_with(find).clone()
    }

    fn group(&mut self, gid: u32) -> String {
        let find = || users::group_name(gid).unwrap_or_else(|| gid.to_string());
        self.groups.entry(gid).or_insert_with(find).clone()
    }
}

/// Describes what is at `path`. A link is described as such (size, owner, permissions), but with the type and the mode
/// of what it leads to, and with where that is, which is what tells that it is a link. A link that leads nowhere has
/// no type and leads to itself.
///
/// `is_symlink` stays unset for every client, as in the version of envd that this one says it is. E2B's does not tell
/// clients apart here, and neither does this one: SDKs that know the field make another type of such an entry, so that
/// a program would see other types than with that version. A link is told by `symlink_target`, in every SDK.
///
/// # Errors
/// What `lstat` says.
pub(crate) fn describe(path: &Path, names: &mut Names) -> io::Result<EntryInfo> {
    let found = std::fs::symlink_metadata(path)?;
    let mut entry = EntryInfo {
        name: name_of(path),
        r#type: EnumValue::Known(type_of(found.mode())),
        path: path.to_string_lossy().into_owned(),
        size: i64::try_from(found.len()).unwrap_or(i64::MAX),
        mode: found.mode() & 0o777,
        permissions: permissions(found.mode()),
        owner: names.user(found.uid()),
        group: names.group(found.gid()),
        modified_time: timestamp(found.mtime(), found.mtime_nsec()),
        metadata: metadata::read(path).into_iter().collect(),
        ..EntryInfo::default()
    };
    if found.is_symlink() {
        let target = std::fs::canonicalize(path);
        let led_to = target.as_ref().ok().and_then(|t| std::fs::metadata(t).ok());
        let (kind, mode) =
            led_to.map_or((FileType::FILE_TYPE_UNSPECIFIED, 0), |t| (type_of(t.mode()), t.mode() & 0o777));
        entry.r#type = EnumValue::Known(kind);
        entry.mode = mode;
        entry.symlink_target = Some(target.as_deref().unwrap_or(path).to_string_lossy().into_owned());
    }
    Ok(entry)
}

/// The last part of a path; all of it for the root.
fn name_of(path: &Path) -> String {
    match path.components().next_back() {
        Some(last) => last.as_os_str().to_string_lossy().into_owned(),
        None => String::new(),
    }
}

fn timestamp(seconds: i64, nanos: i64) -> MessageField<Timestamp, Inline<Timestamp>> {
    if (seconds, nanos) == (0, 0) {
        return MessageField::none();
    }
    let nanos = i32::try_from(nanos).unwrap_or(0);
    MessageField::some(Timestamp { seconds, nanos, ..Timestamp::default() })
}

fn kind(mode: u32) -> rustix::fs::FileType {
    rustix::fs::FileType::from_raw_mode(mode)
}

fn type_of(mode: u32) -> FileType {
    match kind(mode) {
        rustix::fs::FileType::RegularFile => FileType::FILE_TYPE_FILE,
        rustix::fs::FileType::Directory => FileType::FILE_TYPE_DIRECTORY,
        _ => FileType::FILE_TYPE_UNSPECIFIED,
    }
}

/// A mode as the SDKs expect it in words: letters for the kind and the special bits, then nine for the permissions.
/// A plain file without special bits has a dash for a kind.
fn permissions(mode: u32) -> String {
    use rustix::fs::FileType as Kind;
    let kind = kind(mode);
    let letters = [
        (kind == Kind::Directory, 'd'),
        (kind == Kind::Symlink, 'L'),
        (matches!(kind, Kind::BlockDevice | Kind::CharacterDevice), 'D'),
        (kind == Kind::Fifo, 'p'),
        (kind == Kind::Socket, 'S'),
        (mode & 0o4000 != 0, 'u'),
        (mode & 0o2000 != 0, 'g'),
        (kind == Kind::CharacterDevice, 'c'),
        (mode & 0o1000 != 0, 't'),
    ];
    let mut out: String = letters.into_iter().filter_map(|(set, letter)| set.then_some(letter)).collect();
    if out.is_empty() {
        out.push('-');
    }
    let bits = (0..9).rev().zip("rwxrwxrwx".chars());
    out.extend(bits.map(|(bit, letter)| if mode & (1 << bit) != 0 { letter } else { '-' }));
    out
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
