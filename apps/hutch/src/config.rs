//! The configuration: defaults, then the file, then the environment, then the command line. All problems are told at once.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use hutch_app::Limits;
use serde::{Deserialize, Serialize};

use crate::https::{DnsSection, TlsMode, TlsSection};
use toml::{Table, Value};

/// All settings. Each can be given by environment: `HUTCH_` and its path in capitals, `HUTCH_POOL_SIZE` for `pool.size`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Address of the one listener.
    pub listen: String,
    /// Where everything lives.
    pub data_dir: PathBuf,
    /// Domain of sandbox host names (`{port}-{id}.{domain}`), with `:port` when clients reach TLS on another port than it listens on.
    /// Empty: `hutch.test` with TLS or DNS; otherwise clients use the one that they are configured with.
    pub domain: String,
    /// What to log, as tracing's filter directives.
    pub log: String,
    /// Log lines as JSON.
    pub log_json: bool,
    /// The isolation of sandboxes.
    pub isolation: IsolationConfig,
    /// This host's part.
    pub node: NodeSection,
    /// The warm pool.
    pub pool: PoolSection,
    /// Limits of teams and requests.
    pub limits: Limits,
    /// TLS.
    pub tls: TlsSection,
    /// The name server for the domain.
    pub dns: DnsSection,
}

/// What the command line of `hutch serve` sets.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ServeFlags {
    /// Address to listen on [default: 127.0.0.1:3000].
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Serve HTTPS too, by default on port 443: `self` makes a local CA, `files` takes tls.cert and tls.key, `acme`
    /// orders a certificate as tls.acme says.
    #[arg(long, value_name = "MODE")]
    pub tls: Option<TlsMode>,
    /// Answer DNS for the domain and everything below it [default when given without ADDR: 127.0.0.1:53].
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "127.0.0.1:53")]
    pub dns: Option<String>,
}

/// Which isolation sandboxes get.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IsolationConfig {
    /// `auto` takes the strongest that passes its self-test on this host; `container` insists on containers.
    pub default: String,
}

/// This host's part of the settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeSection {
    /// Name of this host.
    pub id: String,
    /// The OCI runtime's command.
    pub runc: PathBuf,
    /// CRIU's command, 4.2 or later, which saves the memory of paused sandboxes; without one that works, only files can be saved. Empty: what the set-up put into the data directory, or `criu` in `PATH`.
    pub criu: PathBuf,
    /// lxcfs's command, which shows sandboxes their own limits in /proc. Empty: they show the host's figures.
    pub lxcfs: PathBuf,
    /// Whether a sandbox runs on as many CPUs as it has, so that programs count right, instead of on all within its quota.
    pub pin_cpus: bool,
    /// Folder with the static `envd` and `init`. Empty: `guest` beside this program.
    pub guest_dir: PathBuf,
    /// Tells the networks of several servers on one host apart: 0 to 55.
    pub network_number: u8,
    /// Name servers for sandboxes, `address:port`. Empty: the host's own.
    pub dns_upstreams: Vec<SocketAddr>,
    /// Disk space in MiB that sandboxes never eat: below it none is started.
    pub disk_reserve_mib: u64,
    /// Most processes and threads of one sandbox.
    pub max_processes: u32,
    /// Instances that boot at the same time.
    pub max_concurrent_boots: u32,
}

/// The warm pool's settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolSection {
    /// Instances of the `base` template kept ready. 0: every create boots one.
    pub size: usize,
    /// Host memory in MiB below which the pool shrinks.
    pub min_free_memory_mib: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:3000".to_owned(),
            data_dir: PathBuf::from(".hutch"),
            domain: String::new(),
            log: "info".to_owned(),
            log_json: false,
            isolation: IsolationConfig::default(),
            node: NodeSection::default(),
            pool: PoolSection::default(),
            limits: Limits::default(),
            tls: TlsSection::default(),
            dns: DnsSection::default(),
        }
    }
}

impl Default for IsolationConfig {
    fn default() -> Self {
        Self { default: "auto".to_owned() }
    }
}

