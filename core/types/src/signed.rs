//! Signed URLs: whoever holds one may read or write one path of one sandbox without its access token.
//!
//! envd checks them. The host also uses them to find the sandbox that is meant, when a client with one address for all
//! sandboxes made the URL: the signature contains the sandbox's token, and nothing else in it names the sandbox.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::Secret;

/// What a signature allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `GET /files`.
    Read,
    /// `POST /files`.
    Write,
}

/// Why a signature does not allow a request. The texts are those that clients see.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// None was given.
    #[error("missing signature query parameter")]
    Missing,
    /// It is of something else, or of another sandbox.
    #[error("invalid signature")]
    Invalid,
    /// Its time is over.
    #[error("signature is already expired")]
    Expired,
}

/// What is signed. Path and user are those of the query, unresolved; absent means empty.
#[derive(Debug, Clone, Copy)]
pub struct Signed<'a> {
    /// Path.
    pub path: &'a str,
    /// What is allowed.
    pub operation: Operation,
    /// User.
    pub username: &'a str,
    /// Unix time in seconds.
    pub expiration: Option<i64>,
}

impl Signed<'_> {
    /// The signature that a client with `token` makes.
    pub fn signature(&self, token: &Secret) -> String {
        let operation = match self.operation {
            Operation::Read => "read",
            Operation::Write => "write",
        };
        let mut text = format!("{}:{operation}:{}:{}", self.path, self.username, token.expose());
        if let Some(expiration) = self.expiration {
            text.push(':');
            text.push_str(&expiration.to_string());
        }
        format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)))
    }

    /// Checks `given` against `token`, in time that does not tell where they differ, then the expiration.
    ///
    /// # Errors
    /// Why the signature does not allow the request.
    pub fn check(&self, given: Option<&str>, token: &Secret, now: i64) -> Result<(), SignatureError> {
        let given = given.ok_or(SignatureError::Missing)?;
        if !bool::from(self.signature(token).as_bytes().ct_eq(given.as_bytes())) {
            return Err(SignatureError::Invalid);
        }
        match self.expiration {
            Some(at) if at < now => Err(SignatureError::Expired),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(signed: Signed<'_>, given: &str, now: i64) -> Result<(), SignatureError> {
        signed.check(Some(given), &Secret::new("tok"), now)
    }

    const READ: Signed<'_> =
        Signed { path: "a.txt", operation: Operation::Read, username: "user", expiration: Some(100) };

    #[test]
    fn a_signature_is_the_digest_that_sdks_make() {
        // printf 'a.txt:read:user:tok:100' | sha256sum | xxd -r -p | base64 | tr -d =
        let given = "v1_ti21PxhaVi8kCH81fDyRnYQgNnAKDdalrv7LNYKWVOk";
        assert_eq!(READ.signature(&Secret::new("tok")), given);
        assert_eq!(check(READ, given, 100), Ok(()));
    }

    #[test]
    fn a_signature_holds_for_what_was_signed_and_until_it_expires() {
        let given = READ.signature(&Secret::new("tok"));
        assert_eq!(check(READ, &given, 101), Err(SignatureError::Expired));
        let others = [
            Signed { path: "b.txt", ..READ },
            Signed { operation: Operation::Write, ..READ },
            Signed { username: "root", ..READ },
            Signed { expiration: Some(1000), ..READ },
            Signed { expiration: None, ..READ },
        ];
        for other in others {
            assert_eq!(check(other, &given, 0), Err(SignatureError::Invalid), "{other:?}");
        }
        assert_eq!(READ.check(Some(&given), &Secret::new("other"), 0), Err(SignatureError::Invalid));
        assert_eq!(READ.check(None, &Secret::new("tok"), 0), Err(SignatureError::Missing));
        assert_eq!(check(READ, &format!("{given}="), 0), Err(SignatureError::Invalid));
    }
}
