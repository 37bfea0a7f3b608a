//! Text records through dynamic updates (RFC 2136), signed with a shared key (TSIG, RFC 8945): what BIND, Knot, PowerDNS and others take.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hickory_proto::op::{Message, ResponseCode, update_message};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::rdata::tsig::TsigAlgorithm;
use hickory_proto::rr::{Name, RData, Record, RecordType, TSigner};
use hutch_types::{Secret, Timestamp};

use super::lookup::{ask, exchange};

/// How long an update may take.
const DEADLINE: Duration = Duration::from_secs(20);
/// Seconds that the records may be kept.
const TTL: u32 = 60;
/// Seconds that the clocks may differ.
const FUDGE: u16 = 300;

/// A primary server and the key that it knows us by.
#[derive(Clone)]
pub struct Rfc2136 {
    server: SocketAddr,
    zone: Option<Name>,
    signer: TSigner,
}

impl fmt::Debug for Rfc2136 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rfc2136")
            .field("server", &self.server)
            .field("zone", &self.zone)
            .finish_non_exhaustive()
    }
}

/// The key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Its name, or the zone's.
    #[error("{0:?} is not a DNS name")]
    Name(String),
    /// Its algorithm.
    #[error("{0:?} is not supported; use hmac-sha256, hmac-sha384 or hmac-sha512")]
    Algorithm(String),
    /// Its secret.
    #[error("the key's secret is not base64")]
    Secret,
}

/// The server does not do it.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// The record's name is none.
    #[error("{0} is not a name for a text record")]
    Name(String),
    /// No zone of the server holds the name.
    #[error("{server} does not say which zone {name} is in; set the zone")]
    NoZone {
        /// The server.
        server: SocketAddr,
        /// The name.
        name: String,
    },
    /// The name is not in the zone that is set.
    #[error("{name} is not in the zone {zone}")]
    OtherZone {
        /// The name.
        name: String,
        /// The zone.
        zone: String,
    },
    /// The update cannot be signed or encoded.
    #[error("the update cannot be made: {0}")]
    Encode(String),
    /// No answer.
    #[error("{server} does not answer an update")]
    Exchange {
        /// The server.
        server: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The answer is not from who has the key.
    #[error("the answer of {0} is not signed with the key")]
    Forged(SocketAddr),
    /// The server refuses.
    #[error("{server} refuses the update: {code}")]
    Refused {
        /// The server.
        server: SocketAddr,
        /// Its answer.
        code: String,
    },
}

impl Rfc2136 {
    /// Updates at `server` with the key `key_name`. Without a zone the server is asked for it.
    ///
    /// # Errors
    /// [`KeyError`] when one of these cannot be used.
    pub fn new(
        server: SocketAddr,
        zone: Option<&str>,
        key_name: &str,
        algorithm: &str,
        secret: &Secret,
    ) -> Result<Self, KeyError> {
        let name = |text: &str| absolute(text).ok_or_else(|| KeyError::Name(text.to_owned()));
        let algorithm = match algorithm {
            "hmac-sha256" => TsigAlgorithm::HmacSha256,
            "hmac-sha384" => TsigAlgorithm::HmacSha384,
            "hmac-sha512" => TsigAlgorithm::HmacSha512,
            other => return Err(KeyError::Algorithm(other.to_owned())),
        };
        let key = STANDARD.decode(secret.expose().trim()).map_err(|_| KeyError::Secret)?;
        let signer = TSigner::new(key, algorithm, name(key_name)?, FUDGE).map_err(|_| KeyError::Secret)?;
        Ok(Self { server, zone: zone.map(name).transpose()?, signer })
    }

    /// Adds a text record beside those that are there.
    ///
    /// # Errors
    /// [`UpdateError`] when the server does not say that it did.
    pub async fn add(&self, name: &str, value: &str, now: Timestamp) -> Result<(), UpdateError> {
        self.update(name, value, now, |record, zone| update_message::append(record, zone, false, false)).await
    }

