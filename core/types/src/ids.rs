//! Typed identifiers. They are parsed at the boundary; inside, no id is a bare `String`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

const BASE36: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Why a text is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid {kind} id")]
pub struct IdError {
    /// Which kind of id was expected, for example `sandbox`.
    pub kind: &'static str,
}

/// `len` characters of `[0-9a-z]` from the operating system's random source.
///
/// # Panics
/// When the operating system has no randomness to give, which no caller could handle.
pub fn random_base36(len: usize) -> String {
    let mut out = String::with_capacity(len);
    let mut buf = [0u8; 32];
    while out.len() < len {
        fill_random(&mut buf);
        // 252 is the largest multiple of 36 below 256: rejecting the rest keeps the draw uniform.
        for b in buf.iter().filter(|b| **b < 252) {
            if out.len() == len {
                break;
            }
            if let Some(c) = BASE36.get(usize::from(b % 36)) {
                out.push(char::from(*c));
            }
        }
    }
    out
}

/// Fills `buf` from the operating system's random source.
///
/// # Panics
/// When the operating system has no randomness to give, which no caller could handle.
pub fn fill_random(buf: &mut [u8]) {
    if let Err(error) = getrandom::fill(buf) {
        panic!("the operating system gave no random bytes: {error}");
    }
}

/// `bytes` random bytes as lower-case hex.
pub fn random_hex(bytes: usize) -> String {
    let mut buf = vec![0u8; bytes];
    fill_random(&mut buf);
    buf.iter().fold(String::with_capacity(bytes * 2), |mut s, b| {
        for nibble in [b >> 4, b & 15] {
            s.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
        }
        s
    })
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The id as it appears on the wire.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(s: &str) -> Result<Self, IdError> {
                let valid: fn(&str) -> bool = $valid;
                if valid(s) { Ok(Self(s.to_owned())) } else { Err(IdError { kind: $kind }) }
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(s: String) -> Result<Self, IdError> {
                s.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
    };
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new random id.
            pub fn random() -> Self {
                Self(Uuid::new_v4())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(s: &str) -> Result<Self, IdError> {
                Uuid::parse_str(s).map(Self).map_err(|_| IdError { kind: $kind })
            }
        }
    };
}

fn lower_alnum(s: &str) -> bool {
    s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

text_id!(
    /// Names a sandbox on the wire and in host names: lower-case letters and digits only, 8 to 32 of them,
    /// because it becomes a DNS label next to a port (`49983-<id>`).
    SandboxId,
    "sandbox",
    |s| (8..=32).contains(&s.len()) && lower_alnum(s)
);

text_id!(
    /// Names one running isolation unit on a node. All have the same length, since some container
    /// runtimes resolve abbreviated ids.
    InstanceId,
    "instance",
    |s| s.len() == 16 && s.starts_with('n') && lower_alnum(s)
);

text_id!(
    /// Names a template: `[a-z0-9-_]`, at most 128 characters.
    TemplateId,
    "template",
    |s| !s.is_empty()
        && s.len() <= 128
        && s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
);

text_id!(
    /// Names a host that runs sandboxes: `[a-z0-9-]`, at most 63 characters.
    NodeId,
    "node",
    |s| !s.is_empty()
        && s.len() <= 63
        && s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
);

uuid_id!(
    /// Names one immutable build of a template.
    BuildId,
    "build"
);
uuid_id!(
    /// Names a team: the owner of sandboxes, templates and keys.
    TeamId,
    "team"
);

impl SandboxId {
    /// A new id: `i` and 19 base36 characters, about 98 bits of randomness.
    pub fn random() -> Self {
        Self(format!("i{}", random_base36(19)))
    }

    /// Parses what clients send in paths: `<id>` or the older `<id>-<clientID>`, of which the part after the dash
    /// is ignored.
    ///
    /// # Errors
    /// [`IdError`] for anything else, more than one dash included.
    pub fn parse_wire(s: &str) -> Result<Self, IdError> {
        let mut parts = s.split('-');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(id), _, None) => id.parse(),
            _ => Err(IdError { kind: "sandbox" }),
        }
    }
}

impl InstanceId {
    /// A new id: `n` and 15 base36 characters.
    pub fn random() -> Self {
        Self(format!("n{}", random_base36(15)))
    }
}

impl TemplateId {
    /// A new id: 20 base36 characters.
    pub fn random() -> Self {
        Self(random_base36(20))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_parse_as_themselves() {
        for _ in 0..200 {
            let id = SandboxId::random();
            assert_eq!(id.as_str().len(), 20);
            assert_eq!(id.as_str().parse::<SandboxId>(), Ok(id.clone()));
            assert_eq!(SandboxId::parse_wire(&format!("{id}-c0")), Ok(id));
            let n = InstanceId::random();
            assert_eq!(n.as_str().parse::<InstanceId>(), Ok(n));
        }
    }

    #[test]
    fn hostile_texts_are_not_sandbox_ids() {
        for bad in [
            "",
            "i",
            "../../etc/passwd",
            "iABCDEFGHIJKLMNOPQRS",
            "iabc-def-ghi",
            "i%2e%2e",
            "i234567\n",
            "é2345678",
        ] {
            assert!(SandboxId::parse_wire(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_id_from_json_is_checked() {
        assert!(serde_json::from_str::<SandboxId>("\"../x\"").is_err());
        assert!(serde_json::from_str::<InstanceId>("\"n12345678901234\"").is_err());
    }

    #[test]
    fn hex_has_two_digits_a_byte() {
        let h = random_hex(20);
        assert_eq!(h.len(), 40);
        assert!(h.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase()));
        assert_ne!(h, random_hex(20));
    }
}