impl Default for NodeSection {
    fn default() -> Self {
        Self {
            id: "local".to_owned(),
            runc: PathBuf::from("runc"),
            criu: PathBuf::new(),
            lxcfs: PathBuf::from("lxcfs"),
            pin_cpus: true,
            guest_dir: PathBuf::new(),
            network_number: 0,
            dns_upstreams: Vec::new(),
            disk_reserve_mib: 2048,
            max_processes: 1024,
            max_concurrent_boots: 4,
        }
    }
}

impl Default for PoolSection {
    fn default() -> Self {
        Self { size: 8, min_free_memory_mib: 1024 }
    }
}

impl Config {
    /// Puts the configuration together.
    ///
    /// # Errors
    /// Everything that is wrong with it, one sentence each.
    pub fn load(
        file: Option<&Path>,
        data_dir: Option<&Path>,
        flags: ServeFlags,
    ) -> Result<Self, Vec<String>> {
        let text = match file {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|e| vec![format!("cannot read the configuration {}: {e}", path.display())])?,
            None => String::new(),
        };
        let mut config = Self::parse(&text, &|name| std::env::var(name).ok())?;
        if let Some(dir) = data_dir {
            config.data_dir = dir.to_owned();
        }
        if let Some(listen) = flags.listen {
            config.listen = listen;
        }
        if let Some(mode) = flags.tls {
            config.tls.mode = mode;
        }
        if let Some(listen) = flags.dns {
            config.dns.listen = listen;
        }
        let problems = config.problems();
        if problems.is_empty() { Ok(config) } else { Err(problems) }
    }

    fn parse(file: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, Vec<String>> {
        let mut table: Table =
            file.parse().map_err(|e| vec![format!("the configuration is not TOML: {e}")])?;
        let defaults = Table::try_from(Self::default()).map_err(|e| vec![e.to_string()])?;
        let mut problems = Vec::new();
        overlay("HUTCH", &defaults, &mut table, env, &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
        table.try_into().map_err(|e| vec![format!("the configuration is not valid: {e}")])
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = self.limits.problems();
        problems.extend(self.https_problems());
        if self.listen.parse::<SocketAddr>().is_err() {
            problems
                .push(format!("listen: {:?} is not an address and port such as 127.0.0.1:3000", self.listen));
        }
        if !matches!(self.isolation.default.as_str(), "auto" | "container") {
            problems.push(format!(
                "isolation.default: {:?} is not supported by this version; use \"auto\" or \"container\"",
                self.isolation.default
            ));
        }
        if self.node.network_number > 55 {
            problems.push("node.network_number must be 0 to 55".to_owned());
        }
        if self.node.max_concurrent_boots == 0 {
            problems.push("node.max_concurrent_boots must not be 0".to_owned());
        }
        if self.node.max_processes < 64 {
            problems.push("node.max_processes must be at least 64: envd and a shell need room".to_owned());
        }
        if self.node.id.parse::<hutch_types::NodeId>().is_err() {
            problems.push(format!("node.id: {:?} is not a name of [a-z0-9-]", self.node.id));
        }
        problems
    }

    /// The configuration in force as a file that would give it.
    ///
    /// # Errors
    /// When a value has no form in TOML, which the types exclude.
    pub fn to_toml(&self) -> anyhow::Result<String> {
        Ok(toml::to_string_pretty(self)?)
    }

    /// The listener's address. Checked when loading.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.listen.parse()?)
    }

    /// The database.
    pub fn database(&self) -> PathBuf {
        self.data_dir.join("hutch.db")
    }

    /// CRIU's command.
    pub fn criu(&self) -> PathBuf {
        let own = self.data_dir.join("tools/criu/criu");
        if !self.node.criu.as_os_str().is_empty() {
            self.node.criu.clone()
        } else if own.exists() {
            own
        } else {
            PathBuf::from("criu")
        }
    }

    /// The folder with the static `envd` and `init`.
    pub fn guest_dir(&self) -> PathBuf {
        if !self.node.guest_dir.as_os_str().is_empty() {
            return self.node.guest_dir.clone();
        }
        std::env::current_exe()
            .ok()
            .and_then(|exe| exe.parent().map(|dir| dir.join("guest")))
            .unwrap_or_else(|| PathBuf::from("guest"))
    }
}

