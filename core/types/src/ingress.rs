//! Who may reach the servers inside a sandbox, and how requests arrive there.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::Secret;

/// Where clients put the token of a private sandbox: the name of a header, of a query parameter, and the beginning of a WebSocket
/// subprotocol.
pub const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";

/// What holds for requests to the ports of one sandbox. envd's own port is exempt from all of it: it has its own token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ingress {
    /// The token that requests must bring; `None`: anybody may come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_token: Option<TokenHash>,
    /// The `Host` that servers see instead of the one asked for; `${PORT}` in it stands for the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
    /// Ports whose server speaks TLS.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub https_ports: BTreeSet<u16>,
}

/// The SHA-256 of a token: enough to recognise it, and worth nothing to whoever reads it. Tokens are long and random, so
/// they cannot be guessed from it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct TokenHash([u8; 32]);

/// Not 64 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a token's hash is 64 hex digits")]
pub struct TokenHashError;

impl TokenHash {
    /// The hash of `token`.
    pub fn of(token: &Secret) -> Self {
        Self(Sha256::digest(token.expose()).into())
    }

    /// Whether `given` is the token, in time that does not tell how close it is.
    pub fn is_of(&self, given: &str) -> bool {
        let given: [u8; 32] = Sha256::digest(given).into();
        self.0.ct_eq(&given).into()
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

impl FromStr for TokenHash {
    type Err = TokenHashError;

    fn from_str(text: &str) -> Result<Self, TokenHashError> {
        let digits = text.as_bytes();
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(TokenHashError);
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| TokenHashError)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| TokenHashError)?;
        }
        Ok(Self(bytes))
    }
}

impl From<TokenHash> for String {
    fn from(hash: TokenHash) -> Self {
        hash.to_string()
    }
}

impl TryFrom<String> for TokenHash {
    type Error = TokenHashError;

    fn try_from(text: String) -> Result<Self, TokenHashError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_recognised_by_its_hash_and_nothing_else_is() {
        let hash = TokenHash::of(&Secret::new("token"));
        assert!(hash.is_of("token"));
        for other in ["", "token ", "Token", &hash.to_string()] {
            assert!(!hash.is_of(other), "{other}");
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_nothing_else_is_read() {
        let ingress = Ingress {
            traffic_token: Some(TokenHash::of(&Secret::new("token"))),
            mask_request_host: Some("localhost:${PORT}".to_owned()),
            https_ports: [443, 8443].into(),
        };
        let text = serde_json::to_string(&ingress).unwrap();
        assert!(!text.contains("\"token\""), "{text}");
        assert_eq!(serde_json::from_str::<Ingress>(&text).unwrap(), ingress);
        assert_eq!(serde_json::from_str::<Ingress>("{}").unwrap(), Ingress::default());
        for bad in ["{\"traffic_token\":\"12\"}", "{\"traffic_tokn\":null}", "7"] {
            assert!(serde_json::from_str::<Ingress>(bad).is_err(), "{bad}");
        }
        assert!("é".repeat(32).parse::<TokenHash>().is_err());
        assert!("+1".repeat(32).parse::<TokenHash>().is_err());
    }
}
