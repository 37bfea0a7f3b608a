//! Options of a create that go beyond limits and names. What this version cannot honour is refused by name: an option
//! that is accepted is honoured.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use hutch_store::Sandbox;
use hutch_types::{Ingress, NetworkPolicy, PauseMode, Secret, TokenHash};
use serde::{Deserialize, Serialize};

use crate::error::AppError;

/// All IPv4 addresses; in `denyOut` it means that nothing outside may be reached.
const ALL_TRAFFIC: &str = "0.0.0.0/0";
/// Random bytes of a traffic access token.
const TRAFFIC_TOKEN_BYTES: usize = 32;
/// Ports that may speak TLS inside.
const MAX_HTTPS_PORTS: usize = 128;
/// envd's port, which the edge always reaches without TLS.
const ENVD_PORT: u16 = 49983;

/// Options as asked for, defaults applied.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CreateOptions {
    /// Pause instead of kill when the time is up.
    pub auto_pause: bool,
    /// Keep the memory in such a pause.
    pub auto_pause_memory: bool,
    /// Resume on traffic.
    pub auto_resume: bool,
    /// Volumes, as name and path.
    pub volume_mounts: Vec<(String, String)>,
    /// Named identity tokens, by name: audience and type.
    pub identity_tokens: BTreeMap<String, (String, String)>,
    /// What was asked about the network, where anything was.
    pub network: Option<NetworkOptions>,
    /// Configuration of the MCP gateway, which the client's library starts by itself.
    pub mcp: Option<serde_json::Value>,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self {
            auto_pause: false,
            auto_pause_memory: true,
            auto_resume: false,
            volume_mounts: Vec::new(),
            identity_tokens: BTreeMap::new(),
            network: None,
            mcp: None,
        }
    }
}

/// What was asked about the network.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NetworkOptions {
    /// Destinations that may be reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_out: Vec<String>,
    /// Destinations that may not be reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_out: Vec<String>,
    /// Whether anyone may reach the sandbox's ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_public_traffic: Option<bool>,
    /// The host name that the sandbox's servers see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
    /// An upstream proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<serde_json::Value>,
    /// Header rules by domain.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rules: BTreeMap<String, serde_json::Value>,
    /// Name servers that may be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_servers: Option<Vec<String>>,
    /// Ports that speak TLS inside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub https_ports: Vec<u16>,
}

impl CreateOptions {
    /// Refuses what this version cannot honour; the message names the field.
    pub(crate) fn check_supported(&self) -> Result<(), AppError> {
        if !self.auto_pause_memory && (!self.auto_pause || self.auto_resume) {
            return Err(AppError::invalid(
                "autoPauseMemory: false needs autoPause: true and no enabled autoResume",
            ));
        }
        let network = self.network.as_ref();
        let asks = |asked: fn(&NetworkOptions) -> bool| network.is_some_and(asked);
        let unsupported = [
            (self.auto_resume, "autoResume.enabled"),
            (!self.volume_mounts.is_empty(), "volumeMounts"),
            (!self.identity_tokens.is_empty(), "iam.tokens"),
            (asks(|n| !n.allow_out.is_empty()), "network.allowOut"),
            (asks(|n| n.egress_proxy.is_some()), "network.egressProxy"),
            (asks(|n| !n.rules.is_empty()), "network.rules"),
            (asks(|n| n.dns_servers.as_ref().is_some_and(|d| !d.is_empty())), "network.dnsServers"),
        ];
        if let Some((_, name)) = unsupported.iter().find(|(asked, _)| *asked) {
            return Err(AppError::invalid(format!("{name} is not supported by this version of Hutch")));
        }
        if asks(|n| n.deny_out.iter().any(|d| d != ALL_TRAFFIC)) {
            return Err(AppError::invalid(format!(
                "network.denyOut is not supported by this version of Hutch, except [\"{ALL_TRAFFIC}\"]"
            )));
        }
        network.map_or(Ok(()), check_ingress)
    }

    /// Who may reach the sandbox's ports and how, and the token that they need when it is not anybody.
    pub(crate) fn ingress(&self) -> (Ingress, Option<Secret>) {
        let Some(network) = &self.network else { return (Ingress::default(), None) };
        let token =
            (network.allow_public_traffic == Some(false)).then(|| Secret::random(TRAFFIC_TOKEN_BYTES));
        (ingress(network, token.as_ref()), token)
    }

    /// What is saved at the end of the lease; `None`: the sandbox is killed then.
    pub(crate) fn pause_at_end(&self) -> Option<PauseMode> {
        let mode = if self.auto_pause_memory { PauseMode::Full } else { PauseMode::Filesystem };
        self.auto_pause.then_some(mode)
    }