/// Puts the environment's values over the file's. The defaults say which settings there are and of which type.
fn overlay(
    prefix: &str,
    defaults: &Table,
    table: &mut Table,
    env: &dyn Fn(&str) -> Option<String>,
    problems: &mut Vec<String>,
) {
    for (key, default) in defaults {
        let name = format!("{prefix}_{}", key.to_uppercase());
        if let Value::Table(inner) = default {
            let into = table.entry(key.clone()).or_insert_with(|| Value::Table(Table::new()));
            match into {
                Value::Table(into) => overlay(&name, inner, into, env, problems),
                _ => problems.push(format!("{key} must be a section")),
            }
            continue;
        }
        let Some(text) = env(&name) else { continue };
        match typed(&text, default) {
            Some(value) => {
                table.insert(key.clone(), value);
            }
            None => problems.push(format!("{name}: {text:?} is not of the right type")),
        }
    }
}

fn typed(text: &str, like: &Value) -> Option<Value> {
    Some(match like {
        Value::String(_) => Value::String(text.to_owned()),
        Value::Integer(_) => Value::Integer(text.parse().ok()?),
        Value::Float(_) => Value::Float(text.parse().ok()?),
        Value::Boolean(_) => Value::Boolean(match text {
            "1" | "true" | "yes" => true,
            "0" | "false" | "no" | "" => false,
            _ => return None,
        }),
        Value::Array(_) => Value::Array(
            text.split(',')
                .map(str::trim)
                .filter(|t| !t.is_empty())
                .map(|t| Value::String(t.to_owned()))
                .collect(),
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(file: &str, env: &[(&str, &str)]) -> Result<Config, Vec<String>> {
        Config::parse(file, &|name| env.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn nothing_given_is_the_default_and_the_default_is_valid() {
        let config = parse("", &[]).unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(config.problems(), Vec::<String>::new());
    }

    #[test]
    fn the_environment_wins_over_the_file_at_every_depth() {
        let file = "listen = \"0.0.0.0:80\"\n[pool]\nsize = 2\n[limits]\nmax_timeout_seconds = 60";
        let env = [
            ("HUTCH_POOL_SIZE", "5"),
            ("HUTCH_LIMITS_MAX_SANDBOXES_PER_TEAM", "7"),
            ("HUTCH_NODE_DNS_UPSTREAMS", "127.0.0.1:53, 9.9.9.9:53"),
            ("HUTCH_LOG_JSON", "1"),
            ("HUTCH_TLS_MODE", "self"),
            ("HUTCH_TLS_ACME_RFC2136_ZONE", "example.com"),
            ("HUTCH_DNS_FORWARD", "127.0.0.1:5353"),
        ];
        let config = parse(file, &env).unwrap();
        assert_eq!(config.listen, "0.0.0.0:80");
        assert_eq!(config.pool.size, 5);
        assert_eq!(config.limits.max_sandboxes_per_team, 7);
        assert_eq!(config.limits.max_timeout_seconds, 60);
        assert_eq!(config.node.dns_upstreams.len(), 2);
        assert!(config.log_json);
        assert_eq!(config.tls.mode, TlsMode::Local);
        assert_eq!(config.tls.acme.rfc2136.zone, "example.com");
        assert_eq!(config.dns.forward.len(), 1);
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(parse("lissten = 1", &[]).unwrap_err()[0].contains("lissten"));
        let two = parse("", &[("HUTCH_POOL_SIZE", "many"), ("HUTCH_LOG_JSON", "maybe")]).unwrap_err();
        assert_eq!(two.len(), 2, "{two:?}");
        let mut config = Config { listen: "3000".into(), ..Config::default() };
        config.isolation.default = "microvm".into();
        assert_eq!(config.problems().len(), 2);
    }

    #[test]
    fn the_shown_configuration_can_be_read_back() {
        let config = Config { domain: "hutch.test".into(), ..Config::default() };
        assert_eq!(parse(&config.to_toml().unwrap(), &[]).unwrap(), config);
    }
}
