//! Programs that the tests start: an ACME server, and name servers. They end with the value that stands for them.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// A program that ends with this.
pub struct Program {
    child: Child,
    log: PathBuf,
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Program {
    fn start(command: &mut Command, log: PathBuf) -> Self {
        let file = File::create(&log).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Self { child, log }
    }

    /// Waits until it takes connections.
    fn wait_for(&mut self, address: SocketAddr) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(address).is_err() {
            let said = || fs::read_to_string(&self.log).unwrap_or_default();
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("it ended with {status}: {}", said());
            }
            assert!(Instant::now() < deadline, "{address} does not answer: {}", said());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Whether all of `programs` are installed; prints what is missing for the test of that name.
pub fn installed(test: &str, programs: &[(&str, &str)]) -> bool {
    for (program, package) in programs {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path)
            .chain([PathBuf::from("/usr/sbin")])
            .any(|dir| dir.join(program).is_file());
        if !found {
            println!("SKIP: {test}: {program} is not installed (Debian package {package})");
            return false;
        }
    }
    true
}

/// A port that nothing has, for TCP and UDP.
pub fn free_port() -> SocketAddr {
    loop {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        if UdpSocket::bind(address).is_ok() {
            return address;
        }
    }
}

/// Pebble, the ACME test server of Let's Encrypt.
pub struct Pebble {
    _program: Program,
    pub directory: String,
    /// The CA of its own HTTPS.
    pub root: PathBuf,
}

impl Pebble {
    /// It resolves names at `resolver`. `external`: it wants accounts to be bound to this key id and key.
    pub fn start(dir: &Path, resolver: SocketAddr, external: Option<(&str, &str)>) -> Self {
        let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = dir.join("pebble-root.pem");
        fs::write(&root, params.self_signed(&ca_key).unwrap().pem()).unwrap();
        let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let leaf = leaf.signed_by(&key, &Issuer::new(params, ca_key)).unwrap();
        fs::write(dir.join("pebble.pem"), leaf.pem()).unwrap();
        fs::write(dir.join("pebble.key"), key.serialize_pem()).unwrap();
        let (listen, manage) = (free_port(), free_port());
        let config = serde_json::json!({"pebble": {
            "listenAddress": listen.to_string(),
            "managementListenAddress": manage.to_string(),
            "certificate": dir.join("pebble.pem"),
            "privateKey": dir.join("pebble.key"),
            "httpPort": 5002,
            "tlsPort": 5001,
            "externalAccountBindingRequired": external.is_some(),
            "externalAccountMACKeys": external.into_iter().collect::<std::collections::HashMap<_, _>>(),
        }});
        fs::write(dir.join("pebble.json"), config.to_string()).unwrap();
        let mut command = Command::new("pebble");
        command
            .args(["-strict", "-dnsserver", &resolver.to_string(), "-config"])
            .arg(dir.join("pebble.json"))
            // Its tests of clients: no pauses, and now and then a nonce that is refused.
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_WFE_NONCEREJECT", "5");
        let mut program = Program::start(&mut command, dir.join("pebble.log"));
        program.wait_for(listen);
        Self { _program: program, directory: format!("https://{listen}/dir"), root }
    }
}

/// Pebble's own name server, whose text records are set over HTTP.
pub struct TestDns {
    _program: Program,
    pub dns: SocketAddr,
    pub manage: SocketAddr,
}

impl TestDns {
    pub fn start(dir: &Path) -> Self {
        let (dns, manage) = (free_port(), free_port());
        let mut command = Command::new("pebble-challtestsrv");
        command.args(["-http01", "", "-https01", "", "-tlsalpn01", ""]);
        command.args(["-dns01", &dns.to_string(), "-management", &manage.to_string()]);
        let mut program = Program::start(&mut command, dir.join("challtestsrv.log"));
        program.wait_for(manage);
        Self { _program: program, dns, manage }
    }
}

/// What [`NameServer`] runs.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Bind,
    Knot,
}

/// An authoritative server for `example.com` that takes updates signed with [`KEY_NAME`] and [`KEY`].
pub struct NameServer {
    _program: Program,
    pub address: SocketAddr,
}

pub const KEY_NAME: &str = "hutch-key";
pub const KEY: &str = "c2VjcmV0LW9mLWh1dGNoLWluLXRlc3RzLW9ubHkhISE=";

const ZONE: &str = "example.com. 60 SOA ns.example.com. hostmaster.example.com. 1 3600 600 86400 60\n\
                    example.com. 60 NS ns.example.com.\nns.example.com. 60 A 127.0.0.1\n";

impl NameServer {
    pub fn start(kind: Kind, dir: &Path) -> Self {
        let address = free_port();
        let (port, place) = (address.port(), dir.display());
        fs::write(dir.join("example.com.zone"), ZONE).unwrap();
        let mut command = match kind {
            Kind::Bind => {
                let config = format!(
                    "key \"{KEY_NAME}\" {{ algorithm hmac-sha256; secret \"{KEY}\"; }};\ncontrols {{ }};\n\
                     options {{ directory \"{place}\"; listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }};\n\
                     pid-file \"{place}/named.pid\"; session-keyfile \"{place}/session.key\"; recursion no; dnssec-validation no;\n\
                     managed-keys-directory \"{place}\"; lock-file none; }};\n\
                     zone \"example.com\" {{ type primary; file \"example.com.zone\"; allow-update {{ key \"{KEY_NAME}\"; }}; }};\n"
                );
                fs::write(dir.join("named.conf"), config).unwrap();
                let mut command = Command::new("/usr/sbin/named");
                command.arg("-g").arg("-c").arg(dir.join("named.conf"));
                command
            }
            Kind::Knot => {
                let config = format!(
                    "server:\n  listen: 127.0.0.1@{port}\n  rundir: {place}\ndatabase:\n  storage: {place}\n\
                     key:\n  - id: {KEY_NAME}\n    algorithm: hmac-sha256\n    secret: {KEY}\n\
                     acl:\n  - id: update\n    key: {KEY_NAME}\n    action: update\n\
                     zone:\n  - domain: example.com\n    storage: {place}\n    file: example.com.zone\n    acl: update\n"
                );
                fs::write(dir.join("knot.conf"), config).unwrap();
                let mut command = Command::new("/usr/sbin/knotd");
                command.arg("--config").arg(dir.join("knot.conf"));
                command
            }
        };
        let mut program = Program::start(&mut command, dir.join("nameserver.log"));
        program.wait_for(address);
        Self { _program: program, address }
    }
}
