//! What `/init` sets, and how it survives the death of one envd.
//!
//! The settings are kept in a file that only root can read, so that an envd which has to be started again goes on as
//! the same sandbox: with its token above all. An envd that was started again but finds no settings is locked until
//! the host initialises it; it never becomes open by accident.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hutch_types::{Secret, Timestamp};
use serde::{Deserialize, Serialize};

use crate::config::Config;

/// Below the system root.
const FILE: &str = "run/hutch/envd.json";

/// The settings in force.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) access_token: Option<Secret>,
    pub(crate) default_user: String,
    pub(crate) default_workdir: Option<PathBuf>,
    /// Variables that the host sets for every process; they outlive a replacement of the user's.
    pub(crate) system_vars: BTreeMap<String, String>,
    /// Variables given when the sandbox was created.
    pub(crate) user_vars: BTreeMap<String, String>,
    pub(crate) limits: Limits,
    /// When the host made the newest update that was applied.
    pub(crate) updated_at: Option<Timestamp>,
}

/// Sizes that the host knows better than the files inside the sandbox do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of the sandbox.
    pub memory_bytes: Option<u64>,
    /// Virtual CPUs of the sandbox.
    pub cpu_count: Option<u32>,
    /// Size of the writable disk.
    pub disk_bytes: Option<u64>,
}

/// A change of what `/init` sets; `None` leaves a setting alone unless its doc says otherwise.
#[derive(Debug, Default)]
pub struct Update {
    /// The token that clients must send. `None` makes the sandbox open.
    pub access_token: Option<Secret>,
    /// The user for requests without one.
    pub default_user: Option<String>,
    /// The directory for requests without one.
    pub default_workdir: Option<PathBuf>,
    /// Replaces all variables of the user.
    pub user_vars: Option<BTreeMap<String, String>>,
    /// Adds to the variables of the system.
    pub system_vars: BTreeMap<String, String>,
    /// Known sizes.
    pub limits: Limits,
    /// When the host made this update; one that is older than the last one applied is stale.
    pub made_at: Option<Timestamp>,
}

impl Settings {
    /// Those of an envd that starts: fresh ones at the first start of a sandbox, the former ones at a restart.
    pub(crate) fn at_start(config: &Config) -> Self {
        let Some(root) = &config.system_root else { return Self::fresh(config) };
        let file = root.join(FILE);
        if !config.is_restart {
            // Of another sandbox, whose disk this one was made from. There usually is none.
            std::fs::remove_file(&file).ok();
            return Self::fresh(config);
        }
        let read = std::fs::read(&file).ok();
        let former = read.and_then(|json| serde_json::from_slice(&json).ok());
        former.unwrap_or_else(|| Self { access_token: Some(Secret::random(32)), ..Self::fresh(config) })
    }

    fn fresh(config: &Config) -> Self {
        Self {
            access_token: None,
            default_user: config.default_user.clone(),
            default_workdir: config.default_workdir.clone(),
            system_vars: BTreeMap::from([("E2B_SANDBOX".to_owned(), "true".to_owned())]),
            user_vars: BTreeMap::new(),
            limits: Limits::default(),
            updated_at: None,
        }
    }

    /// Applies a change, unless it is older than what was applied before. Returns whether it was applied.
    pub(crate) fn apply(&mut self, update: Update) -> bool {
        if update.made_at.is_some_and(|at| self.updated_at.is_some_and(|last| at < last)) {
            return false;
        }
        self.updated_at = update.made_at.or(self.updated_at);
        self.access_token = update.access_token;
        if let Some(user) = update.default_user {
            self.default_user = user;
        }
        if let Some(dir) = update.default_workdir {
            self.default_workdir = Some(dir);
        }
        if let Some(vars) = update.user_vars {
            self.user_vars = vars;
        }
        self.system_vars.extend(update.system_vars);
        let Limits { memory_bytes, cpu_count, disk_bytes } = update.limits;
        self.limits.memory_bytes = memory_bytes.or(self.limits.memory_bytes);
        self.limits.cpu_count = cpu_count.or(self.limits.cpu_count);
        self.limits.disk_bytes = disk_bytes.or(self.limits.disk_bytes);
        true
    }

    /// Keeps the settings for a next envd. When that fails it will find none rather than old ones.
    pub(crate) fn save(&self, config: &Config) -> io::Result<()> {
        let Some(root) = &config.system_root else { return Ok(()) };
        let file = root.join(FILE);
        let saved = self.write(&file);
        if saved.is_err() {
            std::fs::remove_file(&file).ok();
        }
        saved
    }

    fn write(&self, file: &Path) -> io::Result<()> {
        if let Some(folder) = file.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        }
        let new = file.with_extension("new");
        let mut out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        out.write_all(&serde_json::to_vec(self)?)?;
        std::fs::rename(&new, file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn config(root: &Path, is_restart: bool) -> Config {
        Config { system_root: Some(root.to_owned()), is_restart, ..Config::default() }
    }

    fn secured() -> Update {
        Update {
            access_token: Some(Secret::new("token")),
            user_vars: Some(BTreeMap::from([("A".to_owned(), "1".to_owned())])),
            made_at: Some(Timestamp(20)),
            ..Update::default()
        }
    }

    #[test]
    fn a_restarted_envd_is_the_same_sandbox() {
        let root = tempfile::tempdir().unwrap();
        let first = config(root.path(), false);
        let mut settings = Settings::at_start(&first);
        assert_eq!(settings.access_token, None);
        assert!(settings.apply(secured()));
        settings.save(&first).unwrap();
        let mode = std::fs::metadata(root.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let mut again = Settings::at_start(&config(root.path(), true));
        assert_eq!(again.access_token, Some(Secret::new("token")));
        assert_eq!(again.user_vars.get("A").map(String::as_str), Some("1"));
        assert!(!again.apply(Update { made_at: Some(Timestamp(10)), ..Update::default() }), "stale");

        let other = Settings::at_start(&config(root.path(), false));
        assert_eq!(
            (other.access_token, other.user_vars.len()),
            (None, 0),
            "a fresh sandbox inherits nothing"
        );
        assert!(!root.path().join(FILE).exists());
    }

    #[test]
    fn a_restarted_envd_without_settings_is_locked() {
        let root = tempfile::tempdir().unwrap();
        assert!(Settings::at_start(&config(root.path(), true)).access_token.is_some());
        std::fs::create_dir_all(root.path().join("run/hutch")).unwrap();
        std::fs::write(root.path().join(FILE), "{").unwrap();
        assert!(Settings::at_start(&config(root.path(), true)).access_token.is_some());
    }

    #[test]
    fn settings_that_cannot_be_kept_are_not_taken_for_old_ones() {
        let root = tempfile::tempdir().unwrap();
        let config = config(root.path(), false);
        let mut settings = Settings::at_start(&config);
        settings.save(&config).unwrap();
        settings.apply(secured());
        // A folder in the way of the new file.
        std::fs::create_dir(root.path().join(FILE).with_extension("new")).unwrap();
        assert!(settings.save(&config).is_err());
        assert!(!root.path().join(FILE).exists());
    }
}
