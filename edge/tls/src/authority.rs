//! The local certificate authority: a key of its own on this machine, which may sign names of one domain alone.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use hutch_types::{Secret, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::{Duration, OffsetDateTime};
use x509_parser::extensions::GeneralName;

use crate::identity::Identity;
use crate::local::LocalError;
use crate::storage::{self, PUBLIC, SECRET};

pub(crate) const CA_FILE: &str = "ca.pem";
const KEY_FILE: &str = "ca.key";

/// How long a new CA is valid. Everybody who trusts it has to trust the next one, so this is long.
const CA_DAYS: i64 = 3650;
/// How long a certificate is valid that the CA signs.
pub(crate) const LEAF_DAYS: i64 = 90;
/// How far `notBefore` lies in the past, for clients whose clocks are slow.
const BACKDATED: Duration = Duration::days(1);

/// The CA with its key.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    /// Loads the CA of `dir`, or makes one for `domain` when there is none, when it is for another domain, or when it would end
    /// before a certificate that it signs. The second value says whether it is new, so that clients have to be told.
    pub(crate) fn open(dir: &Path, domain: &str, now: Timestamp) -> Result<(Self, bool), LocalError> {
        let (ca, key) = (dir.join(CA_FILE), dir.join(KEY_FILE));
        match (storage::read(&ca)?, storage::read(&key)?) {
            (Some(pem), Some(key)) => {
                let found = Self::load(pem, &key)?;
                match found.unfit(domain, now)? {
                    None => return Ok((found, false)),
                    Some(why) => {
                        tracing::warn!("{why}: a new one is made, which clients have to trust again")
                    }
                }
            }
            (Some(_), None) => {
                tracing::warn!(
                    "the key of the local CA is gone: a new one is made, which clients have to trust again"
                );
            }
            (None, _) => {}
        }
        let (made, secret) = Self::make(domain, now)?;
        // The key first: a certificate without a key would be replaced, a key without a certificate too.
        storage::write(&key, secret.expose(), SECRET)?;
        storage::write(&ca, &made.pem, PUBLIC)?;
        Ok((made, true))
    }

    fn load(pem: String, key: &str) -> Result<Self, LocalError> {
        let damaged = |_| LocalError::DamagedCa;
        // That they are a pair is checked the way that a server's certificate is.
        Identity::from_pem(&pem, key).map_err(LocalError::UnusableCa)?;
        let key = KeyPair::from_pem(key).map_err(damaged)?;
        Ok(Self { issuer: Issuer::from_ca_cert_pem(&pem, key).map_err(damaged)?, pem })
    }

    fn make(domain: &str, now: Timestamp) -> Result<(Self, Secret), LocalError> {
        let key = KeyPair::generate()?;
        let secret = Secret::new(key.serialize_pem());
        let mut params = CertificateParams::default();
        let today = moment(now);
        params.not_before = today - BACKDATED;
        params.not_after = today + Duration::days(CA_DAYS);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Hutch");
        // Two CAs of one name in a store confuse clients that look issuers up by name.
        let tag = Secret::random(4);
        params
            .distinguished_name
            .push(DnType::CommonName, format!("Hutch local CA for {domain} {}", tag.expose()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![
                GeneralSubtree::DnsName(domain.to_owned()),
                GeneralSubtree::DnsName("localhost".to_owned()),
                GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(Ipv4Addr::LOCALHOST.into(), 32)),
                GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(Ipv6Addr::LOCALHOST.into(), 128)),
            ],
            excluded_subtrees: Vec::new(),
        });
        let certificate = params.self_signed(&key)?;
        Ok((Self { pem: certificate.pem(), issuer: Issuer::new(params, key) }, secret))
    }

    /// Why it cannot be used for `domain`, if so.
    fn unfit(&self, domain: &str, now: Timestamp) -> Result<Option<&'static str>, LocalError> {
        let (_, pem) =
            x509_parser::pem::parse_x509_pem(self.pem.as_bytes()).map_err(|_| LocalError::DamagedCa)?;
        let certificate = pem.parse_x509().map_err(|_| LocalError::DamagedCa)?;
        let constraints = certificate.name_constraints().map_err(|_| LocalError::DamagedCa)?;
        let permits = |name: &GeneralName<'_>| matches!(name, GeneralName::DNSName(dns) if dns.eq_ignore_ascii_case(domain));
        let permitted = constraints
            .and_then(|c| c.value.permitted_subtrees.as_ref())
            .is_some_and(|subtrees| subtrees.iter().any(|subtree| permits(&subtree.base)));
        let last_leaf = moment(now) + Duration::days(LEAF_DAYS);
        if !permitted {
            Ok(Some("the local CA is for another domain"))
        } else if certificate.validity().not_after.timestamp() < last_leaf.unix_timestamp() {
            Ok(Some("the local CA ends soon"))
        } else {
            Ok(None)
        }
    }

    /// The certificate that clients trust.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// A new certificate for `domain`, all names one level below it, and this machine's own names.
    pub(crate) fn sign(&self, domain: &str, now: Timestamp) -> Result<Identity, LocalError> {
        let key = KeyPair::generate()?;
        let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
        let names = [domain.to_owned(), format!("*.{domain}"), "localhost".to_owned()]
            .into_iter()
            .chain(loopback.iter().map(ToString::to_string));
        let mut params = CertificateParams::new(names.collect::<Vec<_>>())?;
        let today = moment(now);
        params.not_before = today - BACKDATED;
        params.not_after = today + Duration::days(LEAF_DAYS);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, domain);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let chain = vec![CertificateDer::from(certificate.der().to_vec())];
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Identity::from_der(chain, key).map_err(LocalError::UnusableCa)
    }
}

fn moment(now: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(now.0.div_euclid(1000)).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
