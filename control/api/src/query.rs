//! Query strings. Lists come as `a=1,2` or `a=1&a=2`; metadata filters come encoded three times over.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::str::FromStr;

use axum::extract::FromRequestParts;
use http::request::Parts;
use hutch_app::SortOrder;
use percent_encoding::percent_decode_str;

use crate::error::ApiError;

/// The pairs of a query string, decoded once, in the order they came.
#[derive(Debug)]
pub(crate) struct Query(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::parse(parts.uri.query().unwrap_or_default()))
    }
}

impl Query {
    fn parse(query: &str) -> Self {
        Self(form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }

    /// The first value of a name; an empty one counts as missing.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str()).filter(|v| !v.is_empty())
    }

    /// All values of a name, lists taken apart.
    pub(crate) fn list(&self, name: &str) -> Vec<&str> {
        self.0
            .iter()
            .filter(|(n, _)| n == name)
            .flat_map(|(_, v)| v.split(','))
            .map(str::trim)
            .filter(|v| !v.is_empty())
            .collect()
    }

    /// The first value of a name as something that can be parsed.
    pub(crate) fn parsed<T: FromStr>(&self, name: &str, wanted: &str) -> Result<Option<T>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.trim().parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(ApiError::bad_request(format!("Invalid {name} parameter: {wanted} is needed"))),
        }
    }

    /// A page size: at least 1, cut to `max`, which is also the default.
    pub(crate) fn limit(&self, max: u32) -> Result<u32, ApiError> {
        match self.parsed::<i64>("limit", "a number from 1 on")? {
            None => Ok(max),
            Some(n) if n >= 1 => Ok(u32::try_from(n).unwrap_or(max).min(max)),
            Some(_) => Err(ApiError::bad_request("Invalid limit parameter: a number from 1 on is needed")),
        }
    }

    /// A moment that is not before 1970, in the unit of the name.
    pub(crate) fn moment(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let wanted = "a whole number from 0 on";
        match self.parsed::<i64>(name, wanted)? {
            Some(n) if n < 0 => {
                Err(ApiError::bad_request(format!("Invalid {name} parameter: {wanted} is needed")))
            }
            moment => Ok(moment),
        }
    }

    /// The sort order, newest first unless said otherwise.
    pub(crate) fn order(&self) -> Result<SortOrder, ApiError> {
        match self.text("order") {
            None | Some("desc") => Ok(SortOrder::Desc),
            Some("asc") => Ok(SortOrder::Asc),
            Some(_) => Err(ApiError::bad_request("Invalid order parameter: asc or desc is needed")),
        }
    }

    /// The metadata that sandboxes must have.
    pub(crate) fn metadata(&self) -> Result<BTreeMap<String, String>, ApiError> {
        self.text("metadata").map_or_else(|| Ok(BTreeMap::new()), parse_metadata)
    }
}

/// `k=v&k=v` where names and values are encoded and the whole is encoded again; the query's own encoding is gone already.
fn parse_metadata(value: &str) -> Result<BTreeMap<String, String>, ApiError> {
    let bad = |why: &str| ApiError::bad_request(format!("Invalid metadata parameter: {why}"));
    let decoded = |text: &str| unescape(text).ok_or_else(|| bad("a wrong percent-encoding"));
    let pairs = decoded(value)?;
    let mut metadata = BTreeMap::new();
    for pair in pairs.split('&') {
        let mut parts = pair.split('=');
        let (Some(name), Some(value), None) = (parts.next(), parts.next(), parts.next()) else {
            return Err(bad("each pair must have the form name=value"));
        };
        metadata.insert(decoded(name)?, decoded(value)?);
    }
    Ok(metadata)
}

/// Decodes `%xx` and `+`; `None` for a broken sequence or what is not UTF-8.
fn unescape(text: &str) -> Option<String> {
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|b| *b == b'%') {
        let hex = rest.get(at.saturating_add(1)..at.saturating_add(3))?;
        if !hex.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        rest = rest.get(at.saturating_add(3)..)?;
    }
    percent_decode_str(&text.replace('+', " ")).decode_utf8().ok().map(String::from)
}

#[cfg(test)]
mod tests {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    use proptest::prelude::*;

    use super::*;

    fn metadata(query: &str) -> Option<Vec<(String, String)>> {
        Query::parse(query).metadata().ok().map(|m| m.into_iter().collect())
    }

