//! What clients send to create a sandbox and to move its lease.

use std::collections::BTreeMap;

use hutch_app::{CreateOptions, CreateSandbox, NetworkOptions};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::ApiError;

/// A sandbox to be created. Everything but the template may be left out or `null`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewSandbox {
    /// `[namespace/]name[:tag]`, or an id in place of the name.
    #[serde(rename = "templateID")]
    template_id: String,
    /// Seconds that it lives, counted from when it answers. Default: 300 (version 1: 15).
    #[schema(minimum = 1)]
    timeout: Option<u32>,
    /// Pause instead of kill when the time is up.
    auto_pause: Option<bool>,
    /// Keep the memory in such a pause.
    auto_pause_memory: Option<bool>,
    /// Resume on traffic.
    auto_resume: Option<AutoResume>,
    /// Ignored: every sandbox is secured.
    #[schema(deprecated)]
    #[serde(rename = "secure")]
    _secure: Option<bool>,
    /// Whether the internet may be reached.
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    /// What may be reached, in detail.
    network: Option<NetworkConfig>,
    /// The client's own pairs.
    metadata: Option<BTreeMap<String, String>>,
    /// Environment of every process inside.
    env_vars: Option<BTreeMap<String, String>>,
    /// Configuration of the MCP gateway, which the SDK starts by itself.
    #[schema(value_type = Option<Object>)]
    mcp: Option<Value>,
    /// Identity tokens.
    iam: Option<Iam>,
    /// Volumes.
    volume_mounts: Option<Vec<VolumeMount>>,
}

/// Whether traffic resumes a paused sandbox.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct AutoResume {
    enabled: Option<bool>,
}

/// What a sandbox may reach and who may reach it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NetworkConfig {
    /// Destinations that may be reached.
    allow_out: Option<Vec<String>>,
    /// Destinations that may not be reached.
    deny_out: Option<Vec<String>>,
    /// False: requests to all ports but envd's need the token that the answer then has as `trafficAccessToken`, as header or query
    /// parameter `e2b-traffic-access-token` or as WebSocket subprotocol `e2b-traffic-access-token.<token>`.
    allow_public_traffic: Option<bool>,
    /// The `Host` that the sandbox's servers see, `host[:port]`; `${PORT}` stands for the port. `X-Forwarded-Host` has the original.
    mask_request_host: Option<String>,
    /// An upstream proxy.
    #[schema(value_type = Option<Object>)]
    egress_proxy: Option<Value>,
    /// Header rules by domain.
    #[schema(value_type = Option<Object>)]
    rules: Option<BTreeMap<String, Value>>,
    /// Name servers that may be asked.
    dns_servers: Option<Vec<String>>,
    /// Ports whose servers speak TLS; their certificates are not verified. At most 128, not 49983.
    https_ports: Option<Vec<u16>>,
}

/// Identity tokens by name.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Iam {
    tokens: Option<BTreeMap<String, IamToken>>,
}

/// One identity token.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IamToken {
    audience: String,
    token_type: String,
}

/// A volume and where it is mounted.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct VolumeMount {
    name: String,
    path: String,
}

impl NewSandbox {
    /// The request with defaults applied.
    pub(crate) fn into_request(self, default_timeout: u32) -> Result<CreateSandbox, ApiError> {
        if self.mcp.as_ref().is_some_and(|mcp| !mcp.is_object()) {
            return Err(ApiError::bad_request("Invalid request body: mcp: an object is needed"));
        }
        let tokens = self.iam.and_then(|iam| iam.tokens).unwrap_or_default();
        Ok(CreateSandbox {
            template: self.template_id,
            timeout_seconds: self.timeout.unwrap_or(default_timeout),
            metadata: self.metadata.unwrap_or_default(),
            env: self.env_vars.unwrap_or_default(),
            allow_internet_access: self.allow_internet_access,
            options: CreateOptions {
                auto_pause: self.auto_pause.unwrap_or(false),
                auto_pause_memory: self.auto_pause_memory.unwrap_or(true),
                auto_resume: self.auto_resume.and_then(|a| a.enabled).unwrap_or(false),
                volume_mounts: self
                    .volume_mounts
                    .unwrap_or_default()
                    .into_iter()
                    .map(|v| (v.name, v.path))
                    .collect(),
                identity_tokens: tokens.into_iter().map(|(n, t)| (n, (t.audience, t.token_type))).collect(),
                network: self.network.map(NetworkOptions::from),
                mcp: self.mcp,
            },
        })
    }
}

impl From<NetworkConfig> for NetworkOptions {
    fn from(config: NetworkConfig) -> Self {
        Self {
            allow_out: config.allow_out.unwrap_or_default(),
            deny_out: config.deny_out.unwrap_or_default(),
            allow_public_traffic: config.allow_public_traffic,
            mask_request_host: config.mask_request_host,
            egress_proxy: config.egress_proxy,
            rules: config.rules.unwrap_or_default(),
            dns_servers: config.dns_servers,
            https_ports: config.https_ports.unwrap_or_default(),
        }
    }
}

/// A new end of a sandbox's life.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct SetTimeout {
    /// Seconds from now; 0 ends it at once.
    pub(crate) timeout: u32,
}

/// A longer life.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct RefreshSandbox {
    /// Seconds from now, at least 15.
    #[schema(maximum = 3600)]
    pub(crate) duration: Option<u32>,
}

/// How to come back to a sandbox.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct ConnectSandbox {
    /// Seconds from now that it lives at least. Default: 300 (version 1: must be given).
    pub(crate) timeout: Option<u32>,
    /// Whether a paused sandbox comes back with its memory, if that was saved; `false`: it boots from its files, without
    /// the environment that it was created with. A running one has its memory anyway. Default: true.
    pub(crate) memory: Option<bool>,
}

/// How to pause a sandbox.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PauseSandbox {
    /// Whether memory and processes are saved, too, or files alone. Default: true.
    pub(crate) memory: Option<bool>,
    /// Whether a sandbox is refused whose envd does not answer. Not supported yet: only `false`, the default.
    pub(crate) require_healthy_guest: Option<bool>,
}

/// How to bring a paused sandbox back.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ResumeSandbox {
    /// Seconds that it lives, counted from when it answers. Default: 15.
    pub(crate) timeout: Option<u32>,
    /// Whether it is paused instead of killed when the time is up, from now on. Default: as before.
    #[schema(deprecated)]
    pub(crate) auto_pause: Option<bool>,
    /// As for connect.
    pub(crate) memory: Option<bool>,
}