    /// Removes one text record and leaves others of its name alone.
    ///
    /// # Errors
    /// [`UpdateError`] when the server does not say that it did.
    pub async fn remove(&self, name: &str, value: &str, now: Timestamp) -> Result<(), UpdateError> {
        self.update(name, value, now, |record, zone| update_message::delete_by_rdata(record, zone, false))
            .await
    }

    async fn update(
        &self,
        name: &str,
        value: &str,
        now: Timestamp,
        make: impl Fn(hickory_proto::rr::RecordSet, Name) -> Message,
    ) -> Result<(), UpdateError> {
        let server = self.server;
        let record = absolute(name).ok_or_else(|| UpdateError::Name(name.to_owned()))?;
        let zone = match &self.zone {
            Some(zone) if zone.zone_of(&record) => zone.clone(),
            Some(zone) => {
                return Err(UpdateError::OtherZone { name: name.to_owned(), zone: zone.to_string() });
            }
            None => self.find_zone(&record).await?,
        };
        let data = RData::TXT(TXT::new(vec![value.to_owned()]));
        let mut message = make(Record::from_rdata(record, TTL, data).into(), zone);
        let encode = |error: hickory_proto::ProtoError| UpdateError::Encode(error.to_string());
        let seconds = u64::try_from(now.0.div_euclid(1000)).unwrap_or_default();
        let verifier = message.finalize(&self.signer, seconds).map_err(encode)?;
        let bytes = message.to_vec().map_err(encode)?;
        let answer = tokio::time::timeout(DEADLINE, exchange(server, &bytes))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|source| UpdateError::Exchange { server, source })?;
        let read = Message::from_vec(&answer).map_err(|_| UpdateError::Forged(server))?;
        // A server that does not know the key cannot sign its refusal, which is worth more than the complaint about that.
        if read.metadata.response_code != ResponseCode::NoError {
            let code = read.metadata.response_code.to_string();
            return Err(UpdateError::Refused { server, code });
        }
        let is_ours = read.metadata.id == message.metadata.id
            && verifier.is_some_and(|mut verifier| verifier.verify(&answer).is_ok());
        if is_ours { Ok(()) } else { Err(UpdateError::Forged(server)) }
    }

    /// The zone that the server has the name in: the owner of the SOA record that it answers with.
    async fn find_zone(&self, name: &Name) -> Result<Name, UpdateError> {
        let none = || UpdateError::NoZone { server: self.server, name: name.to_string() };
        let answer = ask(self.server, name, RecordType::SOA).await.map_err(|_| none())?;
        let mut records = answer.answers.iter().chain(&answer.authorities);
        let soa = records.find(|record| record.record_type() == RecordType::SOA);
        soa.map(|record| record.name.clone()).filter(|zone| zone.zone_of(name)).ok_or_else(none)
    }
}

fn absolute(text: &str) -> Option<Name> {
    let mut name = Name::from_str(text).ok()?;
    name.set_fqdn(true);
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_in_the_key_are_told_and_its_secret_is_not() {
        let server = "127.0.0.1:53".parse().unwrap();
        let make = |zone: Option<&str>, algorithm: &str, secret: &str| {
            Rfc2136::new(server, zone, "hutch-key", algorithm, &Secret::new(secret))
        };
        assert!(matches!(make(None, "hmac-md5", "c2VjcmV0"), Err(KeyError::Algorithm(_))));
        assert!(matches!(make(None, "hmac-sha256", "no base64"), Err(KeyError::Secret)));
        assert!(matches!(make(Some("a..b"), "hmac-sha256", "c2VjcmV0"), Err(KeyError::Name(_))));
        let good = format!("{:?}", make(Some("a.test"), "hmac-sha256", "c2VjcmV0\n").unwrap());
        assert!(!good.contains("secret") && !good.contains("c2Vj"), "{good}");
    }
}
