//! Orders from Pebble.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use hutch_tls::Current;
use hutch_tls::acme::hook::Hook;
use hutch_tls::acme::rfc2136::{Rfc2136, UpdateError};
use hutch_tls::acme::{AcmeConfig, ExternalAccount, Provider, start};
use hutch_types::supervise::Supervisor;
use hutch_types::{Clock, Secret};

use crate::servers::{KEY, KEY_NAME, Kind, NameServer, Pebble, TestDns, installed};

const PATIENCE: Duration = Duration::from_secs(90);

fn config(pebble: &Pebble, domain: &str, provider: Provider, check: std::net::SocketAddr) -> AcmeConfig {
    AcmeConfig {
        directory: pebble.directory.clone(),
        root: Some(pebble.root.clone()),
        contact: "admin@example.com".to_owned(),
        external_account: None,
        domain: domain.to_owned(),
        record: None,
        provider,
        check_servers: vec![check],
        check_timeout: Duration::from_secs(30),
        first_retry: Some(Duration::from_millis(500)),
    }
}

/// A hook that sets text records at `dns`, and notes how it was called.
fn hook(dir: &Path, dns: &TestDns) -> Provider {
    let command = dir.join("hook");
    let script = format!(
        "#!/bin/sh\nset -e\necho \"$1 $2\" >> {0}/calls\ncase $1 in add) what=set-txt ;; remove) what=clear-txt ;; esac\n\
         exec curl --silent --fail --noproxy '*' -d \"{{\\\"host\\\":\\\"$2.\\\",\\\"value\\\":\\\"$3\\\"}}\" http://{1}/$what\n",
        dir.display(),
        dns.manage
    );
    fs::write(&command, script).unwrap();
    fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).unwrap();
    Provider::Hook(Hook { command, timeout: Duration::from_secs(20) })
}

async fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn certificate(current: &Current) {
    wait_for("a certificate", || current.get().is_some()).await;
    let identity = current.get().unwrap();
    assert!(identity.covers("api.example.com") && identity.covers("example.com"), "{identity:?}");
    identity.check(Clock::system().now()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_gets_a_certificate_that_is_kept_and_renewed() {
    let programs = [("pebble", "pebble"), ("pebble-challtestsrv", "pebble"), ("curl", "curl")];
    if !installed("a_hook_gets_a_certificate_that_is_kept_and_renewed", &programs) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let dns = TestDns::start(place.path());
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let pebble = Pebble::start(place.path(), dns.dns, Some(("kid-1", key)));
    let store = place.path().join("tls");
    let mut config = config(&pebble, "example.com", hook(place.path(), &dns), dns.dns);
    config.external_account =
        Some(ExternalAccount { key_id: "kid-1".to_owned(), key: Secret::new(format!("{key}\n")) });
    let calls = || fs::read_to_string(place.path().join("calls")).unwrap_or_default();

    let supervisor = Supervisor::new();
    let current = start(&store, config.clone(), &supervisor, &Clock::system()).unwrap();
    certificate(&current).await;
    let name = "_acme-challenge.example.com\n";
    assert_eq!(calls().matches(&format!("add {name}")).count(), 2, "for the domain and the wildcard");
    assert_eq!(calls().matches(&format!("remove {name}")).count(), 2, "they are removed again");
    let mode = |file: &str| fs::metadata(store.join(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("account.json"), mode("certificate.pem")), (0o600, 0o600));
    assert_eq!(supervisor.shutdown(PATIENCE).await, 0);

    // The next start needs no order; when its end is near there is one, with the same account.
    let before = calls();
    let account = fs::read_to_string(store.join("account.json")).unwrap();
    let supervisor = Supervisor::new();
    let again = start(&store, config.clone(), &supervisor, &Clock::system()).unwrap();
    let end = again.get().expect("it is there at once").not_after();
    assert_eq!(supervisor.shutdown(PATIENCE).await, 0);
    assert_eq!(calls(), before);
    let supervisor = Supervisor::new();
    let later = Clock::manual(hutch_types::Timestamp(end.0 - 86_400_000));
    let renewed = start(&store, config.clone(), &supervisor, &later).unwrap();
    assert_eq!(renewed.get().unwrap().not_after(), end, "the old one stays in force meanwhile");
    wait_for("the renewal", || renewed.get().unwrap().not_after() != end).await;
    assert_eq!(supervisor.shutdown(PATIENCE).await, 0);
    assert_eq!(fs::read_to_string(store.join("account.json")).unwrap(), account);

    // A certificate of another authority, or for another domain, is not taken.
    config.domain = "other.example.com".to_owned();
    assert!(start(&store, config, &Supervisor::new(), &Clock::system()).unwrap().get().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_fails_at_first_is_tried_again() {
    let programs = [("pebble", "pebble"), ("pebble-challtestsrv", "pebble"), ("curl", "curl")];
    if !installed("a_hook_that_fails_at_first_is_tried_again", &programs) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let dns = TestDns::start(place.path());
    let pebble = Pebble::start(place.path(), dns.dns, None);
    let provider = hook(place.path(), &dns);
    let command = place.path().join("hook");
    let script = fs::read_to_string(&command).unwrap();
    let fails_once =
        "#!/bin/sh\nset -e\nif mkdir \"${0%/*}/failed\" 2>/dev/null; then echo not now >&2; exit 1; fi\n";
    fs::write(&command, script.replacen("#!/bin/sh\nset -e\n", fails_once, 1)).unwrap();

    let supervisor = Supervisor::new();
    let config = config(&pebble, "example.com", provider, dns.dns);
    let current = start(&place.path().join("tls"), config, &supervisor, &Clock::system()).unwrap();
    certificate(&current).await;
    assert!(place.path().join("failed").is_dir());
    assert_eq!(supervisor.shutdown(PATIENCE).await, 0);
}

async fn by_dynamic_update(kind: Kind) {
    let place = tempfile::tempdir().unwrap();
    let dns = NameServer::start(kind, place.path());
    let pebble = Pebble::start(place.path(), dns.address, None);
    let update = |zone: Option<&str>, secret: &str| {
        Rfc2136::new(dns.address, zone, KEY_NAME, "hmac-sha256", &Secret::new(secret)).unwrap()
    };
    let now = Clock::system().now();
    let name = "_acme-challenge.example.com";
    let wrong = update(None, "d3Jvbmc=").add(name, "v", now).await.unwrap_err();
    assert!(matches!(wrong, UpdateError::Refused { .. }), "{wrong:?}");
    let late = hutch_types::Timestamp(now.0 - 3_600_000);
    let late = update(None, KEY).add(name, "v", late).await.unwrap_err();
    assert!(matches!(late, UpdateError::Refused { .. }), "another clock: {late:?}");
    let elsewhere = update(None, KEY).add("a.example.org", "v", now).await.unwrap_err();
    assert!(matches!(elsewhere, UpdateError::NoZone { .. }), "{elsewhere:?}");
    let elsewhere = update(Some("sub.example.com"), KEY).add(name, "v", now).await.unwrap_err();
    assert!(matches!(elsewhere, UpdateError::OtherZone { .. }), "{elsewhere:?}");

    for (store, zone) in [("found", None), ("set", Some("example.com"))] {
        let supervisor = Supervisor::new();
        let config = config(&pebble, "example.com", Provider::Rfc2136(update(zone, KEY)), dns.address);
        let current = start(&place.path().join(store), config, &supervisor, &Clock::system()).unwrap();
        certificate(&current).await;
        assert_eq!(supervisor.shutdown(PATIENCE).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dynamic_updates_to_bind_get_a_certificate() {
    let programs = [("pebble", "pebble"), ("named", "bind9")];
    if installed("dynamic_updates_to_bind_get_a_certificate", &programs) {
        by_dynamic_update(Kind::Bind).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dynamic_updates_to_knot_get_a_certificate() {
    let programs = [("pebble", "pebble"), ("knotd", "knot")];
    if installed("dynamic_updates_to_knot_get_a_certificate", &programs) {
        by_dynamic_update(Kind::Knot).await;
    }
}
