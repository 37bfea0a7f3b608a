//! The `Range` header.

/// What a request wants of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All of it.
    Whole,
    /// `len` > 0 bytes from `start`, within the file.
    Part {
        /// The first byte.
        start: u64,
        /// How many bytes.
        len: u64,
    },
    /// Something outside of the file, or nonsense.
    Unsatisfiable,
}

/// Reads `header` for a file of `size` bytes. Units other than bytes, several ranges and any range of an empty file
/// mean the whole file, which the protocol allows as the answer.
pub(super) fn parse(header: &str, size: u64) -> Wanted {
    let Some(("bytes", list)) = header.split_once('=').map(|(unit, list)| (unit.trim(), list)) else {
        return Wanted::Whole;
    };
    let mut ranges = list.split(',').map(str::trim).filter(|r| !r.is_empty());
    let (first, more) = (ranges.next(), ranges.next());
    match first {
        Some(range) if more.is_none() => single(range, size),
        _ if more.is_some() => Wanted::Whole,
        _ => Wanted::Unsatisfiable,
    }
}

fn single(range: &str, size: u64) -> Wanted {
    let Some((from, to)) = range.split_once('-').map(|(f, t)| (f.trim(), t.trim())) else {
        return Wanted::Unsatisfiable;
    };
    let bounds = match (from, to) {
        ("", last) => number(last).map(|n| (size.saturating_sub(n), size)),
        (from, "") => number(from).map(|from| (from, size)),
        (from, to) => number(from)
            .zip(number(to))
            .filter(|(from, to)| from <= to)
            .map(|(from, to)| (from, to.saturating_add(1).min(size))),
    };
    match bounds {
        Some(_) if size == 0 => Wanted::Whole,
        Some((start, end)) if start < end => Wanted::Part { start, len: end - start },
        _ => Wanted::Unsatisfiable,
    }
}

/// Digits only, unlike `parse` alone, which takes a sign. A number too large for 64 bits is as good as the largest.
fn number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_mean_what_the_protocol_says() {
        let part = |start, len| Wanted::Part { start, len };
        let check = |header: &str, want| assert_eq!(parse(header, 10), want, "{header}");
        check("bytes=0-4", part(0, 5));
        check("bytes=3-", part(3, 7));
        check("bytes=-3", part(7, 3));
        check("bytes=-30", part(0, 10));
        check("bytes=9-9", part(9, 1));
        check("bytes=5-99999999999999999999999", part(5, 5));
        check(" bytes = 1 - 2 ,", part(1, 2));
        check("bytes=10-", Wanted::Unsatisfiable);
        check("bytes=4-2", Wanted::Unsatisfiable);
        check("bytes=-0", Wanted::Unsatisfiable);
        check("bytes=a-b", Wanted::Unsatisfiable);
        check("bytes=+1-2", Wanted::Unsatisfiable);
        check("bytes=", Wanted::Unsatisfiable);
        check("bytes=5", Wanted::Unsatisfiable);
        check("bytes=0-1,4-5", Wanted::Whole);
        check("lines=1-2", Wanted::Whole);
        check("nonsense", Wanted::Whole);
    }

    #[test]
    fn a_range_of_an_empty_file_is_the_empty_file() {
        assert_eq!(parse("bytes=0-", 0), Wanted::Whole);
        assert_eq!(parse("bytes=-5", 0), Wanted::Whole);
    }

    proptest! {
        #[test]
        fn a_part_lies_within_the_file(header in "bytes=[0-9, -]{0,30}|.{0,40}", size in any::<u64>()) {
            if let Wanted::Part { start, len } = parse(&header, size) {
                prop_assert!(len > 0);
                prop_assert!(start.checked_add(len).is_some_and(|end| end <= size));
            }
        }

        #[test]
        fn first_and_last_byte_are_both_included(a in 0u64..1000, b in 0u64..1000, size in 1u64..2000) {
            let (from, to) = (a.min(b), a.max(b));
            let want = if from >= size {
                Wanted::Unsatisfiable
            } else {
                Wanted::Part { start: from, len: to.min(size - 1) - from + 1 }
            };
            prop_assert_eq!(parse(&format!("bytes={from}-{to}"), size), want);
        }
    }
}
