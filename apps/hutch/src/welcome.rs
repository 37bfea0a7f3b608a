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

/// Proves the server and prints how to use it. A key is made and shown when there is none yet.
pub async fn greet(
    config: &Config,
    address: SocketAddr,
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
    println!("{}", how_to(&format!("http://{}", reachable(address)), &key));
    Ok(())
}

fn how_to(url: &str, key: &str) -> String {
    format!(
        r#"
  export E2B_API_URL={url}
  export E2B_SANDBOX_URL={url}
  export E2B_API_KEY={key}

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

    #[test]
    fn the_wildcard_address_is_shown_as_localhost() {
        assert_eq!(reachable("0.0.0.0:3000".parse().unwrap()).to_string(), "127.0.0.1:3000");
        assert_eq!(reachable("[::]:3000".parse().unwrap()).to_string(), "127.0.0.1:3000");
        assert_eq!(reachable("127.0.0.1:3000".parse().unwrap()).to_string(), "127.0.0.1:3000");
    }
}
