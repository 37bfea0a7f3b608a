//! Wires TLS and DNS together with the listener.

use std::future::Future;
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use hutch_dns::{DnsServer, Zone};
use hutch_tls::acme::hook::Hook;
use hutch_tls::acme::rfc2136::Rfc2136;
use hutch_tls::acme::{AcmeConfig, ExternalAccount, Provider};
use hutch_tls::files::Files;
use hutch_tls::{Accept, Current, TlsBounds};
use hutch_types::supervise::Supervisor;
use hutch_types::{Check, Clock, Secret};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;

use crate::config::Config;
use crate::https::{Rfc2136Section, TlsMode};

/// What clients need so that they trust this server; none where the certificate is trusted anyway.
#[derive(Debug)]
pub struct Trust {
    /// The CA's certificate.
    pub ca: PathBuf,
    /// The system's roots with it.
    pub bundle: PathBuf,
}

/// A listener that has its address, and the certificates for it.
#[derive(Debug)]
pub struct Tls {
    /// Where it listens.
    pub listener: TcpListener,
    /// What clients have to trust.
    pub trust: Option<Trust>,
    accept: Accept,
}

/// Takes the address and gets the certificate ready, where TLS is on.
pub async fn open(config: &Config, supervisor: &Supervisor, clock: &Clock) -> anyhow::Result<Option<Tls>> {
    if !config.has_tls() {
        return Ok(None);
    }
    let address = config.tls_address()?;
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            anyhow::bail!(
                "{address} is in use: stop what listens there, or choose another address for TLS with tls.listen"
            )
        }
        Err(error) => return Err(error).with_context(|| format!("cannot listen on {address} for TLS")),
    };
    let (current, trust) = certificates(config, supervisor, clock)?;
    let bounds = TlsBounds {
        max_handshakes: config.tls.max_handshakes,
        handshake_timeout: Duration::from_secs(config.tls.handshake_timeout_seconds),
    };
    Ok(Some(Tls { listener, trust, accept: Accept::new(current, bounds)? }))
}

fn certificates(
    config: &Config,
    supervisor: &Supervisor,
    clock: &Clock,
) -> anyhow::Result<(Current, Option<Trust>)> {
    let domain = config.domain_name();
    match config.tls.mode {
        TlsMode::Off => anyhow::bail!("TLS is off"),
        TlsMode::Local => {
            let local = hutch_tls::local::start(&config.tls_dir(), &domain, supervisor, clock)?;
            // What is told to people has to work in whatever folder they are.
            let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
            let trust = Trust { ca: absolute(local.ca), bundle: absolute(local.bundle) };
            if local.is_new {
                tracing::info!(ca = %trust.ca.display(), "made a local CA, which clients have to trust");
            }
            Ok((local.current, Some(trust)))
        }
        TlsMode::Files => {
            let files = Files { cert: config.tls.cert.clone(), key: config.tls.key.clone() };
            let wanted = vec![format!("api.{domain}")];
            Ok((hutch_tls::files::start(files, wanted, supervisor, clock)?, None))
        }
        TlsMode::Acme => {
            let dir = config.tls_dir().join("acme");
            Ok((hutch_tls::acme::start(&dir, acme(config, domain)?, supervisor, clock)?, None))
        }
    }
}

fn acme(config: &Config, domain: String) -> anyhow::Result<AcmeConfig> {
    let acme = &config.tls.acme;
    let external_account = match acme.eab_key_id.as_str() {
        "" => None,
        id => Some(ExternalAccount { key_id: id.to_owned(), key: secret(&acme.eab_key_file)? }),
    };
    let provider = if acme.rfc2136.server.is_empty() {
        let timeout = Duration::from_secs(acme.hook_timeout_seconds);
        Provider::Hook(Hook { command: acme.hook.clone(), timeout })
    } else {
        Provider::Rfc2136(rfc2136(&acme.rfc2136)?)
    };
    Ok(AcmeConfig {
        directory: acme.directory.clone(),
        root: Some(acme.root.clone()).filter(|root| !root.as_os_str().is_empty()),
        contact: acme.contact.clone(),
        external_account,
        domain,
        record: Some(acme.record.clone()).filter(|record| !record.is_empty()),
        provider,
        check_servers: acme.check_servers.clone(),
        check_timeout: Duration::from_secs(acme.check_timeout_seconds),
        first_retry: None,
    })
}