    /// The policy that these options and the switch make together.
    pub(crate) fn network_policy(&self, allow_internet_access: Option<bool>) -> NetworkPolicy {
        policy(self.network.as_ref().map(|n| n.deny_out.as_slice()), allow_internet_access)
    }
}

/// The rules of a sandbox that was created before: what it may reach, and who may reach it.
pub(crate) fn stored_network(sandbox: &Sandbox) -> (NetworkPolicy, Ingress) {
    let network = sandbox.asked.extra.get("network").filter(|network| network.is_object());
    let network: NetworkOptions = match network.map(|network| serde_json::from_value(network.clone())) {
        None => NetworkOptions::default(),
        Some(Ok(network)) => network,
        Some(Err(error)) => {
            tracing::error!(sandbox = %sandbox.asked.id, %error, "a stored network is not readable; all is denied");
            NetworkOptions { deny_out: vec![ALL_TRAFFIC.to_owned()], ..NetworkOptions::default() }
        }
    };
    let policy = policy(Some(&network.deny_out), sandbox.asked.allow_internet_access);
    (policy, ingress(&network, sandbox.asked.traffic_token.as_ref()))
}

fn ingress(network: &NetworkOptions, token: Option<&Secret>) -> Ingress {
    Ingress {
        traffic_token: token.map(TokenHash::of),
        mask_request_host: network.mask_request_host.clone().filter(|host| !host.is_empty()),
        https_ports: network.https_ports.iter().copied().collect(),
    }
}

/// What either denies is denied.
fn policy(deny_out: Option<&[String]>, allow_internet_access: Option<bool>) -> NetworkPolicy {
    let denied = deny_out.is_some_and(|denied| denied.iter().any(|d| d == ALL_TRAFFIC));
    NetworkPolicy { allow_internet_access: allow_internet_access.unwrap_or(true) && !denied }
}

/// Refuses what cannot be a host or a port.
fn check_ingress(network: &NetworkOptions) -> Result<(), AppError> {
    if let Some(mask) = network.mask_request_host.as_deref().filter(|host| !host.is_empty())
        && !is_host_mask(mask)
    {
        return Err(AppError::invalid(
            "network.maskRequestHost: a host name of ASCII letters is needed, with a port or `${PORT}` after a colon if any",
        ));
    }
    let ports = &network.https_ports;
    if ports.len() > MAX_HTTPS_PORTS {
        return Err(AppError::invalid(format!("network.httpsPorts: at most {MAX_HTTPS_PORTS} ports")));
    }
    if ports.iter().any(|port| matches!(*port, 0 | ENVD_PORT)) {
        return Err(AppError::invalid(format!(
            "network.httpsPorts: ports are 1 to 65535, and {ENVD_PORT} is taken"
        )));
    }
    if ports.iter().collect::<BTreeSet<_>>().len() != ports.len() {
        return Err(AppError::invalid("network.httpsPorts: a port is named twice"));
    }
    Ok(())
}

