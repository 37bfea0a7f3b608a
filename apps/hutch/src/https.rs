//! The settings of TLS and DNS, and what follows from them: under which domain clients reach this server, and on which port.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::Config;

/// The domain where none is set. `.test` is reserved (RFC 6761): it never clashes with a real name.
const LOCAL_DOMAIN: &str = "hutch.test";
/// The port of clients that are told none.
const HTTPS_PORT: u16 = 443;

/// TLS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsSection {
    /// Where the certificate comes from.
    pub mode: TlsMode,
    /// Address of the TLS listener. Empty: port 443 of `listen`'s address.
    pub listen: String,
    /// For mode `files`: the certificate chain in PEM form.
    pub cert: PathBuf,
    /// For mode `files`: its private key in PEM form.
    pub key: PathBuf,
    /// Handshakes at a time; further connections are closed at once.
    pub max_handshakes: usize,
    /// How long a client may take to finish the handshake.
    pub handshake_timeout_seconds: u64,
    /// For mode `acme`.
    pub acme: AcmeSection,
}

/// Where certificates are ordered, and how the domain is proven to be ours. Setting mode `acme` agrees to the authority's terms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AcmeSection {
    /// URL of the authority's directory.
    pub directory: String,
    /// The CA of the directory's own HTTPS, in PEM form. Empty: the system's.
    pub root: PathBuf,
    /// E-mail address for the account. Empty: none.
    pub contact: String,
    /// Key id of an external account, where the authority wants one.
    pub eab_key_id: String,
    /// File with the external account's key in base64url.
    pub eab_key_file: PathBuf,
    /// Name of the text records. Empty: `_acme-challenge.{domain}`.
    pub record: String,
    /// Command that publishes text records, called as `hook add|remove NAME VALUE`.
    pub hook: PathBuf,
    /// How long the command may take.
    pub hook_timeout_seconds: u64,
    /// Servers that must show the records, `address:port`. Empty: the authoritative ones.
    pub check_servers: Vec<SocketAddr>,
    /// How long the records may take to be seen.
    pub check_timeout_seconds: u64,
    /// Publishes text records by dynamic update, in place of a command.
    pub rfc2136: Rfc2136Section,
}

/// Dynamic updates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rfc2136Section {
    /// The zone's primary server, `address:port`. Empty: no dynamic updates.
    pub server: String,
    /// The zone. Empty: the server is asked.
    pub zone: String,
    /// Name of the TSIG key.
    pub key_name: String,
    /// Its algorithm: `hmac-sha256`, `hmac-sha384` or `hmac-sha512`.
    pub key_algorithm: String,
    /// File with its secret in base64.
    pub key_file: PathBuf,
}

/// Where the certificate comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// No TLS.
    Off,
    /// A CA of this machine's own, which clients have to trust.
    #[serde(rename = "self")]
    #[value(name = "self")]
    Local,
    /// Two files that something else keeps fresh.
    Files,
    /// An authority that speaks ACME.
    Acme,
}

/// The name server for the domain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DnsSection {
    /// Address to answer DNS on, UDP and TCP. Empty: none.
    pub listen: String,
    /// The address that names of the domain have. Empty: the listener's, or 127.0.0.1 when it listens on all.
    pub address: String,
    /// Servers that are asked for other names. Empty: such queries are refused, so that clients ask their next server.
    pub forward: Vec<SocketAddr>,
}

impl Default for TlsSection {
    fn default() -> Self {
        Self {
            mode: TlsMode::Off,
            listen: String::new(),
            cert: PathBuf::new(),
            key: PathBuf::new(),
            max_handshakes: 512,
            handshake_timeout_seconds: 10,
            acme: AcmeSection::default(),
        }
    }
}

impl Default for AcmeSection {
    fn default() -> Self {
        Self {
            directory: "https://acme-v02.api.letsencrypt.org/directory".to_owned(),
            root: PathBuf::new(),
            contact: String::new(),
            eab_key_id: String::new(),
            eab_key_file: PathBuf::new(),
            record: String::new(),
            hook: PathBuf::new(),
            hook_timeout_seconds: 120,
            check_servers: Vec::new(),
            check_timeout_seconds: 300,
            rfc2136: Rfc2136Section::default(),
        }
    }
}

impl Default for Rfc2136Section {
    fn default() -> Self {
        Self {
            server: String::new(),
            zone: String::new(),
            key_name: String::new(),
            key_algorithm: "hmac-sha256".to_owned(),
            key_file: PathBuf::new(),
        }
    }
}

