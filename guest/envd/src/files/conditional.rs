//! Validators of a file and the conditions that requests put on them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, header};

/// What tells one content of a file from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Validators {
    /// Without the quotes.
    tag: String,
    modified: SystemTime,
}

/// How a request with conditions is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// As if there were no conditions.
    Proceed,
    /// 304: the client has it.
    NotModified,
    /// 412: it is not what the client takes it for.
    Failed,
}

impl Validators {
    /// From what `fstat` says: inode, size, and seconds and nanoseconds of the last change.
    pub(super) fn new(inode: u64, size: u64, seconds: i64, nanos: u32) -> Self {
        let tag = format!("{inode:x}-{size:x}-{seconds:x}.{nanos:x}");
        // Times before 1970 cannot be said in HTTP.
        let seconds = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        Self { tag, modified: UNIX_EPOCH.checked_add(seconds).unwrap_or(UNIX_EPOCH) }
    }

    /// `ETag` of the bytes as they are.
    pub(super) fn etag(&self) -> String {
        format!("\"{}\"", self.tag)
    }

    /// `ETag` of a coded form, which is equivalent but not the same bytes.
    pub(super) fn weak_etag(&self) -> String {
        format!("W/\"{}\"", self.tag)
    }

    /// `Last-Modified`.
    pub(super) fn last_modified(&self) -> String {
        httpdate::fmt_http_date(self.modified)
    }

    /// Judges `If-Match`, `If-Unmodified-Since`, `If-None-Match` and `If-Modified-Since`, in the order the protocol
    /// sets. A date that cannot be read is no condition.
    pub(super) fn judge(&self, headers: &HeaderMap) -> Verdict {
        let date = |name: HeaderName| text(headers, name).and_then(|t| httpdate::parse_http_date(t).ok());
        let since = if let Some(tags) = text(headers, header::IF_MATCH) {
            (!self.named_in(tags, false)).then_some(Verdict::Failed)
        } else {
            date(header::IF_UNMODIFIED_SINCE).filter(|d| self.modified > *d).map(|_| Verdict::Failed)
        };
        if let Some(failed) = since {
            return failed;
        }
        let fresh = match text(headers, header::IF_NONE_MATCH) {
            Some(tags) => self.named_in(tags, true),
            None => date(header::IF_MODIFIED_SINCE).is_some_and(|d| self.modified <= d),
        };
        if fresh { Verdict::NotModified } else { Verdict::Proceed }
    }

    /// Whether `If-Range` lets a range stand. Without the header it does.
    pub(super) fn range_stands(&self, headers: &HeaderMap) -> bool {
        match text(headers, header::IF_RANGE) {
            None => true,
            Some(tag) if tag.starts_with('"') => tag == self.etag(),
            Some(date) => httpdate::parse_http_date(date).is_ok_and(|d| d == self.modified),
        }
    }

    /// Whether a list of entity tags has this one. Weak tags count only where `weak` says so.
    fn named_in(&self, list: &str, weak: bool) -> bool {
        list.trim() == "*"
            || list.split(',').map(str::trim).any(|tag| {
                let tag = if weak { tag.strip_prefix("W/").unwrap_or(tag) } else { tag };
                tag.strip_prefix('"').and_then(|t| t.strip_suffix('"')) == Some(&self.tag)
            })
    }
}

/// Whether a request puts any condition, or asks for a part.
pub(super) fn any(headers: &HeaderMap) -> bool {
    [
        header::RANGE,
        header::IF_RANGE,
        header::IF_MATCH,
        header::IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
        header::IF_UNMODIFIED_SINCE,
    ]
    .iter()
    .any(|name| headers.contains_key(name))
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim).filter(|t| !t.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const AT: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn file() -> Validators {
        Validators::new(1, 16, 784_111_777, 5)
    }

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (n.clone(), v.parse().unwrap())).collect()
    }

    #[test]
    fn a_client_that_has_the_file_is_told_so() {
        let check = |pairs: &[(HeaderName, &str)], want| {
            assert_eq!(file().judge(&headers(pairs)), want, "{pairs:?}");
        };
        let (same, weak) = (file().etag(), file().weak_etag());
        check(&[], Verdict::Proceed);
        check(&[(header::IF_NONE_MATCH, &same)], Verdict::NotModified);
        check(&[(header::IF_NONE_MATCH, &weak)], Verdict::NotModified);
        check(&[(header::IF_NONE_MATCH, &format!("\"other\", {weak}"))], Verdict::NotModified);
        check(&[(header::IF_NONE_MATCH, "*")], Verdict::NotModified);
        check(&[(header::IF_NONE_MATCH, "\"other\"")], Verdict::Proceed);
        check(&[(header::IF_MODIFIED_SINCE, AT)], Verdict::NotModified);
        check(&[(header::IF_MODIFIED_SINCE, AFTER)], Verdict::NotModified);
        check(&[(header::IF_MODIFIED_SINCE, BEFORE)], Verdict::Proceed);
        check(&[(header::IF_MODIFIED_SINCE, "tomorrow")], Verdict::Proceed);
        check(&[(header::IF_NONE_MATCH, "\"x\""), (header::IF_MODIFIED_SINCE, AFTER)], Verdict::Proceed);
    }

    #[test]
    fn a_client_with_a_wrong_idea_of_the_file_is_refused() {
        let (same, weak) = (file().etag(), file().weak_etag());
        let check = |name: HeaderName, value: &str, want| {
            assert_eq!(file().judge(&headers(&[(name, value)])), want, "{value}");
        };
        check(header::IF_MATCH, &same, Verdict::Proceed);
        check(header::IF_MATCH, "*", Verdict::Proceed);
        check(header::IF_MATCH, &weak, Verdict::Failed);
        check(header::IF_MATCH, "\"other\"", Verdict::Failed);
        check(header::IF_UNMODIFIED_SINCE, BEFORE, Verdict::Failed);
        check(header::IF_UNMODIFIED_SINCE, AT, Verdict::Proceed);
    }

    #[test]
    fn a_range_stands_only_for_the_very_same_bytes() {
        let check = |value: &str, want| {
            assert_eq!(file().range_stands(&headers(&[(header::IF_RANGE, value)])), want, "{value}");
        };
        assert!(file().range_stands(&HeaderMap::new()));
        check(&file().etag(), true);
        check(&file().weak_etag(), false);
        check("\"other\"", false);
        check(AT, true);
        check(AFTER, false);
    }

    #[test]
    fn times_that_http_cannot_say_are_the_epoch() {
        assert_eq!(Validators::new(1, 1, -5, 0).last_modified(), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(file().last_modified(), AT);
    }
}
