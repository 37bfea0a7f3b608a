//! The events that the kernel writes, as bytes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::inotify::ReadFlags;

/// One event, borrowed from the buffer that was read into.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Event<'a> {
    /// The watch.
    pub(super) wd: i32,
    pub(super) flags: ReadFlags,
    /// What the two halves of a rename have in common.
    pub(super) cookie: u32,
    /// The entry of the watched directory; empty when the event is about that itself.
    pub(super) name: &'a OsStr,
}

/// Takes the first event off `bytes`: four 32-bit numbers, the last of which is the length of the name after them,
/// which is padded with zeros. `None` at the end, or where the bytes are not such.
pub(super) fn take<'a>(bytes: &mut &'a [u8]) -> Option<Event<'a>> {
    let (head, rest) = bytes.split_first_chunk::<16>()?;
    let number = |at: usize| Some(u32::from_ne_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let (name, rest) = rest.split_at_checked(usize::try_from(number(12)?).ok()?)?;
    *bytes = rest;
    let name = name.split(|b| *b == 0).next().unwrap_or_default();
    Some(Event {
        wd: number(0)?.cast_signed(),
        flags: ReadFlags::from_bits_retain(number(4)?),
        cookie: number(8)?,
        name: OsStr::from_bytes(name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(wd: i32, mask: u32, cookie: u32, name: &[u8]) -> Vec<u8> {
        let len = u32::try_from(name.len()).unwrap();
        [&wd.to_ne_bytes()[..], &mask.to_ne_bytes(), &cookie.to_ne_bytes(), &len.to_ne_bytes(), name].concat()
    }

    #[test]
    fn events_are_taken_one_by_one() {
        let mut all = bytes(3, 0x100, 0, b"a.txt\0\0\0");
        all.extend(bytes(-1, 0x4000, 7, b""));
        all.extend_from_slice(b"half an event");
        let mut rest = &all[..];
        let want = Event { wd: 3, flags: ReadFlags::CREATE, cookie: 0, name: OsStr::new("a.txt") };
        assert_eq!(take(&mut rest), Some(want));
        let want = Event { wd: -1, flags: ReadFlags::QUEUE_OVERFLOW, cookie: 7, name: OsStr::new("") };
        assert_eq!(take(&mut rest), Some(want));
        assert_eq!(take(&mut rest), None);
        assert_eq!(rest, b"half an event");
    }

    #[test]
    fn a_name_longer_than_the_buffer_is_not_taken() {
        let all = bytes(1, 0x100, 0, b"name");
        assert_eq!(take(&mut &all[..all.len() - 1]), None);
    }
}
