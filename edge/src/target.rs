//! Which sandbox and port a request means.

use http::HeaderMap;
use http::header::HOST;
use http::request::Parts;
use hutch_types::SandboxId;

/// The port of envd.
pub const ENVD_PORT: u16 = 49983;

const ID_HEADER: &str = "e2b-sandbox-id";
const PORT_HEADER: &str = "e2b-sandbox-port";

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The REST API.
    Api,
    /// A server inside a sandbox.
    Sandbox {
        /// Which sandbox.
        id: SandboxId,
        /// Which port.
        port: u16,
    },
}

/// A request that means a sandbox, but not a valid one. The text goes to the client with status 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The id in the host name or header is none.
    #[error("Invalid sandbox ID")]
    InvalidId,
    /// The port is not 1 to 65535.
    #[error("Invalid sandbox port")]
    InvalidPort,
    /// One of the two routing headers is missing.
    #[error("missing header {0}")]
    MissingHeader(&'static str),
}

/// Decides by `Host` first: `{port}-{id}.{any domain}` is always a sandbox. Elsewhere the pair of headers
/// `E2b-Sandbox-Id` and `E2b-Sandbox-Port` decides, except on `api.*`, where it is ignored; the rest is the API.
///
/// # Errors
/// [`TargetError`] when a sandbox is meant but not named properly.
pub fn target(parts: &Parts) -> Result<Target, TargetError> {
    let host = host(parts).unwrap_or_default();
    if let Some((label, _domain)) = host.split_once('.')
        && let Some((port, id)) = label.split_once('-')
        && !port.is_empty()
        && port.bytes().all(|b| b.is_ascii_digit())
    {
        return sandbox(id, port);
    }
    if host.starts_with("api.") {
        return Ok(Target::Api);
    }
    match (text(&parts.headers, ID_HEADER), text(&parts.headers, PORT_HEADER)) {
        (None, None) => Ok(Target::Api),
        (Some(_), None) => Err(TargetError::MissingHeader("E2b-Sandbox-Port")),
        (None, Some(_)) => Err(TargetError::MissingHeader("E2b-Sandbox-Id")),
        (Some(id), Some(port)) => sandbox(id, port),
    }
}

/// The host that a request names, lower-cased, without a port.
pub fn host(parts: &Parts) -> Option<String> {
    let raw = match parts.uri.host() {
        Some(host) => host,
        None => text(&parts.headers, HOST.as_str())?,
    };
    let raw = if let Some(v6) = raw.strip_prefix('[') {
        v6.split(']').next().unwrap_or_default()
    } else {
        raw.split(':').next().unwrap_or_default()
    };
    Some(raw.trim_end_matches('.').to_ascii_lowercase())
}

fn sandbox(id: &str, port: &str) -> Result<Target, TargetError> {
    let id = SandboxId::parse_wire(id).map_err(|_| TargetError::InvalidId)?;
    match port.parse::<u16>() {
        Ok(port) if port != 0 => Ok(Target::Sandbox { id, port }),
        _ => Err(TargetError::InvalidPort),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|v| v.to_str().ok()).filter(|v| !v.is_empty())
}

