//! The little that the relay knows about DNS messages.

/// A message is at least its header.
pub(super) const HEADER_BYTES: usize = 12;

/// The largest message that there can be.
pub(super) const MOST_BYTES: usize = 65_535;

const IS_RESPONSE: u8 = 0x80;
const SERVER_FAILURE: u8 = 2;

/// Whether it can be passed on as a query.
pub(super) fn is_query(message: &[u8]) -> bool {
    message.len() >= HEADER_BYTES && message.get(2).is_some_and(|flags| flags & IS_RESPONSE == 0)
}

/// Whether `message` is an answer with the id of `query`.
pub(super) fn answers(message: &[u8], query: &[u8]) -> bool {
    message.len() >= HEADER_BYTES
        && message.get(2).is_some_and(|flags| flags & IS_RESPONSE != 0)
        && message.get(..2) == query.get(..2)
}

/// The answer to `query` that no server could be asked, so that the sandbox need not wait for its own timeout.
pub(super) fn server_failure(query: &[u8]) -> Vec<u8> {
    let mut answer = query.to_vec();
    if let Some(flags) = answer.get_mut(2) {
        *flags |= IS_RESPONSE;
    }
    if let Some(code) = answer.get_mut(3) {
        *code = (*code & 0xf0) | SERVER_FAILURE;
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_their_answers_are_told_apart() {
        let query = [7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        assert!(is_query(&query));
        assert!(!answers(&query, &query));
        let failure = server_failure(&query);
        assert!(!is_query(&failure));
        assert!(answers(&failure, &query));
        assert_eq!(failure[3] & 15, 2);
        let mut other = failure.clone();
        other[0] ^= 1;
        assert!(!answers(&other, &query), "another id");
        assert!(!is_query(&query[..11]), "too short");
        assert!(!answers(&failure[..11], &query), "too short");
    }
}
