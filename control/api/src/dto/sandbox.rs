//! A sandbox in answers.

use std::collections::BTreeMap;

use hutch_app::{App, Sandbox};
use hutch_types::{PauseMode, SandboxState};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// Older clients want one; it means nothing.
const CLIENT_ID: &str = "hutch";

/// What a client needs to talk to a sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Sandbox)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxDto {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    /// A constant.
    #[schema(deprecated)]
    #[serde(rename = "clientID")]
    client_id: &'static str,
    /// The template's main name.
    #[serde(skip_serializing_if = "Option::is_none")]
    alias: Option<String>,
    envd_version: String,
    /// What envd wants as `X-Access-Token`.
    envd_access_token: String,
    /// What requests to its ports must bring as `e2b-traffic-access-token`, where `network.allowPublicTraffic` is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic_access_token: Option<String>,
    /// The domain of the sandbox's host names; `null`: the one that the client is configured with.
    domain: Option<String>,
}

impl SandboxDto {
    pub(crate) fn new(app: &App, sandbox: &Sandbox) -> Self {
        Self {
            template_id: sandbox.asked.template.to_string(),
            sandbox_id: sandbox.asked.id.to_string(),
            client_id: CLIENT_ID,
            alias: sandbox.asked.alias.clone(),
            envd_version: sandbox.envd_version.clone(),
            envd_access_token: sandbox.asked.access_token.expose().to_owned(),
            traffic_access_token: traffic_token(sandbox),
            domain: app.domain().map(str::to_owned),
        }
    }
}

fn traffic_token(sandbox: &Sandbox) -> Option<String> {
    sandbox.asked.traffic_token.as_ref().map(|token| token.expose().to_owned())
}

/// What clients see of a sandbox's state.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = SandboxState)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StateDto {
    Running,
    Paused,
}

/// A sandbox in a list.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListedSandbox {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    /// A constant.
    #[schema(deprecated)]
    #[serde(rename = "clientID")]
    client_id: &'static str,
    /// The template's main name.
    #[serde(skip_serializing_if = "Option::is_none")]
    alias: Option<String>,
    /// RFC 3339.
    started_at: String,
    /// RFC 3339. When its lease is over unless that is prolonged; of a paused one, when it was paused.
    end_at: String,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u32,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u32,
    metadata: BTreeMap<String, String>,
    state: StateDto,
    envd_version: String,
    volume_mounts: Vec<VolumeMountDto>,
}

impl From<&Sandbox> for ListedSandbox {
    fn from(sandbox: &Sandbox) -> Self {
        Self {
            template_id: sandbox.asked.template.to_string(),
            sandbox_id: sandbox.asked.id.to_string(),
            client_id: CLIENT_ID,
            alias: sandbox.asked.alias.clone(),
            started_at: sandbox.started_at.to_rfc3339(),
            end_at: sandbox.paused.map_or(sandbox.end_at, |(_, since)| since).to_rfc3339(),
            cpu_count: sandbox.asked.resources.vcpus,
            memory_mb: sandbox.asked.resources.memory_mib,
            disk_size_mb: sandbox.asked.resources.disk_mib,
            metadata: sandbox.asked.metadata.clone(),
            state: match sandbox.state {
                SandboxState::Pausing | SandboxState::Paused | SandboxState::Resuming => StateDto::Paused,
                SandboxState::Creating
                | SandboxState::Running
                | SandboxState::Snapshotting
                | SandboxState::Killing
                | SandboxState::Gone
                | SandboxState::Failed => StateDto::Running,
            },
            envd_version: sandbox.envd_version.clone(),
            volume_mounts: Vec::new(),
        }
    }
}

/// A volume and where it is mounted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxVolumeMount)]
pub(crate) struct VolumeMountDto {
    name: String,
    path: String,
}

/// Everything about a sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxDetail {
    #[serde(flatten)]
    listed: ListedSandbox,
    /// What envd wants as `X-Access-Token`.
    envd_access_token: String,
    /// What requests to its ports must bring as `e2b-traffic-access-token`, where `network.allowPublicTraffic` is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic_access_token: Option<String>,
    /// As asked for; `null`: not said, which means yes.
    allow_internet_access: Option<bool>,
    /// The domain of the sandbox's host names; `null`: the one that the client is configured with.
    domain: Option<String>,
    /// As asked for.
    #[schema(value_type = Option<Object>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Value>,
    lifecycle: Lifecycle,
    /// What is saved of a paused one; absent while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pause_mode: Option<PauseModeDto>,
}

/// What is saved of a paused sandbox: everything, or its files alone.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = SandboxPauseMode)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PauseModeDto {
    Full,
    Filesystem,
}

impl From<PauseMode> for PauseModeDto {
    fn from(mode: PauseMode) -> Self {
        match mode {
            PauseMode::Full => Self::Full,
            PauseMode::Filesystem => Self::Filesystem,
        }
    }
}

/// What happens when the time is up.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxLifecycle)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Lifecycle {
    on_timeout: OnTimeout,
    auto_resume: bool,
}

/// What happens when the time is up.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnTimeout {
    Kill,
    Pause,
}

impl SandboxDetail {
    pub(crate) fn new(app: &App, sandbox: &Sandbox) -> Self {
        Self {
            listed: sandbox.into(),
            envd_access_token: sandbox.asked.access_token.expose().to_owned(),
            traffic_access_token: traffic_token(sandbox),
            allow_internet_access: sandbox.asked.allow_internet_access,
            domain: app.domain().map(str::to_owned),
            network: sandbox.asked.extra.get("network").filter(|n| n.is_object()).cloned(),
            lifecycle: Lifecycle {
                on_timeout: match sandbox.asked.auto_pause {
                    None => OnTimeout::Kill,
                    Some(PauseMode::Full | PauseMode::Filesystem) => OnTimeout::Pause,
                },
                auto_resume: false,
            },
            pause_mode: sandbox.paused.map(|(mode, _)| mode.into()),
        }
    }
}
