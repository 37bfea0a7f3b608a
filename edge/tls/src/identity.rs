//! A certificate with its key, and the one that is in force.

use std::fmt;
use std::sync::Arc;

use hutch_types::Timestamp;
use parking_lot::RwLock;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The algorithms of every handshake.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Why a certificate and a key cannot be used. No text of either is ever part of it.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The first file is not what it should be.
    #[error("the certificate file has no certificate in PEM form")]
    NoCertificate,
    /// The certificate cannot be read.
    #[error("the certificate is damaged")]
    BadCertificate,
    /// The second file is not what it should be.
    #[error("the key file has no private key in PEM form; an encrypted key has to be decrypted first")]
    NoKey,
    /// The key is of a kind that TLS does not use.
    #[error("the private key cannot be used for TLS")]
    BadKey(#[source] rustls::Error),
    /// They are not a pair.
    #[error("the private key does not belong to the certificate")]
    Mismatch,
    /// It was valid once.
    #[error("the certificate expired on {0}")]
    Expired(String),
    /// It will be valid later.
    #[error("the certificate is not valid before {0}; is this machine's clock right?")]
    NotYet(String),
}

/// A certificate chain with its key, ready for handshakes.
#[derive(Clone)]
pub struct Identity {
    key: Arc<CertifiedKey>,
    names: Vec<String>,
    not_before: Timestamp,
    not_after: Timestamp,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("names", &self.names).field("not_after", &self.not_after).finish()
    }
}

impl Identity {
    /// Reads a chain, the server's own certificate first, and its key. Whether they are valid now is [`Identity::check`]'s matter.
    ///
    /// # Errors
    /// [`IdentityError`], except for those about time.
    pub fn from_pem(chain: &str, key: &str) -> Result<Self, IdentityError> {
        let chain = CertificateDer::pem_slice_iter(chain.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| IdentityError::NoCertificate)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| IdentityError::NoKey)?;
        Self::from_der(chain, key)
    }

    pub(crate) fn from_der(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, IdentityError> {
        let own = chain.first().ok_or(IdentityError::NoCertificate)?;
        let (_, parsed) = X509Certificate::from_der(own).map_err(|_| IdentityError::BadCertificate)?;
        let moment = |time: x509_parser::time::ASN1Time| Timestamp(time.timestamp().saturating_mul(1000));
        let (not_before, not_after) =
            (moment(parsed.validity().not_before), moment(parsed.validity().not_after));
        let names = names(&parsed);
        let key = CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => IdentityError::Mismatch,
            rustls::Error::InvalidCertificate(_) => IdentityError::BadCertificate,
            error => IdentityError::BadKey(error),
        })?;
        Ok(Self { key: Arc::new(key), names, not_before, not_after })
    }

    /// Whether it is valid at `now`.
    ///
    /// # Errors
    /// [`IdentityError::Expired`] and [`IdentityError::NotYet`].
    pub fn check(&self, now: Timestamp) -> Result<(), IdentityError> {
        if now > self.not_after {
            Err(IdentityError::Expired(self.not_after.to_rfc3339()))
        } else if now < self.not_before {
            Err(IdentityError::NotYet(self.not_before.to_rfc3339()))
        } else {
            Ok(())
        }
    }

    /// The host names and addresses that it is for.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether a client that connects to `host` accepts it by name. A wildcard stands for exactly one label.
    pub fn covers(&self, host: &str) -> bool {
        self.names.iter().any(|name| {
            name.eq_ignore_ascii_case(host)
                || name.strip_prefix("*.").is_some_and(|rest| {
                    host.split_once('.')
                        .is_some_and(|(label, domain)| !label.is_empty() && domain.eq_ignore_ascii_case(rest))
                })
        })
    }

    /// From when it is valid.
    pub fn not_before(&self) -> Timestamp {
        self.not_before
    }

    /// Until when it is valid.
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }
}

fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else { return Vec::new() };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(dns) => Some((*dns).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(std::net::IpAddr::from);
            let v6 = <[u8; 16]>::try_from(*bytes).map(std::net::IpAddr::from);
            v4.or(v6).ok().map(|address| address.to_string())
        }
        _ => None,
    };
    extension.value.general_names.iter().filter_map(name).collect()
}

/// The certificate in force. Clones share it; handshakes that begin after [`Current::set`] get the new one.
#[derive(Clone, Default)]
pub struct Current(Arc<RwLock<Option<Identity>>>);

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Current").field(&self.get()).finish()
    }
}

impl Current {
    /// None yet: handshakes are refused until there is one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts `identity` in force.
    pub fn set(&self, identity: Identity) {
        *self.0.write() = Some(identity);
    }

    /// What is in force.
    pub fn get(&self) -> Option<Identity> {
        self.0.read().clone()
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().as_ref().map(|identity| Arc::clone(&identity.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn pair(names: &[&str]) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn names_and_times_are_read() {
        let (certificate, key) = pair(&["hutch.test", "*.hutch.test", "127.0.0.1", "::1"]);
        let identity = Identity::from_pem(&certificate, &key).unwrap();
        assert_eq!(identity.names(), ["hutch.test", "*.hutch.test", "127.0.0.1", "::1"]);
        for covered in ["hutch.test", "api.hutch.test", "3000-X.HUTCH.test", "127.0.0.1"] {
            assert!(identity.covers(covered), "{covered}");
        }
        for other in ["a.b.hutch.test", ".hutch.test", "example.com", "test", "127.0.0.2"] {
            assert!(!identity.covers(other), "{other}");
        }
        let at = |text| Timestamp::parse_rfc3339(text).unwrap();
        assert!(identity.check(at("2020-06-01T00:00:00Z")).is_ok());
        let expired = identity.check(at("2021-01-01T00:00:01Z")).unwrap_err();
        assert_eq!(expired.to_string(), "the certificate expired on 2021-01-01T00:00:00.000Z");
        assert!(matches!(identity.check(at("2019-12-31T23:59:59Z")), Err(IdentityError::NotYet(_))));
    }

    #[test]
    fn every_mistake_has_its_own_words() {
        let (certificate, key) = pair(&["a.test"]);
        let (_, other_key) = pair(&["a.test"]);
        let check = |certificate: &str, key: &str| Identity::from_pem(certificate, key).unwrap_err();
        assert!(matches!(check(&certificate, &other_key), IdentityError::Mismatch));
        assert!(matches!(check("", &key), IdentityError::NoCertificate));
        assert!(matches!(check(&key, &key), IdentityError::NoCertificate));
        assert!(matches!(check(&certificate, &certificate), IdentityError::NoKey));
        let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(check(damaged, &key), IdentityError::BadCertificate));
    }
}
