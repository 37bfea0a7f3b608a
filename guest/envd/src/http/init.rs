//! `POST /init` (internal): the host tells a sandbox who it is.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::State as Shared;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use hutch_types::{Secret, Timestamp};
use serde::Deserialize;
use serde_json::json;

use super::health::VERSION_HEADER;
use crate::error::HttpError;
use crate::logs::Level;
use crate::state::{Limits, State, Update};
use crate::trust::Authorities;
use crate::{ENVD_VERSION, auth};

/// The body of `POST /init`. Everything is optional; what this envd does not know is ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Init {
    env_vars: Option<BTreeMap<String, String>>,
    access_token: Option<Secret>,
    timestamp: Option<String>,
    default_user: Option<String>,
    default_workdir: Option<String>,
    hostname: Option<String>,
    sandbox_id: Option<String>,
    template_id: Option<String>,
    build_id: Option<String>,
    /// Where the host answers what sandboxes ask of it, on port 80.
    #[serde(rename = "hyperloopIP")]
    hyperloop_ip: Option<IpAddr>,
    /// Certificates in PEM that programs are to trust, too.
    ca_bundle: Option<String>,
    machine_id: Option<String>,
    memory_total_bytes: Option<u64>,
    cpu_count: Option<u32>,
    disk_total_bytes: Option<u64>,
}

/// The name by which sandboxes know the host.
const HOST_NAME: &str = "events.e2b.local";

/// Applies the body. Safe to repeat; an older `timestamp` than the newest one seen changes nothing.
pub(crate) async fn init(
    Shared(state): Shared<Arc<State>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, HttpError> {
    auth::require_host(&state, &headers)?;
    let init: Init = if body.is_empty() {
        Init::default()
    } else {
        serde_json::from_slice(&body).map_err(|e| HttpError::bad_request(format!("invalid body: {e}")))?
    };
    let files = identity_files(&init)?;
    let update = update(&init)?;
    let authorities = init.ca_bundle.as_deref().filter(|pem| !pem.is_empty()).map(Authorities::parse);
    let authorities = authorities.transpose().map_err(|e| HttpError::bad_request(e.to_string()))?;
    let written = tokio::task::spawn_blocking({
        let state = state.clone();
        move || {
            let applied = state.update(update);
            if let (true, Some(root)) = (applied, &state.config.system_root) {
                write_all(root, &files)?;
                if let Some(authorities) = authorities {
                    let installed = authorities.install(root);
                    installed.map_err(|e| HttpError::internal(format!("installing the caBundle: {e}")))?;
                }
            }
            Ok::<bool, HttpError>(applied)
        }
    });
    let applied = written.await.map_err(|_| HttpError::internal("applying the settings failed"))??;
    let fields = json!({ "sandbox_id": init.sandbox_id, "applied": applied });
    state.logs.add(Level::Info, "envd", "initialised", fields);

    let headers = [
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (VERSION_HEADER, HeaderValue::from_static(ENVD_VERSION)),
    ];
    Ok((StatusCode::NO_CONTENT, headers).into_response())
}

fn update(init: &Init) -> Result<Update, HttpError> {
    let non_empty = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
    let made_at = init.timestamp.as_deref().map(Timestamp::parse_rfc3339).transpose();
    let events = init.hyperloop_ip.map(|ip| match ip {
        IpAddr::V4(ip) => format!("http://{ip}"),
        IpAddr::V6(ip) => format!("http://[{ip}]"),
    });
    let named = [
        ("E2B_SANDBOX_ID", &init.sandbox_id),
        ("E2B_TEMPLATE_ID", &init.template_id),
        ("E2B_EVENTS_ADDRESS", &events),
    ];
    Ok(Update {
        access_token: init.access_token.clone().filter(|t| !t.expose().is_empty()),
        default_user: non_empty(&init.default_user),
        default_workdir: non_empty(&init.default_workdir).map(PathBuf::from),
        user_vars: init.env_vars.clone(),
        system_vars: named.into_iter().filter_map(|(k, v)| Some((k.to_owned(), v.clone()?))).collect(),
        limits: Limits {
            memory_bytes: init.memory_total_bytes,
            cpu_count: init.cpu_count,
            disk_bytes: init.disk_total_bytes,
        },
        made_at: made_at.map_err(|e| HttpError::bad_request(format!("invalid timestamp: {e}")))?,
    })
}

/// What is to be written where, relative to the root. Values are checked, since they end up in files that others parse.
fn identity_files(init: &Init) -> Result<Vec<(&'static str, Content)>, HttpError> {
    let mut files = Vec::new();
    if let Some(name) = &init.hostname {
        let valid = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
        if name.is_empty() || name.len() > 64 || !name.bytes().all(valid) {
            return Err(HttpError::bad_request("invalid hostname"));
        }
        files.push(("etc/hostname", Content::Text(format!("{name}\n"))));
    }
    if init.hostname.is_some() || init.hyperloop_ip.is_some() {
        let hosts = Hosts { own: init.hostname.clone(), host: init.hyperloop_ip };
        files.push(("etc/hosts", Content::Hosts(hosts)));
    }
    if let Some(id) = &init.machine_id {
        if id.len() != 32 || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(HttpError::bad_request("invalid machineId: 32 hexadecimal digits are expected"));
        }
        files.push(("etc/machine-id", Content::Text(format!("{id}\n"))));
    }
    files.push(("run/e2b/.E2B_SANDBOX", Content::Text("true".to_owned())));
    for (path, value) in
        [("run/e2b/.E2B_SANDBOX_ID", &init.sandbox_id), ("run/e2b/.E2B_TEMPLATE_ID", &init.template_id)]
    {
        if let Some(value) = value {
            if value.contains(|c: char| c.is_control()) {
                return Err(HttpError::bad_request("an id contains control characters"));
            }
            files.push((path, Content::Text(value.clone())));
        }
    }
    if let (Some(template), Some(build)) = (&init.template_id, &init.build_id) {
        if build.contains(|c: char| c.is_control()) {
            return Err(HttpError::bad_request("an id contains control characters"));
        }
        let text = format!("ENV_ID={template}\nTEMPLATE_ID={template}\nBUILD_ID={build}\n");
        files.push((".e2b", Content::Text(text)));
    }
    Ok(files)
}

