//! Bodies on the wire. What clients send tolerates `null` for "not said"; what we send has no `null` where the
//! contract forbids it.

mod create;
mod logs;
mod metrics;
mod sandbox;
mod team;
mod template;

pub(crate) use create::{
    ConnectSandbox, NewSandbox, PauseSandbox, RefreshSandbox, ResumeSandbox, SetTimeout,
};
pub(crate) use logs::{LevelDto, LogEntryDto, SandboxLogs, SandboxLogsV2};
pub(crate) use metrics::{SandboxMetric, SandboxesMetrics};
pub(crate) use sandbox::{ListedSandbox, SandboxDetail, SandboxDto};
pub(crate) use team::TeamDto;
pub(crate) use template::{AliasDto, TagExists, TemplateBuildDto, TemplateDto, TemplateWithBuilds};