impl Config {
    /// What is wrong with these settings.
    pub fn https_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let needs_domain = self.has_tls() || self.has_dns();
        if (needs_domain || !self.domain.is_empty()) && !is_domain(&self.domain_name()) {
            problems.push(format!(
                "domain: {:?} is not a domain of at least two labels, such as sandbox.example.com",
                self.domain
            ));
        }
        if self.domain.split_once(':').is_some_and(|(_, port)| !port.parse::<u16>().is_ok_and(|p| p != 0)) {
            problems.push(format!("domain: {:?} does not end in a port", self.domain));
        }
        for (name, text) in [("tls.listen", &self.tls.listen), ("dns.listen", &self.dns.listen)] {
            if !text.is_empty() && text.parse::<SocketAddr>().is_err() {
                problems.push(format!("{name}: {text:?} is not an address and port such as 127.0.0.1:443"));
            }
        }
        // Port 0 is a free one, each time another.
        if self.has_tls()
            && self.tls_address().is_ok_and(|tls| tls.port() != 0 && Ok(tls) == self.listen.parse())
        {
            problems.push(format!(
                "tls.listen: {} is the address of `listen` too, which serves plain HTTP; choose another for one of them",
                self.listen
            ));
        }
        if self.tls.mode == TlsMode::Files
            && (self.tls.cert.as_os_str().is_empty() || self.tls.key.as_os_str().is_empty())
        {
            problems.push("tls.cert and tls.key must be set for tls.mode = \"files\"".to_owned());
        }
        if self.tls.max_handshakes == 0 || self.tls.handshake_timeout_seconds == 0 {
            problems.push("tls.max_handshakes and tls.handshake_timeout_seconds must not be 0".to_owned());
        }
        if self.tls.mode == TlsMode::Acme {
            problems.extend(self.acme_problems());
        }
        if !self.dns.address.is_empty() && self.dns.address.parse::<IpAddr>().is_err() {
            problems.push(format!("dns.address: {:?} is not an IP address", self.dns.address));
        }
        problems
    }

    fn acme_problems(&self) -> Vec<String> {
        let acme = &self.tls.acme;
        let mut problems = Vec::new();
        if self.domain.is_empty() {
            problems.push("domain must be set for tls.mode = \"acme\"".to_owned());
        }
        if !acme.directory.starts_with("https://") {
            problems.push(format!("tls.acme.directory: {:?} is not an https URL", acme.directory));
        }
        if acme.hook.as_os_str().is_empty() == acme.rfc2136.server.is_empty() {
            problems.push("one of tls.acme.hook and tls.acme.rfc2136.server must be set".to_owned());
        }
        if acme.eab_key_id.is_empty() != acme.eab_key_file.as_os_str().is_empty() {
            problems.push("tls.acme.eab_key_id and tls.acme.eab_key_file belong together".to_owned());
        }
        if acme.hook_timeout_seconds == 0 || acme.check_timeout_seconds == 0 {
            problems.push(
                "tls.acme.hook_timeout_seconds and tls.acme.check_timeout_seconds must not be 0".to_owned(),
            );
        }
        let update = &acme.rfc2136;
        if !update.server.is_empty() {
            if update.server.parse::<SocketAddr>().is_err() {
                problems.push(format!(
                    "tls.acme.rfc2136.server: {:?} is not an address and port such as 192.0.2.53:53",
                    update.server
                ));
            }
            if update.key_name.is_empty() || update.key_file.as_os_str().is_empty() {
                problems
                    .push("tls.acme.rfc2136.key_name and tls.acme.rfc2136.key_file must be set".to_owned());
            }
        }
        problems
    }

    /// Whether there is a TLS listener.
    pub fn has_tls(&self) -> bool {
        self.tls.mode != TlsMode::Off
    }

    /// Whether names of the domain are answered.
    pub fn has_dns(&self) -> bool {
        !self.dns.listen.is_empty()
    }

    /// The domain alone, lower-cased and without a port; with TLS or DNS and no setting, one for local use.
    pub fn domain_name(&self) -> String {
        let name = self.domain.split_once(':').map_or(self.domain.as_str(), |(name, _)| name);
        if name.is_empty() && (self.has_tls() || self.has_dns()) {
            LOCAL_DOMAIN.to_owned()
        } else {
            name.to_ascii_lowercase()
        }
    }

    /// The domain as clients are told it, with the port where that is not 443: SDKs make `https://api.{this}` and
    /// `https://{port}-{id}.{this}` of it. `None`: they use what they are configured with.
    pub fn public_domain(&self) -> Option<String> {
        let name = Some(self.domain_name()).filter(|name| !name.is_empty())?;
        if !self.has_tls() {
            return Some(if self.domain.is_empty() { name } else { self.domain.clone() });
        }
        let told = self.domain.split_once(':').and_then(|(_, port)| port.parse().ok());
        let port =
            told.or_else(|| self.tls_address().ok().map(|address| address.port())).unwrap_or(HTTPS_PORT);
        Some(if port == HTTPS_PORT { name } else { format!("{name}:{port}") })
    }

    /// The TLS listener's address. Checked when loading.
    pub fn tls_address(&self) -> anyhow::Result<SocketAddr> {
        if self.tls.listen.is_empty() {
            Ok(SocketAddr::new(self.address()?.ip(), HTTPS_PORT))
        } else {
            Ok(self.tls.listen.parse()?)
        }
    }

    /// The address that names of the domain have. Checked when loading.
    pub fn dns_answer(&self) -> anyhow::Result<IpAddr> {
        if !self.dns.address.is_empty() {
            return Ok(self.dns.address.parse()?);
        }
        let listener = if self.has_tls() { self.tls_address()? } else { self.address()? };
        Ok(if listener.ip().is_unspecified() { std::net::Ipv4Addr::LOCALHOST.into() } else { listener.ip() })
    }

    /// Where keys and certificates are.
    pub fn tls_dir(&self) -> PathBuf {
        self.data_dir.join("tls")
    }
}

