//! Templates as clients see them: found by reference, listed, with their builds.

use hutch_store::{StoreError, Team, Template, TemplateBuild};
use hutch_types::TeamId;

use crate::error::AppError;
use crate::template_ref::TemplateRef;
use crate::{App, Caller};

/// A template with what an answer about it needs.
#[derive(Debug, Clone)]
pub struct TemplateView {
    /// The template.
    pub template: Template,
    /// The slug of the team that owns it.
    pub namespace: String,
    /// The build that its figures come from: the newest ready one, else the newest.
    pub build: Option<TemplateBuild>,
    /// Whether the caller's team owns it.
    pub is_own: bool,
}

impl App {
    /// Finds the template and build that a reference means for a team.
    pub(crate) async fn resolve_template(
        &self,
        team: TeamId,
        reference: &str,
    ) -> Result<(Template, TemplateBuild), AppError> {
        let parsed = TemplateRef::parse(reference)?;
        let template = self.find_template(team, &parsed).await?;
        let tag = parsed.tag_or_default();
        match self.0.store.build_by_tag(&template.id, tag).await {
            Ok(build) => Ok((template, build)),
            Err(StoreError::NotFound { .. }) => Err(AppError::not_found(format!(
                "tag '{tag}' does not exist for template '{}'",
                parsed.without_tag()
            ))),
            Err(error) => Err(error.into()),
        }
    }

    /// Finds a template without looking at its builds.
    pub(crate) async fn find_template(
        &self,
        team: TeamId,
        wanted: &TemplateRef,
    ) -> Result<Template, AppError> {
        let name = wanted.without_tag();
        match self.0.store.find_template(team, &name).await {
            Ok(template) => Ok(template),
            Err(StoreError::NotFound { .. }) => {
                Err(AppError::not_found(format!("template '{name}' not found")))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Templates that the caller may use, newest first.
    ///
    /// # Errors
    /// `Unavailable` when the store is.
    pub async fn list_templates(&self, caller: &Caller) -> Result<Vec<Template>, AppError> {
        Ok(self.0.store.templates(caller.team).await?)
    }

    /// Adds to templates what answers about them need.
    ///
    /// # Errors
    /// `Unavailable` when the store is.
    pub async fn view_templates(
        &self,
        caller: &Caller,
        templates: Vec<Template>,
    ) -> Result<Vec<TemplateView>, AppError> {
        let mut views = Vec::with_capacity(templates.len());
        let mut teams: Vec<Team> = Vec::new();
        for template in templates {
            let namespace = match teams.iter().find(|t| t.id == template.team) {
                Some(team) => team.slug.clone(),
                None => {
                    let team = self.0.store.team(template.team).await?;
                    let slug = team.slug.clone();
                    teams.push(team);
                    slug
                }
            };
            let builds = self.0.store.builds(&template.id).await?;
            let build = builds.iter().find(|b| b.status == "ready").or(builds.first()).cloned();
            views.push(TemplateView { is_own: template.team == caller.team, template, namespace, build });
        }
        Ok(views)
    }

    /// One template with its builds, newest first.
    ///
    /// # Errors
    /// `Invalid` for an impossible reference, `NotFound`, `Unavailable`.
    pub async fn get_template(
        &self,
        caller: &Caller,
        reference: &str,
    ) -> Result<(TemplateView, Vec<TemplateBuild>), AppError> {
        let template = self.find_template(caller.team, &TemplateRef::parse(reference)?).await?;
        let builds = self.0.store.builds(&template.id).await?;
        let view = self.view_templates(caller, vec![template]).await?.pop();
        let view = view.ok_or_else(|| AppError::internal("a template vanished while it was shown"))?;
        Ok((view, builds))
    }

    /// The template behind a name, which may carry a tag; a tag that no ready build carries is not found.
    ///
    /// # Errors
    /// `Invalid` for an impossible name, `NotFound`, `Unavailable`.
    pub async fn get_template_by_alias(&self, caller: &Caller, alias: &str) -> Result<Template, AppError> {
        let parsed = TemplateRef::parse(alias)?;
        if parsed.tag.is_some() {
            return Ok(self.resolve_template(caller.team, alias).await?.0);
        }
        self.find_template(caller.team, &parsed).await
    }

    /// The ready build that a tag of a template points to; `None` when there is none. The tag comes back in its
    /// normal form.
    ///
    /// # Errors
    /// `Invalid` for an impossible tag, `NotFound` for the template, `Unavailable`.
    pub async fn template_tag(
        &self,
        caller: &Caller,
        reference: &str,
        tag: &str,
    ) -> Result<(String, Option<TemplateBuild>), AppError> {
        let template = self.find_template(caller.team, &TemplateRef::parse(reference)?).await?;
        let tag = TemplateRef::parse(&format!("{}:{}", template.id, tag.trim()))?.tag_or_default().to_owned();
        match self.0.store.build_by_tag(&template.id, &tag).await {
            Ok(build) => Ok((tag, Some(build))),
            Err(StoreError::NotFound { .. }) => Ok((tag, None)),
            Err(error) => Err(error.into()),
        }
    }
}