#[derive(Debug)]
enum Content {
    /// The whole file.
    Text(String),
    /// The hosts file, changed to know these names.
    Hosts(Hosts),
}

/// Names for `/etc/hosts`; one that is not given stays as it is.
#[derive(Debug, Default)]
struct Hosts {
    /// The sandbox's own name.
    own: Option<String>,
    /// The address of [`HOST_NAME`].
    host: Option<IpAddr>,
}

/// In place, not by rename: `/etc/hosts` and its like may be mounts of their own.
fn write_all(root: &Path, files: &[(&'static str, Content)]) -> Result<(), HttpError> {
    for (path, content) in files {
        let target = root.join(path);
        let text = match content {
            Content::Text(text) => text.clone(),
            Content::Hosts(names) => names.added_to(&std::fs::read_to_string(&target).unwrap_or_default()),
        };
        let written = match target.parent() {
            Some(folder) => std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&target, text)),
            None => std::fs::write(&target, text),
        };
        written.map_err(|e| HttpError::internal(format!("writing /{path}: {e}")))?;
    }
    Ok(())
}

impl Hosts {
    /// `old` with the own name for 127.0.1.1 instead of whatever had that address, with [`HOST_NAME`] for the host's address
    /// alone, and with localhost.
    fn added_to(&self, old: &str) -> String {
        let address = |line: &str| line.split_whitespace().next().map(str::to_owned);
        let names_host = |line: &str| {
            let entry = line.split('#').next().unwrap_or_default();
            entry.split_whitespace().skip(1).any(|name| name == HOST_NAME)
        };
        let is_kept = |line: &&str| {
            (self.own.is_none() || address(line).as_deref() != Some("127.0.1.1"))
                && (self.host.is_none() || !names_host(line))
        };
        let mut lines: Vec<String> = old.lines().filter(is_kept).map(str::to_owned).collect();
        let missing = |wanted: &str| !old.lines().any(|line| address(line).as_deref() == Some(wanted));
        if missing("::1") {
            lines.insert(0, "::1 localhost ip6-localhost ip6-loopback".to_owned());
        }
        if missing("127.0.0.1") {
            lines.insert(0, "127.0.0.1 localhost".to_owned());
        }
        lines.extend(self.host.map(|ip| format!("{ip} {HOST_NAME}")));
        lines.extend(self.own.as_ref().map(|name| format!("127.0.1.1 {name}")));
        lines.join("\n") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(old: &str, name: &str) -> String {
        Hosts { own: Some(name.to_owned()), host: None }.added_to(old)
    }

    #[test]
    fn the_host_has_one_address_in_the_hosts_file() {
        let at = |old: &str, ip: &str| Hosts { own: None, host: Some(ip.parse().unwrap()) }.added_to(old);
        let old = at("127.0.1.1 box\n10.0.0.9 db events.e2b.local.example # events.e2b.local\n", "10.1.0.1");
        assert!(old.ends_with("\n127.0.1.1 box\n10.0.0.9 db events.e2b.local.example # events.e2b.local\n10.1.0.1 events.e2b.local\n"), "{old}");
        let new = at(&old, "10.2.0.1");
        assert!(new.contains("\n10.2.0.1 events.e2b.local\n") && !new.contains("10.1.0.1"), "{new}");
        assert_eq!(hosts(&new, "other").matches("events.e2b.local\n").count(), 2, "left alone");
    }

    #[test]
    fn the_hosts_file_follows_the_host_name_and_keeps_the_rest() {
        let fresh = hosts("", "one");
        assert_eq!(fresh, "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 one\n");
        let extended = format!("{fresh}10.0.0.1 db # mine\n");
        let renamed = hosts(&extended, "two");
        assert!(renamed.contains("10.0.0.1 db # mine\n") && renamed.ends_with("127.0.1.1 two\n"));
        assert!(!renamed.contains("one"));
        assert_eq!(renamed.matches("127.0.0.1").count(), 1);
    }

    #[test]
    fn the_identity_is_written_below_the_root() {
        let root = tempfile::tempdir().unwrap();
        let init = Init {
            hostname: Some("box".to_owned()),
            machine_id: Some("0123456789abcdef0123456789abcdef".to_owned()),
            sandbox_id: Some("iabc".to_owned()),
            template_id: Some("base".to_owned()),
            build_id: Some("0000-1".to_owned()),
            ..Init::default()
        };
        write_all(root.path(), &identity_files(&init).unwrap()).unwrap();
        let read = |path: &str| std::fs::read_to_string(root.path().join(path)).unwrap();
        assert_eq!(read("etc/hostname"), "box\n");
        assert_eq!(read("etc/machine-id"), "0123456789abcdef0123456789abcdef\n");
        assert_eq!(
            (read("run/e2b/.E2B_SANDBOX").as_str(), read("run/e2b/.E2B_SANDBOX_ID").as_str()),
            ("true", "iabc")
        );
        assert_eq!(read("run/e2b/.E2B_TEMPLATE_ID"), "base");
        assert_eq!(read(".e2b"), "ENV_ID=base\nTEMPLATE_ID=base\nBUILD_ID=0000-1\n");
    }

    #[test]
    fn values_that_would_break_files_are_refused() {
        for name in ["", "a b", "a\nb", &"x".repeat(65)] {
            let init = Init { hostname: Some(name.to_owned()), ..Init::default() };
            assert!(identity_files(&init).is_err(), "{name:?}");
        }
        for id in ["", "xyz", "0123456789abcdef0123456789abcdeg"] {
            assert!(
                identity_files(&Init { machine_id: Some(id.to_owned()), ..Init::default() }).is_err(),
                "{id:?}"
            );
        }
        assert!(identity_files(&Init { sandbox_id: Some("a\nb".to_owned()), ..Init::default() }).is_err());
    }

    #[test]
    fn empty_tokens_and_settings_count_as_absent() {
        let body = r#"{"accessToken":"","defaultUser":"","defaultWorkdir":"","newer":1}"#;
        let update = update(&serde_json::from_str(body).unwrap()).unwrap();
        assert_eq!((update.access_token, update.default_user, update.default_workdir), (None, None, None));
        assert!(update.user_vars.is_none());
    }
}
