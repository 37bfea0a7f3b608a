//! Content codings of transfers: which one an answer gets, and which one a request body has.

use http::{HeaderMap, HeaderName, header};

/// How bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    /// As they are in the file.
    Identity,
    /// Compressed.
    Gzip,
}

/// A coding that a client asks for, with its weight.
struct Choice<'a> {
    name: &'a str,
    weight: f32,
}

impl<'a> Choice<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let name = parts.next().unwrap_or("");
        let weight = parts
            .filter_map(|p| p.split_once('='))
            .find(|(key, _)| key.trim().eq_ignore_ascii_case("q"))
            .and_then(|(_, q)| q.trim().parse::<f32>().ok())
            .filter(|q| q.is_finite())
            .unwrap_or(1.0);
        Self { name, weight }
    }

    fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

/// The coding for an answer to a request with these headers: the one with the highest weight that envd has; among
/// equals the one named first. `None` when the client refuses all of them.
///
/// `large` says that compressing takes a while. Then it is done only for clients that name nothing but gzip. Longer
/// lists are what HTTP libraries send by themselves, for every request, and compressing is slower than most networks.
pub(super) fn for_answer(headers: &HeaderMap, large: bool) -> Option<Coding> {
    let text = joined(headers, header::ACCEPT_ENCODING);
    let mut choices: Vec<Choice<'_>> =
        text.split(',').map(Choice::parse).filter(|c| !c.name.is_empty()).collect();
    let identity = !refuses_identity(&choices);
    if large && identity && choices.iter().any(|c| !(c.is("gzip") || c.is("identity") || c.is("*"))) {
        return Some(Coding::Identity);
    }
    choices.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    for choice in choices.iter().filter(|c| c.weight > 0.0) {
        if choice.is("gzip") {
            return Some(Coding::Gzip);
        }
        if choice.is("identity") || (choice.is("*") && identity) {
            return Some(Coding::Identity);
        }
        if choice.is("*") {
            return Some(Coding::Gzip);
        }
    }
    identity.then_some(Coding::Identity)
}

/// Whether the bytes as they are would be acceptable, which parts of a file and validators need.
pub(super) fn takes_identity(headers: &HeaderMap) -> bool {
    let text = joined(headers, header::ACCEPT_ENCODING);
    !refuses_identity(&text.split(',').map(Choice::parse).collect::<Vec<_>>())
}

fn refuses_identity(choices: &[Choice<'_>]) -> bool {
    let named = choices.iter().find(|c| c.is("identity"));
    named.or_else(|| choices.iter().find(|c| c.is("*"))).is_some_and(|c| c.weight <= 0.0)
}

/// The coding of a request's body.
///
/// # Errors
/// The header as sent, when it is a coding that envd cannot undo.
pub(super) fn of_body(headers: &HeaderMap) -> Result<Coding, String> {
    let text = joined(headers, header::CONTENT_ENCODING);
    match text.trim() {
        "" => Ok(Coding::Identity),
        name if name.eq_ignore_ascii_case("identity") => Ok(Coding::Identity),
        name if name.eq_ignore_ascii_case("gzip") => Ok(Coding::Gzip),
        _ => Err(text),
    }
}

/// All lines of a header as one list. A line that is not text counts as absent.
fn joined(headers: &HeaderMap, name: HeaderName) -> String {
    let lines: Vec<&str> = headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).collect();
    lines.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(text: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::ACCEPT_ENCODING, text.parse().unwrap())])
    }

    #[test]
    fn an_answer_is_compressed_only_when_the_client_prefers_that() {
        let check = |text: &str, want| assert_eq!(for_answer(&accept(text), false), want, "{text}");
        use Coding::{Gzip, Identity};
        assert_eq!(for_answer(&HeaderMap::new(), false), Some(Identity));
        check("", Some(Identity));
        check("gzip", Some(Gzip));
        check("gzip, deflate, br", Some(Gzip));
        check("GZIP;q=0.5", Some(Gzip));
        check("identity", Some(Identity));
        check("identity, gzip;q=0.9", Some(Identity));
        check("gzip;q=0.2, identity;q=0.8", Some(Identity));
        check("gzip;q=0", Some(Identity));
        check("br", Some(Identity));
        check("*", Some(Identity));
        check("*, identity;q=0", Some(Gzip));
        check("br, identity;q=0", None);
        check("*;q=0", None);
        check("*;q=0, gzip", Some(Gzip));
        check("*;q=0, identity;q=0.1", Some(Identity));
        check("gzip;q=nan", Some(Gzip));
    }

    #[test]
    fn a_large_answer_is_compressed_only_for_those_who_ask_for_just_that() {
        let check = |text: &str, want| assert_eq!(for_answer(&accept(text), true), Some(want), "{text}");
        check("gzip", Coding::Gzip);
        check("gzip;q=1.0, identity;q=0.5, *;q=0", Coding::Gzip);
        check("gzip, deflate", Coding::Identity);
        check("zstd,gzip,br", Coding::Identity);
        check("br, gzip, identity;q=0", Coding::Gzip);
        assert_eq!(for_answer(&accept("br, identity;q=0"), true), None);
    }

    #[test]
    fn identity_is_acceptable_unless_it_is_refused() {
        for (text, want) in [("", true), ("gzip", true), ("identity;q=0", false), ("*;q=0", false)] {
            assert_eq!(takes_identity(&accept(text)), want, "{text}");
        }
        assert!(takes_identity(&accept("*;q=0, identity")));
    }

    #[test]
    fn a_body_may_be_plain_or_gzip() {
        let body =
            |text: &str| of_body(&HeaderMap::from_iter([(header::CONTENT_ENCODING, text.parse().unwrap())]));
        assert_eq!(of_body(&HeaderMap::new()), Ok(Coding::Identity));
        assert_eq!(body("identity"), Ok(Coding::Identity));
        assert_eq!(body("GZip"), Ok(Coding::Gzip));
        assert_eq!(body("br"), Err("br".to_owned()));
        assert_eq!(body("gzip, gzip"), Err("gzip, gzip".to_owned()));
    }
}