/// Whether `mask` is `host[:port]` for every port that `${PORT}` may stand for.
fn is_host_mask(mask: &str) -> bool {
    // The longest port, so that a mask fits in every case.
    let filled = mask.replace("${PORT}", "65535");
    let (host, port) = match filled.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((v6, port)) if v6.parse::<Ipv6Addr>().is_ok() => ("v6", port),
            _ => return false,
        },
        None => filled.find(':').map_or((filled.as_str(), ""), |colon| filled.split_at(colon)),
    };
    let port_is_good = port.is_empty()
        || port.strip_prefix(':').is_some_and(|p| {
            p.bytes().all(|b| b.is_ascii_digit()) && p.parse::<u16>().is_ok_and(|port| port != 0)
        });
    let label_is_good = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    port_is_good && host.len() <= 253 && host.split('.').all(label_is_good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_mask_that_is_accepted_makes_a_host_header(mask in "[ -~]{0,40}|[a-z0-9.:\\[\\]${}PORT-]{0,30}") {
            if is_host_mask(&mask) {
                let host = mask.replace("${PORT}", "80");
                prop_assert!(host.bytes().all(|b| b.is_ascii_alphanumeric() || b".:-_[]".contains(&b)), "{host}");
                prop_assert!(!host.is_empty());
            }
        }
    }

    #[test]
    fn masks_and_ports_are_checked() {
        for good in [
            "localhost",
            "localhost:${PORT}",
            "a.example.com:8080",
            "p${PORT}.lan",
            "[::1]:${PORT}",
            "127.0.0.1",
            "x.",
        ] {
            assert!(
                with_network(|n| n.mask_request_host = Some(good.into())).check_supported().is_ok(),
                "{good}"
            );
        }
        for bad in [
            "-https://abcd",
            "http://a",
            "a b",
            "ä.example",
            "a:b",
            "a:0",
            "a:70000",
            "a:",
            ":80",
            "a/",
            "a@b",
            "a\r\nx: y",
            "${HOST}",
            "[::1",
            "[x]:1",
            ".",
            "a..b",
        ] {
            let text = refusal(&with_network(|n| n.mask_request_host = Some(bad.into())));
            assert!(text.starts_with("network.maskRequestHost"), "{bad}: {text}");
        }
        for bad in [vec![49983], vec![0], vec![1, 1], (1..=129).collect()] {
            let text = refusal(&with_network(|n| n.https_ports = bad.clone()));
            assert!(text.starts_with("network.httpsPorts"), "{bad:?}: {text}");
        }
        assert!(with_network(|n| n.https_ports = (1..=128).collect()).check_supported().is_ok());
    }

    #[test]
    fn only_a_private_sandbox_has_a_token_and_each_its_own() {
        assert_eq!(CreateOptions::default().ingress(), (Ingress::default(), None));
        let private = with_network(|n| n.allow_public_traffic = Some(false));
        let ((ingress, token), (_, other)) = (private.ingress(), private.ingress());
        let token = token.unwrap();
        assert!(ingress.traffic_token.unwrap().is_of(token.expose()));
        assert_ne!(Some(token), other);
    }

    fn with_network(change: impl FnOnce(&mut NetworkOptions)) -> CreateOptions {
        let mut network = NetworkOptions::default();
        change(&mut network);
        CreateOptions { network: Some(network), ..CreateOptions::default() }
    }

    fn refusal(options: &CreateOptions) -> String {
        options.check_supported().expect_err("accepted").message().to_owned()
    }

    #[test]
    fn what_means_the_default_is_accepted() {
        for ok in [
            CreateOptions::default(),
            CreateOptions { auto_pause: true, ..CreateOptions::default() },
            CreateOptions { auto_pause: true, auto_pause_memory: false, ..CreateOptions::default() },
            with_network(|_| ()),
            with_network(|n| n.allow_public_traffic = Some(true)),
            with_network(|n| n.mask_request_host = Some(String::new())),
            with_network(|n| n.dns_servers = Some(Vec::new())),
            with_network(|n| n.deny_out = vec![ALL_TRAFFIC.to_owned()]),
        ] {
            assert!(ok.check_supported().is_ok(), "{ok:?}");
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        let check = |options: CreateOptions, name: &str| {
            let text = refusal(&options);
            assert!(text.starts_with(name), "{text}");
            assert!(text.contains("not supported by this version of Hutch"), "{text}");
        };
        check(CreateOptions { auto_resume: true, ..CreateOptions::default() }, "autoResume.enabled");
        let mount = vec![("data".to_owned(), "/mnt".to_owned())];
        check(CreateOptions { volume_mounts: mount, ..CreateOptions::default() }, "volumeMounts");
        check(with_network(|n| n.allow_out = vec!["1.1.1.1".into()]), "network.allowOut");
        check(with_network(|n| n.deny_out = vec!["8.8.8.8".into()]), "network.denyOut");
        check(with_network(|n| n.egress_proxy = Some(serde_json::json!({}))), "network.egressProxy");
        check(with_network(|n| drop(n.rules.insert("a.b".into(), serde_json::json!([])))), "network.rules");
        check(with_network(|n| n.dns_servers = Some(vec!["9.9.9.9".into()])), "network.dnsServers");
    }

    #[test]
    fn a_pause_without_memory_needs_a_pause() {
        let text = refusal(&CreateOptions { auto_pause_memory: false, ..CreateOptions::default() });
        assert!(text.starts_with("autoPauseMemory"), "{text}");
        let text = refusal(&CreateOptions {
            auto_pause: true,
            auto_pause_memory: false,
            auto_resume: true,
            ..CreateOptions::default()
        });
        assert!(text.starts_with("autoPauseMemory"), "{text}");
    }

    #[test]
    fn what_is_saved_at_the_end_is_what_was_asked_for() {
        let at_end = |auto_pause, auto_pause_memory| {
            CreateOptions { auto_pause, auto_pause_memory, ..CreateOptions::default() }.pause_at_end()
        };
        assert_eq!(at_end(false, true), None);
        assert_eq!(at_end(true, true), Some(PauseMode::Full));
        assert_eq!(at_end(true, false), Some(PauseMode::Filesystem));
    }

    #[test]
    fn a_denial_wins_over_the_switch() {
        let denied = with_network(|n| n.deny_out = vec![ALL_TRAFFIC.to_owned()]);
        assert!(!denied.network_policy(Some(true)).allow_internet_access);
        assert!(!CreateOptions::default().network_policy(Some(false)).allow_internet_access);
        assert!(CreateOptions::default().network_policy(None).allow_internet_access);
    }
}