fn rfc2136(update: &Rfc2136Section) -> anyhow::Result<Rfc2136> {
    let zone = Some(update.zone.as_str()).filter(|zone| !zone.is_empty());
    let key = secret(&update.key_file)?;
    Rfc2136::new(update.server.parse()?, zone, &update.key_name, &update.key_algorithm, &key)
        .context("tls.acme.rfc2136 cannot be used")
}

fn secret(path: &Path) -> anyhow::Result<Secret> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Secret::new(text.trim()))
}

impl Tls {
    /// What the listener does with each connection.
    pub fn handshake(&self) -> impl Fn(TcpStream, SocketAddr) -> HandshakeFuture + Clone + Send + 'static {
        let accept = self.accept.clone();
        move |stream, peer| {
            let accept = accept.clone();
            Box::pin(async move {
                match accept.accept(stream).await {
                    Ok(stream) => Some(stream),
                    Err(error) => {
                        let cause = std::error::Error::source(&error).map(ToString::to_string);
                        tracing::debug!(%peer, %error, cause, "no TLS connection");
                        None
                    }
                }
            })
        }
    }
}

type HandshakeFuture = std::pin::Pin<Box<dyn Future<Output = Option<TlsStream<TcpStream>>> + Send>>;

/// Takes the address for DNS and answers, where that is on.
pub async fn start_dns(config: &Config, supervisor: &Supervisor) -> anyhow::Result<()> {
    if !config.has_dns() {
        return Ok(());
    }
    let (domain, answer) = (config.domain_name(), config.dns_answer()?);
    let server =
        DnsServer::bind(config.dns.listen.parse()?, Zone::new(&domain, answer)?, config.dns.forward.clone())
            .await?;
    tracing::info!(address = %server.local_addr()?, %domain, %answer, "answering DNS");
    server.start(supervisor);
    Ok(())
}

/// What `hutch doctor` says about certificates and names; nothing where both are off.
pub fn checks(config: &Config) -> Vec<(&'static str, Check)> {
    let mut checks = Vec::new();
    if config.has_tls() {
        checks.push(("certificate", certificate(config).unwrap_or_else(|e| Check::Fails(format!("{e:#}")))));
    }
    if config.has_tls() || config.has_dns() {
        checks.push(("names", resolution(config).unwrap_or_else(|e| Check::Fails(format!("{e:#}")))));
    }
    checks
}

fn certificate(config: &Config) -> anyhow::Result<Check> {
    let until = |identity: &hutch_tls::Identity| format!("valid until {}", identity.not_after().to_rfc3339());
    Ok(match config.tls.mode {
        TlsMode::Off => Check::Works("none".to_owned()),
        TlsMode::Local => {
            let ca = config.tls_dir().join("ca.pem");
            Check::Works(if ca.exists() {
                format!("from the local CA {}, which clients have to trust", ca.display())
            } else {
                "a local CA is made at the first start".to_owned()
            })
        }
        TlsMode::Files => {
            let files = Files { cert: config.tls.cert.clone(), key: config.tls.key.clone() };
            Check::Works(until(&files.load(Clock::system().now())?))
        }
        TlsMode::Acme => {
            let acme = acme(config, config.domain_name())?;
            match hutch_tls::acme::kept(&config.tls_dir().join("acme"), &acme)? {
                Some(identity) => Check::Works(until(&identity)),
                None => Check::Fails("none yet: it is ordered when the server starts".to_owned()),
            }
        }
    })
}

/// Whether names of the domain lead here, as this machine resolves them.
fn resolution(config: &Config) -> anyhow::Result<Check> {
    let (name, wanted) = (format!("api.{}", config.domain_name()), config.dns_answer()?);
    let Ok(found) = (name.as_str(), 0).to_socket_addrs() else {
        return Ok(Check::Fails(format!(
            "{name} does not resolve on this machine; docs/tls.md says how it can"
        )));
    };
    let found: Vec<String> = found.map(|address| address.ip().to_string()).collect();
    let text = format!("{name} leads to {}", found.join(" "));
    Ok(if found.contains(&wanted.to_string()) {
        Check::Works(text)
    } else {
        Check::Fails(format!(
            "{text}, and this server is at {wanted}: right when something in front passes on"
        ))
    })
}
