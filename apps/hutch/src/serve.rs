//! `hutch serve`: everything in one process behind one listener.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::uri::Scheme;
use hutch_agent::{Agent, AgentConfig};
use hutch_app::{App, AppDeps};
use hutch_edge::{Edge, Front, FrontConfig, RequestBody};
use hutch_node_api::{NodeClient, RouteSource};
use hutch_runtime::Runtime;
use hutch_store::{SqliteStore, Store, StoreError};
use hutch_types::supervise::Supervisor;
use hutch_types::{Clock, ENVD_VERSION};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::Config;
use crate::{doctor, node, tls, welcome};

/// How long requests in flight get at shutdown.
const GRACE: Duration = Duration::from_secs(5);
/// The template that is kept warm, and its tag.
const WARM_TEMPLATE: &str = "base";
const WARM_TAG: &str = "default";

/// Serves until SIGTERM or SIGINT. Sandboxes go on running after that; the next start adopts them.
pub async fn serve(config: Config, greet: bool) -> anyhow::Result<()> {
    node::must_be_root()?;
    // Then the port: a second server on the same address is the most common mistake.
    let address = config.address()?;
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            anyhow::bail!(
                "{address} is in use: stop what listens there, or choose another address with --listen"
            )
        }
        Err(error) => return Err(error).with_context(|| format!("cannot listen on {address}")),
    };
    let supervisor = Supervisor::new();
    let clock = Clock::system();
    let tls = tls::open(&config, &supervisor, &clock).await?;
    tls::start_dns(&config, &supervisor).await?;
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&config.database()).await?);
    let agent = start_agent(&config, &supervisor, &clock).await?;

    let app = App::new(AppDeps {
        store: Arc::clone(&store),
        node: Arc::new(agent.clone()) as Arc<dyn NodeClient>,
        clock: clock.clone(),
        supervisor: supervisor.clone(),
        limits: config.limits.clone(),
        domain: config.public_domain(),
    });
    app.start().await?;
    keep_warm(&config, &*store, &agent, &clock).await?;

    let edge =
        Edge::new(Arc::new(agent.clone()) as Arc<dyn RouteSource>, Arc::new(app.clone()), supervisor.clone())
            .with_max_connections_per_sandbox(usize::try_from(config.limits.max_connections_per_sandbox)?);
    let api = hutch_api::router(app.clone(), hutch_api::ApiConfig::default()).into_service::<RequestBody>();
    let front = Front::new(FrontConfig::default(), edge, api, supervisor.clone());
    let address = listener.local_addr()?;
    supervisor.spawn("front", front.clone().serve(listener));
    tracing::info!(%address, data_dir = %config.data_dir.display(), "serving");
    let mut trust = None;
    if let Some(tls) = tls {
        tracing::info!(address = %tls.listener.local_addr()?, domain = config.public_domain(), "serving TLS");
        let handshake = tls.handshake();
        supervisor.spawn("front-tls", front.serve_with(tls.listener, Scheme::HTTPS, handshake));
        trust = tls.trust;
    }

    if greet {
        welcome::greet(&config, address, trust.as_ref(), &app, &agent, &*store, &clock).await?;
    }
    wait_for_signal().await?;
    tracing::info!("stopping; sandboxes go on running");
    agent.shutdown().await;
    let left = supervisor.shutdown(GRACE).await;
    if left > 0 {
        tracing::warn!(left, "some requests were cut");
    }
    Ok(())
}

async fn start_agent(config: &Config, supervisor: &Supervisor, clock: &Clock) -> anyhow::Result<Agent> {
    let node = node::open(config, supervisor).await?;
    let mut settings = AgentConfig::new(config.node.id.parse()?, ENVD_VERSION);
    settings.isolation_reason = doctor::isolation_reason();
    settings.max_concurrent_starts = usize::try_from(config.node.max_concurrent_boots)?;
    settings.max_queued_starts = usize::try_from(config.limits.max_queued_starts)?;
    // The node gives up before control does, so that the answer has the node's reason.
    settings.queue_timeout =
        Duration::from_secs(u64::from(config.limits.start_timeout_seconds.saturating_sub(3).max(1)));
    settings.pool.size = config.pool.size;
    settings.pool.min_free_memory_mib = config.pool.min_free_memory_mib;
    settings.guest_service = Some(node.net.config().gateway().into());
    let runtime = Arc::new(node.runtime) as Arc<dyn Runtime>;
    let agent = Agent::start(settings, runtime, supervisor.clone(), clock.clone())
        .await
        .map_err(|e| anyhow::anyhow!("the sandboxes of the last run cannot be taken over: {}", e.chain()))?;
    if let Some(listener) = node.net.take_service() {
        agent.serve_guests(listener).context("sandboxes cannot be answered")?;
    }
    Ok(agent)
}

/// Keeps instances of the base template ready, where it is there.
async fn keep_warm(config: &Config, store: &dyn Store, agent: &Agent, clock: &Clock) -> anyhow::Result<()> {
    let team = store.default_team(clock.now()).await?;
    let build = match store.find_template(team.id, WARM_TEMPLATE).await {
        Ok(template) => store.build_by_tag(&template.id, WARM_TAG).await,
        Err(error) => Err(error),
    };
    match build {
        Ok(build) => agent.set_pool_target(build.id, build.resources, Some(config.pool.size)),
        Err(StoreError::NotFound { .. }) => {
            tracing::warn!("there is no template `{WARM_TEMPLATE}`: import one with `hutch template import`");
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

async fn wait_for_signal() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