/// Whether `path` is one of envd's routes that only the host may use. The path is decoded and cleaned first, so that
/// `//init`, `/files/../init` and `/%69nit` are found out.
pub fn is_internal_envd_path(path: &str) -> bool {
    const INTERNAL: [&str; 9] =
        ["init", "freeze", "unfreeze", "fsfreeze", "fsthaw", "collapse", "upgrade", "tunnel", "logs"];
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
    let mut clean: Vec<&str> = Vec::new();
    for part in decoded.split(['/', '\\']) {
        match part {
            "" | "." => {}
            ".." => {
                clean.pop();
            }
            part => clean.push(part),
        }
    }
    matches!(clean.as_slice(), [only] if INTERNAL.iter().any(|i| only.eq_ignore_ascii_case(i)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(host: &str, headers: &[(&str, &str)]) -> Parts {
        let mut r = http::Request::builder().uri("/x").header("host", host);
        for (k, v) in headers {
            r = r.header(*k, *v);
        }
        r.body(()).unwrap().into_parts().0
    }

    fn check(host: &str, headers: &[(&str, &str)], want: Result<Target, TargetError>) {
        assert_eq!(target(&parts(host, headers)), want, "{host} {headers:?}");
    }

    fn to(id: &str, port: u16) -> Result<Target, TargetError> {
        Ok(Target::Sandbox { id: id.parse().unwrap(), port })
    }

    const ID: &str = "iabc0123456789xyz000";
    const BOTH: &[(&str, &str)] = &[("e2b-sandbox-id", ID), ("e2b-sandbox-port", "49983")];

    #[test]
    fn the_host_name_wins() {
        check(&format!("3000-{ID}.hutch.test"), &[], to(ID, 3000));
        check(&format!("3000-{ID}.hutch.test:8443"), BOTH, to(ID, 3000));
        check(&format!("3000-{ID}-c0.hutch.test"), &[], to(ID, 3000));
        check(&format!("3000-{}.HUTCH.test", ID.to_uppercase()), &[], to(ID, 3000));
        check(&format!("3000-{ID}.localhost"), &[], to(ID, 3000));
    }

    #[test]
    fn headers_route_where_the_host_names_no_sandbox() {
        for host in
            ["localhost:3000", "127.0.0.1:3000", "[::1]:3000", "sandbox.hutch.test", "box.lan", "hutch"]
        {
            check(host, BOTH, to(ID, 49983));
            check(host, &[], Ok(Target::Api));
        }
        check("api.hutch.test", BOTH, Ok(Target::Api));
    }

    #[test]
    fn half_a_pair_and_bad_values_are_said() {
        check("localhost", &BOTH[..1], Err(TargetError::MissingHeader("E2b-Sandbox-Port")));
        check("localhost", &BOTH[1..], Err(TargetError::MissingHeader("E2b-Sandbox-Id")));
        check(
            "localhost",
            &[("e2b-sandbox-id", "../x"), ("e2b-sandbox-port", "1")],
            Err(TargetError::InvalidId),
        );
        check(
            "localhost",
            &[("e2b-sandbox-id", ID), ("e2b-sandbox-port", "70000")],
            Err(TargetError::InvalidPort),
        );
        check(
            "localhost",
            &[("e2b-sandbox-id", ID), ("e2b-sandbox-port", "0")],
            Err(TargetError::InvalidPort),
        );
        check("3000-no!.hutch.test", &[], Err(TargetError::InvalidId));
        check(&format!("99999-{ID}.hutch.test"), &[], Err(TargetError::InvalidPort));
    }

    #[test]
    fn hostile_names_are_refused() {
        for host in [
            "3000-../../etc.hutch.test",
            "3000-i%2e%2e.hutch.test",
            "3000-.hutch.test",
            "3000-a b.hutch.test",
            "3000-iabc0123456789xyz000-c0-x.hutch.test",
            "3000-iabc0123456789xyz000\u{e9}.hutch.test",
            "-1-iabc0123456789xyz000.hutch.test",
        ] {
            let mut parts = parts("x", &[]);
            parts.headers.insert(HOST, http::HeaderValue::from_bytes(host.as_bytes()).unwrap());
            let found = target(&parts);
            assert!(!matches!(found, Ok(Target::Sandbox { .. })), "{host}: {found:?}");
        }
    }

    #[test]
    fn names_that_only_look_similar_are_the_api() {
        for host in ["my-host.example.com", "3000-x", "-x.y", "", "api"] {
            check(host, &[], Ok(Target::Api));
        }
    }

    #[test]
    fn internal_routes_are_found_in_every_disguise() {
        for p in [
            "/init",
            "//init",
            "/init/",
            "/files/../init",
            "/./init",
            "/%69nit",
            "/INIT",
            "/a/../../init",
            "/tunnel",
            "/logs",
            "/%2finit",
        ] {
            assert!(is_internal_envd_path(p), "{p}");
        }
        for p in
            ["/", "/files", "/health", "/initial", "/process.Process/Start", "/init/x", "/envs", "/metrics"]
        {
            assert!(!is_internal_envd_path(p), "{p}");
        }
    }

    proptest! {
        #[test]
        fn no_host_or_header_makes_it_panic(host in "[ -~]{0,60}", id in "[ -~]{0,40}", port in "[ -~]{0,8}") {
            if http::HeaderValue::from_str(&host).is_ok() {
                drop(target(&parts(&host, &[("e2b-sandbox-id", &id), ("e2b-sandbox-port", &port)])));
            }
        }

        #[test]
        fn no_bytes_make_it_panic(host in proptest::collection::vec(any::<u8>(), 0..80), id in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut parts = parts("x", &[("e2b-sandbox-port", "80")]);
            for (name, bytes) in [("host", &host), ("e2b-sandbox-id", &id)] {
                if let Ok(value) = http::HeaderValue::from_bytes(bytes) {
                    parts.headers.insert(name, value);
                }
            }
            drop(target(&parts));
        }

        #[test]
        fn a_name_that_was_made_is_understood(
            id in "i[a-z0-9]{19}", port in 1u16.., domain in "[a-z]{1,10}(\\.[a-z]{1,10}){0,3}", own_port in proptest::option::of(1u16..),
            client in proptest::option::of("[a-z0-9]{1,8}"), upper in any::<bool>(), dot in any::<bool>(),
        ) {
            let client = client.map(|c| format!("-{c}")).unwrap_or_default();
            let mut host = format!("{port}-{id}{client}.{domain}{}", if dot { "." } else { "" });
            if upper {
                host = host.to_uppercase();
            }
            if let Some(own_port) = own_port {
                host = format!("{host}:{own_port}");
            }
            let expected = Ok(Target::Sandbox { id: id.parse().unwrap(), port });
            prop_assert_eq!(&target(&parts(&host, &[])), &expected);
            // Whatever the headers say: they cannot lead elsewhere.
            let other = [("e2b-sandbox-id", "iother00000000000000"), ("e2b-sandbox-port", "22")];
            prop_assert_eq!(&target(&parts(&host, &other)), &expected);
            // HTTP/2 names the host in the address, which wins over a header.
            let absolute = http::Request::builder().uri(format!("http://{host}/")).header("host", "api.hutch.test");
            prop_assert_eq!(&target(&absolute.body(()).unwrap().into_parts().0), &expected);
        }

        #[test]
        fn headers_lead_where_they_say(id in "i[a-z0-9]{19}", port in 1u16.., host in "localhost|127\\.0\\.0\\.1|\\[::1\\]|sandbox\\.[a-z]{1,9}\\.test") {
            let port_text = port.to_string();
            let pair = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", port_text.as_str())];
            let expected = Ok(Target::Sandbox { id: id.parse().unwrap(), port });
            prop_assert_eq!(target(&parts(&host, &pair)), expected);
            prop_assert_eq!(target(&parts("api.hutch.test", &pair)), Ok(Target::Api));
        }

        #[test]
        fn whatever_names_a_sandbox_names_a_possible_one(host in "[0-9]{0,6}-?[ -~]{0,30}(\\.[ -~]{0,10})?") {
            if http::HeaderValue::from_str(&host).is_ok()
                && let Ok(Target::Sandbox { id, port }) = target(&parts(&host, &[]))
            {
                prop_assert!(port > 0);
                prop_assert!(id.as_str().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()), "{id}");
                prop_assert!(host.to_ascii_lowercase().contains(id.as_str()));
            }
        }

        #[test]
        fn an_internal_path_is_found_in_any_disguise(
            name in "init|tunnel|logs|freeze|upgrade", pieces in proptest::collection::vec("/|/\\./|//|/x/\\.\\./|/%2e/|%2f", 1..4), encode in any::<u8>(),
        ) {
            let name: String = name.bytes().enumerate().map(|(at, b)| {
                if encode & (1 << (at % 8)) != 0 { format!("%{b:02x}") } else { char::from(b).to_string() }
            }).collect();
            let path = format!("{}{name}", pieces.concat());
            prop_assert!(is_internal_envd_path(&path), "{path}");
        }

        #[test]
        fn no_path_makes_it_panic(path in "\\PC{0,60}") {
            is_internal_envd_path(&path);
        }
    }
}
