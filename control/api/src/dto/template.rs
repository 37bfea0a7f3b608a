//! A template in answers.

use hutch_app::{Template, TemplateBuild, TemplateView};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

/// Where a build is.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = TemplateBuildStatus)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BuildStatus {
    Waiting,
    Building,
    Ready,
    Error,
}

impl BuildStatus {
    fn of(build: &TemplateBuild) -> Self {
        match build.status.as_str() {
            "ready" => Self::Ready,
            "building" => Self::Building,
            "waiting" => Self::Waiting,
            _ => Self::Error,
        }
    }
}

/// Who made a template.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TeamUser {
    id: Uuid,
    email: String,
}

/// A template. Its figures are those of its newest ready build.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Template)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TemplateDto {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: Uuid,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u32,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u32,
    public: bool,
    /// Names without the team's namespace.
    #[schema(deprecated)]
    aliases: Vec<String>,
    /// Names with the team's namespace.
    names: Vec<String>,
    /// RFC 3339.
    created_at: String,
    /// RFC 3339.
    updated_at: String,
    created_by: Option<TeamUser>,
    /// RFC 3339.
    last_spawned_at: Option<String>,
    spawn_count: u64,
    build_count: u64,
    envd_version: String,
    build_status: BuildStatus,
    /// Whether it is there for every team.
    is_default: bool,
}

impl From<&TemplateView> for TemplateDto {
    fn from(view: &TemplateView) -> Self {
        let template = &view.template;
        let build = view.build.as_ref();
        // How much others use a template is theirs to know.
        let own = |n: u64| if view.is_own { n } else { 0 };
        Self {
            template_id: template.id.to_string(),
            build_id: build.map_or(Uuid::nil(), |b| b.id.0),
            cpu_count: build.map_or(0, |b| b.resources.vcpus),
            memory_mb: build.map_or(0, |b| b.resources.memory_mib),
            disk_size_mb: build.map_or(0, |b| b.resources.disk_mib),
            public: template.public,
            aliases: template.names.clone(),
            names: template.names.iter().map(|name| format!("{}/{name}", view.namespace)).collect(),
            created_at: template.created_at.to_rfc3339(),
            updated_at: template.updated_at.to_rfc3339(),
            created_by: None,
            last_spawned_at: template.last_spawned_at.filter(|_| view.is_own).map(|t| t.to_rfc3339()),
            spawn_count: own(template.spawn_count),
            build_count: own(template.build_count),
            envd_version: build.map_or_else(String::new, |b| b.envd_version.clone()),
            build_status: build.map_or(BuildStatus::Waiting, BuildStatus::of),
            is_default: template.public,
        }
    }
}

/// One build of a template.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TemplateBuild)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TemplateBuildDto {
    #[serde(rename = "buildID")]
    build_id: Uuid,
    status: BuildStatus,
    /// RFC 3339.
    created_at: String,
    /// RFC 3339.
    updated_at: String,
    /// RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<String>,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u32,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u32,
    envd_version: String,
}

impl From<&TemplateBuild> for TemplateBuildDto {
    fn from(build: &TemplateBuild) -> Self {
        Self {
            build_id: build.id.0,
            status: BuildStatus::of(build),
            created_at: build.created_at.to_rfc3339(),
            updated_at: build.updated_at.to_rfc3339(),
            finished_at: build.finished_at.map(|t| t.to_rfc3339()),
            cpu_count: build.resources.vcpus,
            memory_mb: build.resources.memory_mib,
            disk_size_mb: build.resources.disk_mib,
            envd_version: build.envd_version.clone(),
        }
    }
}

/// A template with its builds, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TemplateWithBuilds {
    #[serde(flatten)]
    pub(crate) template: TemplateDto,
    pub(crate) builds: Vec<TemplateBuildDto>,
}

/// What a name stands for.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TemplateAliasResponse)]
pub(crate) struct AliasDto {
    #[serde(rename = "templateID")]
    template_id: String,
    public: bool,
}

impl From<&Template> for AliasDto {
    fn from(template: &Template) -> Self {
        Self { template_id: template.id.to_string(), public: template.public }
    }
}

/// Whether a template has a tag with a ready build.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TagExists {
    pub(crate) exists: bool,
    pub(crate) normalized_tag: String,
}
