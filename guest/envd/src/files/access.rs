//! The query of `/files`, and whether its sender may.

use std::sync::Arc;

use axum::extract::Query;
use http::{HeaderMap, Uri};
use hutch_types::Clock;
use serde::Deserialize;

use super::error::AccessError;
use super::signature::{Operation, Signed};
use crate::auth::{TokenCheck, check_token};
use crate::state::State;
use crate::users::User;

/// The parameters, still as sent.
#[derive(Debug, Deserialize)]
pub(super) struct FileQuery {
    pub(super) path: Option<String>,
    username: Option<String>,
    signature: Option<String>,
    signature_expiration: Option<String>,
}

impl FileQuery {
    /// The parameters of a request.
    pub(super) fn of(uri: &Uri) -> Result<Self, AccessError> {
        let query =
            Query::<Self>::try_from_uri(uri).map_err(|error| AccessError::Query(error.body_text()))?;
        Ok(query.0)
    }

    /// Lets the sender pass: everyone when the sandbox is open, else whoever has the token, or a signature of this
    /// very path and user. A wrong token is not made good by a signature.
    pub(super) fn check(
        &self,
        state: &State,
        headers: &HeaderMap,
        operation: Operation,
    ) -> Result<(), AccessError> {
        match check_token(state, headers) {
            TokenCheck::Open | TokenCheck::Valid => return Ok(()),
            TokenCheck::Wrong => return Err(AccessError::WrongToken),
            TokenCheck::Missing => {}
        }
        // The token may have been taken away since.
        let Some(token) = state.access_token() else { return Ok(()) };
        let expiration = match self.signature_expiration.as_deref().map(str::parse::<i64>) {
            Some(Err(_)) => {
                return Err(AccessError::Query("'signature_expiration' is not a time in seconds".to_owned()));
            }
            Some(Ok(at)) => Some(at),
            None => None,
        };
        let signed = Signed {
            path: self.path.as_deref().unwrap_or(""),
            operation,
            username: self.username.as_deref().unwrap_or(""),
            expiration,
        };
        let now = Clock::system().now().0.div_euclid(1000);
        Ok(signed.check(self.signature.as_deref(), &token, now)?)
    }

    /// The user to act as. Reads files.
    pub(super) fn user(&self, state: &Arc<State>) -> Result<User, AccessError> {
        let name = self.username.as_deref().filter(|name| !name.is_empty());
        Ok(state.user(name)?)
    }
}
