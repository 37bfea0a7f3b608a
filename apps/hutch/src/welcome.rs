//! What a person sees when the server is up: the proof that it works, the isolation in force, the key, and how to go on.

use std::net::SocketAddr;
use std::time::Duration;

use hutch_agent::Agent;
use hutch_app::App;
use hutch_app::keys::{create_key, list_keys};
use hutch_node_api::NodeClient;
use hutch_store::{Store, StoreError};
use hutch_types::Clock;

use crate::config::Config;
use crate::prove;
use crate::tls::Trust;

/// Proves the server and prints how to use it. A key is made and shown when there is none yet.
pub async fn greet(
    config: &Config,
    address: SocketAddr,
    trust: Option<&Trust>,
    app: &App,
    agent: &Agent,
    store: &dyn Store,
    clock: &Clock,
) -> anyhow::Result<()> {
    let team = store.default_team(clock.now()).await?.id;
    match store.find_template(team, "base").await {
        Ok(template) => {
            let build = store.build_by_tag(&template.id, "default").await?;
            // One ready instance is enough to show what a create costs.
            if config.pool.size > 0 {
                agent.wait_pool(build.id, build.resources, 1, Duration::from_secs(20)).await;
            }
            let proof = prove::prove(app, address, team).await?;
            println!();
            println!("  Hutch works: {}", proof.output);
            println!(
                "  create {:.1} ms · command {:.1} ms · kill {:.1} ms",
                ms(proof.create),
                ms(proof.command),
                ms(proof.kill)
            );
        }
        Err(StoreError::NotFound { .. }) => {
            println!("\n  There is no template yet: hutch template import --help")
        }
        Err(error) => return Err(error.into()),
    }
    let node = agent.info().await?;
    println!("  isolation: {} ({})", node.isolation, node.isolation_reason);

    let live = list_keys(store, team).await?.into_iter().filter(|k| k.revoked_at.is_none()).count();
    let key = if live == 0 {
        let created = create_key(store, clock, team, "default").await?;
        println!("\n  API key (shown only now): {}", created.value.expose());
        created.value.expose().to_owned()
    } else {
        println!(
            "\n  API keys: {live}. Another one: {} key create --name NAME --data-dir {}",
            own_name(),
            config.data_dir.display()
        );
        "<your key>".to_owned()
    };
    println!("{}", how_to(&exports(config, address, trust, &key)?));
    Ok(())
}

/// What a client's environment needs. With TLS that is E2B's own variable alone, and the trust.
fn exports(config: &Config, address: SocketAddr, trust: Option<&Trust>, key: &str) -> anyhow::Result<String> {
    let mut lines = Vec::new();
    match config.public_domain() {
        Some(domain) if config.has_tls() => {
            lines.push(format!("export E2B_DOMAIN={domain}"));
            if let Some(Trust { ca, bundle }) = trust {
                lines.push(format!("export SSL_CERT_FILE={}", bundle.display()));
                lines.push(format!("export NODE_EXTRA_CA_CERTS={}", ca.display()));
            }
        }
        _ => {
            let url = format!("http://{}", reachable(address));
            lines.push(format!("export E2B_API_URL={url}"));
            lines.push(format!("export E2B_SANDBOX_URL={url}"));
        }
    }
    lines.push(format!("export E2B_API_KEY={key}"));
    if config.has_tls() || config.has_dns() {
        lines.push(String::new());
        lines.push(names(config)?);
    }
    Ok(lines.iter().map(|line| format!("\n  {line}").trim_end_matches(' ').to_owned()).collect())
}

/// How the names of the domain come to resolve.
fn names(config: &Config) -> anyhow::Result<String> {
    let domain = config.domain_name();
    Ok(if config.has_dns() {
        let server = reachable(config.dns.listen.parse()?);
        let how = if server.port() == 53 {
            format!("put `nameserver {}` first into /etc/resolv.conf", server.ip())
        } else {
            format!("make your resolver ask {server} for them")
        };
        format!("Names below {domain} are answered at {server}: {how}; docs/tls.md has more ways.")
    } else {
        format!(
            "{domain} and every name below it must resolve to {}: `--dns` answers them on this machine.",
            config.dns_answer()?
        )
    })
}

fn how_to(exports: &str) -> String {
    format!(
        r#"{exports}

  Python (pip install e2b):

from e2b import Sandbox
sandbox = Sandbox.create()
run = sandbox.commands.run("echo hello")
print(run.stdout)
sandbox.kill()

  JavaScript (npm install e2b), in a file ending in .mjs:

import {{ Sandbox }} from 'e2b'
const sandbox = await Sandbox.create()
const run = await sandbox.commands.run('echo hello')
console.log(run.stdout)
await sandbox.kill()

  Stop with Ctrl-C: sandboxes go on running, and the next start takes them over.
"#
    )
}

fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1000.0
}

fn own_name() -> String {
    std::env::args().next().unwrap_or_else(|| "hutch".to_owned())
}

/// An address that a client on this host can use: the wildcard address is none.
fn reachable(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), address.port())
    } else {
        address
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::https::TlsMode;

    #[test]
    fn the_environment_fits_the_way_in() {
        let (address, mut config) = ("127.0.0.1:3000".parse().unwrap(), Config::default());
        let plain = exports(&config, address, None, "k").unwrap();
        assert_eq!(
            plain,
            "\n  export E2B_API_URL=http://127.0.0.1:3000\n  export E2B_SANDBOX_URL=http://127.0.0.1:3000\n  export E2B_API_KEY=k"
        );
        config.tls.mode = TlsMode::Local;
        config.tls.listen = "127.0.0.1:8443".into();
        let trust = Trust { ca: "/d/tls/ca.pem".into(), bundle: "/d/tls/ca-bundle.pem".into() };
        let tls = exports(&config, address, Some(&trust), "k").unwrap();
        assert!(
            tls.starts_with(
                "\n  export E2B_DOMAIN=hutch.test:8443\n  export SSL_CERT_FILE=/d/tls/ca-bundle.pem\n  \
             export NODE_EXTRA_CA_CERTS=/d/tls/ca.pem\n  export E2B_API_KEY=k\n\n  hutch.test and every name"
            ),
            "{tls}"
        );
        config.dns.listen = "127.0.0.1:53".into();
        assert!(exports(&config, address, Some(&trust), "k").unwrap().contains("nameserver 127.0.0.1"));
    }

    #[test]
    fn the_wildcard_address_is_shown_as_localhost() {
        assert_eq!(reachable("0.0.0.0:3000".parse().unwrap()).to_string(), "127.0.0.1:3000");
        assert_eq!(reachable("[::]:3000".parse().unwrap()).to_string(), "127.0.0.1:3000");
        assert_eq!(reachable("127.0.0.1:3000".parse().unwrap()).to_string(), "127.0.0.1:3000");
    }
}
