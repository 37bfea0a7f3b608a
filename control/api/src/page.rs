//! Page tokens: opaque to clients, `<time>__<id>__<order>` in URL-safe base64 to us.

use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hutch_app::{PageToken, SortOrder};
use hutch_types::Timestamp;

use crate::error::ApiError;

/// The response header that carries the token of the next page.
pub(crate) const NEXT_TOKEN: &str = "x-next-token";

fn encode(at: Timestamp, id: &str, order: SortOrder) -> String {
    let order = match order {
        SortOrder::Asc => "asc",
        SortOrder::Desc => "desc",
    };
    URL_SAFE_NO_PAD.encode(format!("{}__{id}__{order}", at.0))
}

fn decode<I: FromStr>(token: &str) -> Option<(Timestamp, I, SortOrder)> {
    let bytes = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (at, rest) = text.split_once("__")?;
    let (id, order) = rest.rsplit_once("__")?;
    let order = match order {
        "asc" => SortOrder::Asc,
        "desc" => SortOrder::Desc,
        _ => return None,
    };
    Some((Timestamp(at.parse().ok()?), id.parse().ok()?, order))
}

fn invalid() -> ApiError {
    ApiError::bad_request("Invalid next token")
}

/// The token of a page of sandboxes.
pub(crate) fn sandbox_token(token: &PageToken) -> String {
    encode(token.started_at, token.id.as_str(), token.order)
}

/// Reads what [`sandbox_token`] wrote.
pub(crate) fn parse_sandbox_token(text: &str) -> Result<PageToken, ApiError> {
    let (started_at, id, order) = decode(text).ok_or_else(invalid)?;
    Ok(PageToken { started_at, id, order })
}

/// The token of a page of what is listed newest first: templates, builds.
pub(crate) fn newest_first_token(created_at: Timestamp, id: &str) -> String {
    encode(created_at, id, SortOrder::Desc)
}

/// Reads what [`newest_first_token`] wrote.
pub(crate) fn parse_newest_first_token<I: FromStr>(text: &str) -> Result<(Timestamp, I), ApiError> {
    match decode(text) {
        Some((at, id, SortOrder::Desc)) => Ok((at, id)),
        _ => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hutch_types::{SandboxId, TemplateId};

    #[test]
    fn tokens_are_read_back() {
        let token = PageToken { started_at: Timestamp(5), id: SandboxId::random(), order: SortOrder::Asc };
        assert_eq!(parse_sandbox_token(&sandbox_token(&token)).unwrap(), token);
        let id: TemplateId = "a__b".parse().unwrap();
        let token = newest_first_token(Timestamp(7), id.as_str());
        assert_eq!(parse_newest_first_token(&token).unwrap(), (Timestamp(7), id));
    }

    #[test]
    fn other_texts_are_refused() {
        let foreign = URL_SAFE_NO_PAD.encode("5__../../x__asc");
        for bad in ["", "x", "%%%", "NQ", foreign.as_str()] {
            assert!(parse_sandbox_token(bad).is_err(), "{bad}");
        }
    }
}