fn is_domain(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    // The longest name below it has a port and an id in front.
    name.len() <= 180
        && name.contains('.')
        && name.split('.').all(is_label)
        && name.parse::<IpAddr>().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(change: impl Fn(&mut Config)) -> Config {
        let mut config = Config::default();
        change(&mut config);
        config
    }

    #[test]
    fn without_tls_and_dns_nothing_changes() {
        assert_eq!(Config::default().public_domain(), None);
        assert_eq!(
            config(|c| c.domain = "Box.example.com".into()).public_domain().unwrap(),
            "Box.example.com"
        );
    }

    #[test]
    fn the_domain_tells_the_port_where_it_is_not_443() {
        let tls = |domain: &str, listen: &str| {
            let config = config(|c| {
                c.tls.mode = TlsMode::Local;
                c.domain = domain.to_owned();
                c.tls.listen = listen.to_owned();
            });
            assert_eq!(config.https_problems(), Vec::<String>::new());
            config.public_domain().unwrap()
        };
        assert_eq!(tls("", ""), "hutch.test");
        assert_eq!(tls("", "127.0.0.1:8443"), "hutch.test:8443");
        assert_eq!(tls("Box.example.com", "0.0.0.0:443"), "box.example.com");
        assert_eq!(tls("box.example.com:443", "0.0.0.0:8443"), "box.example.com", "a port forward in front");
    }

    #[test]
    fn names_have_the_listeners_address() {
        let answer = |change: fn(&mut Config)| config(change).dns_answer().unwrap().to_string();
        assert_eq!(answer(|_| {}), "127.0.0.1");
        assert_eq!(answer(|c| c.listen = "10.0.0.5:3000".into()), "10.0.0.5");
        assert_eq!(answer(|c| c.listen = "0.0.0.0:3000".into()), "127.0.0.1");
        assert_eq!(answer(|c| c.dns.address = "10.9.9.9".into()), "10.9.9.9");
    }

    #[test]
    fn mistakes_are_told_by_name() {
        let problems = |change: fn(&mut Config)| config(change).https_problems().join("\n");
        for bad in ["localhost", "under_score.test", "-a.test", "10.0.0.1", "a..test"] {
            let config = config(|c| c.domain = bad.to_owned());
            assert_eq!(config.https_problems().len(), 1, "{bad}");
        }
        assert!(problems(|c| c.domain = "a.test:no".into()).contains("port"));
        assert!(problems(|c| c.tls.mode = TlsMode::Files).contains("tls.cert"));
        assert!(problems(|c| c.tls.listen = "443".into()).contains("tls.listen"));
        let acme = problems(|c| {
            c.tls.mode = TlsMode::Acme;
            c.tls.acme.directory = "http://acme.test".into();
            c.tls.acme.eab_key_id = "id".into();
        });
        for named in ["domain must", "directory", "tls.acme.hook", "eab_key_file"] {
            assert!(acme.contains(named), "{named}: {acme}");
        }
        assert!(problems(|c| c.dns.address = "here".into()).contains("dns.address"));
        let same = problems(|c| {
            c.tls.mode = TlsMode::Local;
            c.listen = "127.0.0.1:443".into();
        });
        assert!(same.contains("plain HTTP"), "{same}");
    }
}
