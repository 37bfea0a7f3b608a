//! What the parts of one envd share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use hutch_types::Secret;
use hutch_types::supervise::Supervisor;
use parking_lot::RwLock;
use serde_json::json;

use crate::config::Config;
use crate::logs::{Level, Logs};
use crate::metrics::CpuMeter;
use crate::process::Registry;
use crate::settings::Settings;
pub use crate::settings::{Limits, Update};
use crate::users::{self, User, UserError};

/// Everything that one instance of envd knows. Cheap to share behind an [`Arc`]; methods lock briefly.
#[derive(Debug)]
pub struct State {
    /// How this instance was started.
    pub config: Config,
    /// What happened, for the host.
    pub logs: Logs,
    /// The processes that were started, and those that ended lately.
    pub processes: Registry,
    /// Measures the CPU between two looks at the metrics.
    pub(crate) cpu: CpuMeter,
    /// Runs background work; its shutdown ends everything that this instance started.
    pub tasks: Supervisor,
    settings: RwLock<Settings>,
}

impl State {
    /// A fresh instance: open, without variables.
    pub fn new(config: Config) -> Arc<Self> {
        let settings = Settings::at_start(&config);
        Arc::new(Self {
            config,
            logs: Logs::default(),
            processes: Registry::default(),
            cpu: CpuMeter::default(),
            tasks: Supervisor::new(),
            settings: RwLock::new(settings),
        })
    }

    /// Applies what `/init` brought, unless it is older than what was applied before, and keeps it for an envd that
    /// may have to take over. Returns whether it was applied. Writes a small file.
    pub fn update(&self, update: Update) -> bool {
        let mut settings = self.settings.write();
        let applied = settings.apply(update);
        if applied && let Err(error) = settings.save(&self.config) {
            let fields = json!({ "error": error.to_string() });
            self.logs.add(Level::Warn, "envd", "settings would not survive a restart", fields);
        }
        applied
    }

    /// The token that clients must send; `None` when the sandbox is open.
    pub fn access_token(&self) -> Option<Secret> {
        self.settings.read().access_token.clone()
    }

    /// The name of the user for requests without one.
    pub fn default_user(&self) -> String {
        self.settings.read().default_user.clone()
    }

    /// The directory for processes and paths without one; `None` means the user's home.
    pub fn default_workdir(&self) -> Option<PathBuf> {
        self.settings.read().default_workdir.clone()
    }

    /// The variables that every process gets: the system's, then the user's.
    pub fn env_vars(&self) -> BTreeMap<String, String> {
        let s = self.settings.read();
        s.system_vars.iter().chain(&s.user_vars).map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    /// The sizes that the host has told.
    pub fn limits(&self) -> Limits {
        self.settings.read().limits
    }

    /// The user called `name`, or the default user when there is no name. Reads `/etc/passwd`.
    ///
    /// # Errors
    /// [`UserError::Unknown`] when there is no such user.
    pub fn user(&self, name: Option<&str>) -> Result<User, UserError> {
        let default = self.default_user();
        let name = name.unwrap_or(&default);
        users::lookup(&self.config.users, &default, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn the_variables_of_a_former_life_are_gone_and_those_of_the_system_stay() {
        let state = State::new(Config::default());
        state.update(Update {
            user_vars: Some(vars(&[("A", "1"), ("B", "2")])),
            system_vars: vars(&[("E2B_SANDBOX_ID", "one")]),
            ..Update::default()
        });
        state.update(Update { user_vars: Some(vars(&[("B", "3")])), ..Update::default() });
        assert_eq!(state.env_vars(), vars(&[("B", "3"), ("E2B_SANDBOX", "true"), ("E2B_SANDBOX_ID", "one")]));
        state.update(Update::default());
        assert_eq!(
            state.env_vars().get("B").map(String::as_str),
            Some("3"),
            "absent leaves them as they are"
        );
    }

    #[test]
    fn a_missing_token_opens_the_sandbox_and_empty_settings_are_kept() {
        let state = State::new(Config::default());
        let token = Some(Secret::new("t"));
        state.update(Update {
            access_token: token.clone(),
            default_user: Some("root".into()),
            ..Update::default()
        });
        assert_eq!(state.access_token(), token);
        state.update(Update::default());
        assert_eq!((state.access_token(), state.default_user()), (None, "root".to_owned()));
    }
}
