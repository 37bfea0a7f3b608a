//! Clients and the handshake.

use std::sync::Arc;
use std::time::Duration;

use hutch_tls::{Accept, Current, HandshakeError, TlsBounds};
use hutch_types::Clock;
use hutch_types::supervise::Supervisor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_rustls::TlsConnector;

fn connector(ca: &std::path::Path, alpn: &[&str]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

async fn shake(
    accept: &Accept,
    connector: &TlsConnector,
    name: &str,
) -> (std::io::Result<tokio_rustls::client::TlsStream<DuplexStream>>, bool) {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let (client, server) = tokio::join!(connector.connect(name, theirs), accept.accept(ours));
    let ok = server.is_ok();
    if let Ok(mut server) = server {
        server.write_all(b"hello").await.unwrap();
        server.shutdown().await.unwrap();
    }
    (client, ok)
}

#[tokio::test]
async fn a_local_certificate_is_trusted_for_its_names_alone() {
    let dir = tempfile::tempdir().unwrap();
    let local =
        hutch_tls::local::start(dir.path(), "hutch.test", &Supervisor::new(), &Clock::system()).unwrap();
    let accept = Accept::new(local.current, TlsBounds::default()).unwrap();
    for (offered, chosen) in [(&["h2", "http/1.1"][..], "h2"), (&["http/1.1"], "http/1.1")] {
        let connector = connector(&local.ca, offered);
        for name in ["hutch.test", "api.hutch.test", "3000-abc.hutch.test", "localhost", "127.0.0.1"] {
            let (client, server_ok) = shake(&accept, &connector, name).await;
            let mut client = client.unwrap();
            assert!(server_ok);
            assert_eq!(client.get_ref().1.alpn_protocol(), Some(chosen.as_bytes()));
            let mut said = String::new();
            client.read_to_string(&mut said).await.unwrap();
            assert_eq!(said, "hello");
        }
    }
    for name in ["example.com", "a.b.hutch.test"] {
        let (client, server_ok) = shake(&accept, &connector(&local.ca, &["h2"]), name).await;
        assert!(client.is_err() && !server_ok, "{name}");
    }
}

#[tokio::test]
async fn without_a_certificate_the_client_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let local =
        hutch_tls::local::start(dir.path(), "hutch.test", &Supervisor::new(), &Clock::system()).unwrap();
    let accept = Accept::new(Current::new(), TlsBounds::default()).unwrap();
    let (client, server_ok) = shake(&accept, &connector(&local.ca, &[]), "hutch.test").await;
    assert!(client.is_err() && !server_ok);
}

#[tokio::test(start_paused = true)]
async fn silent_clients_are_given_up_and_their_number_is_bounded() {
    let bounds = TlsBounds { max_handshakes: 1, handshake_timeout: Duration::from_secs(10) };
    let accept = Accept::new(Current::new(), bounds).unwrap();
    let (_silent, ours) = tokio::io::duplex(64);
    let (_other, second) = tokio::io::duplex(64);
    let begun = tokio::time::Instant::now();
    let (first, second) = tokio::join!(accept.accept(ours), accept.accept(second));
    assert!(matches!(first, Err(HandshakeError::TimedOut)), "{first:?}");
    assert!(matches!(second, Err(HandshakeError::Busy)), "{second:?}");
    assert_eq!(begun.elapsed().as_secs(), 10);
    let (mut plain, ours) = tokio::io::duplex(1024);
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(matches!(accept.accept(ours).await, Err(HandshakeError::Failed(_))), "there is room again");
}
