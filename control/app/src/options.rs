//! Options of a create that go beyond limits and names. What this version cannot honour is refused by name: an option
//! that is accepted is honoured.

use std::collections::BTreeMap;

use hutch_types::NetworkPolicy;
use serde::{Deserialize, Serialize};

use crate::error::AppError;

/// All IPv4 addresses; in `denyOut` it means that nothing outside may be reached.
const ALL_TRAFFIC: &str = "0.0.0.0/0";

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
            (self.auto_pause, "autoPause"),
            (self.auto_resume, "autoResume.enabled"),
            (!self.volume_mounts.is_empty(), "volumeMounts"),
            (!self.identity_tokens.is_empty(), "iam.tokens"),
            (asks(|n| !n.allow_out.is_empty()), "network.allowOut"),
            (asks(|n| n.allow_public_traffic == Some(false)), "network.allowPublicTraffic: false"),
            (
                asks(|n| n.mask_request_host.as_deref().is_some_and(|h| !h.is_empty())),
                "network.maskRequestHost",
            ),
            (asks(|n| n.egress_proxy.is_some()), "network.egressProxy"),
            (asks(|n| !n.rules.is_empty()), "network.rules"),
            (asks(|n| n.dns_servers.as_ref().is_some_and(|d| !d.is_empty())), "network.dnsServers"),
            (asks(|n| !n.https_ports.is_empty()), "network.httpsPorts"),
        ];
        if let Some((_, name)) = unsupported.iter().find(|(asked, _)| *asked) {
            return Err(AppError::invalid(format!("{name} is not supported by this version of Hutch")));
        }
        if asks(|n| n.deny_out.iter().any(|d| d != ALL_TRAFFIC)) {
            return Err(AppError::invalid(format!(
                "network.denyOut is not supported by this version of Hutch, except [\"{ALL_TRAFFIC}\"]"
            )));
        }
        Ok(())
    }

    /// The policy that these options and the switch make together: what either denies is denied.
    pub(crate) fn network_policy(&self, allow_internet_access: Option<bool>) -> NetworkPolicy {
        let denied = self.network.as_ref().is_some_and(|n| n.deny_out.iter().any(|d| d == ALL_TRAFFIC));
        NetworkPolicy { allow_internet_access: allow_internet_access.unwrap_or(true) && !denied }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            with_network(|_| ()),
            with_network(|n| n.allow_public_traffic = Some(true)),
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
        check(CreateOptions { auto_pause: true, ..CreateOptions::default() }, "autoPause");
        check(CreateOptions { auto_resume: true, ..CreateOptions::default() }, "autoResume.enabled");
        let mount = vec![("data".to_owned(), "/mnt".to_owned())];
        check(CreateOptions { volume_mounts: mount, ..CreateOptions::default() }, "volumeMounts");
        check(with_network(|n| n.allow_out = vec!["1.1.1.1".into()]), "network.allowOut");
        check(with_network(|n| n.deny_out = vec!["8.8.8.8".into()]), "network.denyOut");
        check(with_network(|n| n.allow_public_traffic = Some(false)), "network.allowPublicTraffic");
        check(with_network(|n| n.mask_request_host = Some("h".into())), "network.maskRequestHost");
        check(with_network(|n| n.egress_proxy = Some(serde_json::json!({}))), "network.egressProxy");
        check(with_network(|n| drop(n.rules.insert("a.b".into(), serde_json::json!([])))), "network.rules");
        check(with_network(|n| n.dns_servers = Some(vec!["9.9.9.9".into()])), "network.dnsServers");
        check(with_network(|n| n.https_ports = vec![8443]), "network.httpsPorts");
    }

    #[test]
    fn a_pause_without_memory_needs_a_pause() {
        let text = refusal(&CreateOptions { auto_pause_memory: false, ..CreateOptions::default() });
        assert!(text.starts_with("autoPauseMemory"), "{text}");
    }

    #[test]
    fn a_denial_wins_over_the_switch() {
        let denied = with_network(|n| n.deny_out = vec![ALL_TRAFFIC.to_owned()]);
        assert!(!denied.network_policy(Some(true)).allow_internet_access);
        assert!(!CreateOptions::default().network_policy(Some(false)).allow_internet_access);
        assert!(CreateOptions::default().network_policy(None).allow_internet_access);
    }
}
