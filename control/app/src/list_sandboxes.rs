//! Sandboxes of a team, filtered and in pages.

use std::collections::BTreeMap;

use hutch_store::{PageToken, SandboxFilter, SandboxPage, SortOrder};
use hutch_types::Timestamp;

use crate::error::{AppError, ErrorClass};
use crate::template_ref::TemplateRef;
use crate::{App, Caller};

/// Which sandboxes to list.
#[derive(Debug, Clone)]
pub struct ListSandboxes {
    /// Running ones.
    pub running: bool,
    /// Paused ones.
    pub paused: bool,
    /// All pairs must be present.
    pub metadata: BTreeMap<String, String>,
    /// Started at or after.
    pub started_after: Option<Timestamp>,
    /// Of this template: a name or id, without a tag.
    pub template: Option<String>,
    /// By start time.
    pub order: SortOrder,
    /// Where the page before ended.
    pub after: Option<PageToken>,
    /// Rows of a page.
    pub limit: u32,
}

impl App {
    /// One page of the caller's live sandboxes. Ended ones, and those that are not up yet, are not listed.
    ///
    /// # Errors
    /// `Invalid` for a page token of another order or a template with a tag; `Unavailable`. An unknown template
    /// makes an empty page.
    pub async fn list_sandboxes(
        &self,
        caller: &Caller,
        list: ListSandboxes,
    ) -> Result<SandboxPage, AppError> {
        if list.after.as_ref().is_some_and(|after| after.order != list.order) {
            return Err(AppError::invalid("Invalid next token"));
        }
        let template = match &list.template {
            None => None,
            Some(text) => {
                let parsed = TemplateRef::parse(text)?;
                if parsed.tag.is_some() {
                    return Err(AppError::invalid("the template filter takes a name or id without a tag"));
                }
                match self.find_template(caller.team, &parsed).await {
                    Ok(template) => Some(template.id),
                    Err(error) if error.class() == ErrorClass::NotFound => {
                        return Ok(SandboxPage { sandboxes: Vec::new(), next: None, total_running: 0 });
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let filter = SandboxFilter {
            team: caller.team,
            running: list.running,
            paused: list.paused,
            metadata: list.metadata,
            started_after: list.started_after,
            template,
            order: list.order,
            after: list.after,
            limit: list.limit,
        };
        Ok(self.0.store.sandboxes(filter).await?)
    }
}
