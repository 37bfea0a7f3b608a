//! What an instance of envd is started with.

use std::path::PathBuf;

use hutch_types::Secret;

/// The port SDKs expect envd on.
pub const DEFAULT_PORT: u16 = 49983;

/// Who the users of a sandbox are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Users {
    /// Those of `/etc/passwd` and `/etc/group`. Processes and files change to the requested one.
    System,
    /// The common names (`root`, `user`, the default user, the name envd runs under) all mean the user that envd
    /// runs as, with this home directory. For envd outside a sandbox.
    Everyone {
        /// The home directory of all.
        home: PathBuf,
    },
}

/// Settings that do not change while envd runs.
#[derive(Debug, Clone)]
pub struct Config {
    /// What the host must send as `x-hutch-secret` on internal routes. `None` refuses all of them.
    pub secret: Option<Secret>,
    /// The user for requests that name none, until `/init` says otherwise.
    pub default_user: String,
    /// The directory that processes start in when none is asked for; `None` means the user's home.
    pub default_workdir: Option<PathBuf>,
    /// How user names are understood.
    pub users: Users,
    /// Where `/init` writes `etc/hostname`, `etc/hosts`, `etc/machine-id` and `run/e2b`, and where settings are kept; `None` writes nothing and
    /// does not set the host name. `/` in a sandbox.
    pub system_root: Option<PathBuf>,
    /// `PATH` of processes, unless variables say otherwise.
    pub search_path: String,
    /// Whether another envd of this sandbox ran before: its settings are taken over.
    pub is_restart: bool,
    /// Soft limit of open files that processes get; `None` leaves what envd has.
    pub child_open_files: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            secret: None,
            default_user: "user".to_owned(),
            default_workdir: None,
            users: Users::System,
            system_root: None,
            search_path: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
            is_restart: false,
            child_open_files: None,
        }
    }
}