    #[test]
    fn metadata_is_decoded_three_times() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(metadata("metadata=a%252526b%3Dc%252520d%25253D"), Some(vec![pair("a&b", "c d=")]));
        assert_eq!(metadata("metadata=a%252520b%3Dc%252526d"), Some(vec![pair("a b", "c&d")]));
        assert_eq!(metadata("metadata=k%3Dv%26l%3Dw"), Some(vec![pair("k", "v"), pair("l", "w")]));
        assert_eq!(metadata("metadata=k=v"), Some(vec![pair("k", "v")]));
        assert_eq!(metadata("x=1"), Some(vec![]));
    }

    #[test]
    fn malformed_metadata_is_refused() {
        for bad in [
            "metadata=k",
            "metadata=k%3Dv%3Dw",
            "metadata=k%3Dv%26",
            "metadata=k%3D%2525",
            "metadata=%25zz%3D1",
        ] {
            assert_eq!(metadata(bad), None, "{bad}");
        }
    }

    #[test]
    fn lists_come_in_both_forms() {
        assert_eq!(Query::parse("state=running%2Cpaused").list("state"), ["running", "paused"]);
        assert_eq!(Query::parse("state=running,paused").list("state"), ["running", "paused"]);
        assert_eq!(Query::parse("state=running&state=paused").list("state"), ["running", "paused"]);
        assert_eq!(Query::parse("state=").list("state"), Vec::<&str>::new());
    }

    #[test]
    fn a_page_size_is_cut_but_not_below_one() {
        let limit = |q: &str| Query::parse(q).limit(100).ok();
        assert_eq!(limit(""), Some(100));
        assert_eq!(limit("limit=7"), Some(7));
        assert_eq!(limit("limit=99999999999"), Some(100));
        for bad in ["limit=0", "limit=-1", "limit=x", "limit=1.5"] {
            assert_eq!(limit(bad), None, "{bad}");
        }
    }

    #[test]
    fn moments_are_not_negative() {
        assert_eq!(Query::parse("start=5").moment("start").ok(), Some(Some(5)));
        assert_eq!(Query::parse("").moment("start").ok(), Some(None));
        assert!(Query::parse("start=-5").moment("start").is_err());
        assert!(Query::parse("start=now").moment("start").is_err());
    }

    #[test]
    fn filters_of_the_corpus_mean_what_is_written_there() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/metadata.txt");
        let corpus = std::fs::read_to_string(path).unwrap();
        for line in corpus.lines().filter(|l| !l.starts_with('#')) {
            let (query, meaning) = line.split_once('\t').unwrap();
            let want: Option<BTreeMap<String, String>> = match meaning {
                "refused" => None,
                json => Some(serde_json::from_str(json).unwrap()),
            };
            assert_eq!(Query::parse(query).metadata().ok(), want, "{query}");
        }
    }

    proptest! {
        #[test]
        fn any_metadata_survives_the_way_that_clients_encode_it(
            wanted in proptest::collection::btree_map("\\PC{0,8}|[&=%+ ]{1,4}", "\\PC{0,8}|[&=%+ ]{0,4}", 0..4),
        ) {
            let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
            let pairs: Vec<_> = wanted.iter().map(|(k, v)| format!("{}={}", encode(k), encode(v))).collect();
            let query = format!("metadata={}", encode(&encode(&pairs.join("&"))));
            prop_assert_eq!(Query::parse(&query).metadata().ok(), Some(wanted));
        }

        #[test]
        fn any_query_is_read_or_refused(
            query in "(metadata|state|limit|start|order|nextToken|x)=[%&=+,0-9a-fA-F-]{0,24}|\\PC{0,30}",
        ) {
            let parsed = Query::parse(&query);
            if let Ok(metadata) = parsed.metadata() {
                prop_assert!(metadata.len() <= query.len());
            }
            prop_assert!(parsed.limit(100).map_or(true, |limit| (1..=100).contains(&limit)));
            prop_assert!(parsed.moment("start").map_or(true, |at| at.is_none_or(|at| at >= 0)));
            prop_assert!(parsed.list("state").iter().all(|s| !s.is_empty() && !s.contains(',')));
            prop_assert!(parsed.order().is_ok() || query.contains("order"));
        }
    }
}
