//! A host with a daemon that can be killed and started again.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hutch_agent::{Agent, AgentConfig};
use hutch_api::ApiConfig;
use hutch_app::{App, AppDeps, Limits, Template, TemplateBuild, keys};
use hutch_edge::{Edge, Front, FrontConfig, RequestBody};
use hutch_envd_client::EnvdClient;
use hutch_node_api::{NodeClient, RouteSource};
use hutch_runtime_fake::{FakeKernel, FakeRuntime};
use hutch_store::{SqliteStore, Store};
use hutch_types::supervise::Supervisor;
use hutch_types::{BuildId, Clock, Resources, SandboxId, TemplateId, Timestamp};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

/// 2026-01-02T03:04:05Z.
const START: Timestamp = Timestamp(1_767_323_045_000);
const RESOURCES: Resources = Resources { vcpus: 2, memory_mib: 512, disk_mib: 1024, max_processes: 256 };
/// What tests wait for comes long before.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How the daemon is set up.
#[derive(Debug, Clone)]
pub struct Settings {
    pub limits: Limits,
    pub pool: usize,
    pub boots: usize,
    pub queued: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { limits: Limits::default(), pool: 0, boots: 4, queued: 512 }
    }
}

/// A host: what outlives a daemon.
pub struct World {
    pub kernel: FakeKernel,
    /// Stands still unless a test moves it.
    pub clock: Clock,
    pub build: BuildId,
    pub key: String,
    settings: Settings,
    folder: tempfile::TempDir,
    /// Names the database in the folder.
    database: &'static str,
    http: Client<HttpConnector, Full<bytes::Bytes>>,
    daemon: Option<Daemon>,
}

/// What dies with a daemon. It has threads of its own, which vanish with it.
struct Daemon {
    threads: Runtime,
    address: SocketAddr,
    agent: Agent,
    supervisor: Supervisor,
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            // A plain drop waits for the threads, which is forbidden in asynchronous code.
            daemon.threads.shutdown_background();
        }
    }
}

/// An answer of the API or the edge.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Reply {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {:?}", self.text))
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        self
    }
}

/// A sandbox as its client knows it.
#[derive(Debug, Clone)]
pub struct Sandbox {
    pub id: SandboxId,
    pub token: String,
}

impl World {
    pub async fn new() -> Self {
        Self::with(Settings::default()).await
    }

    /// A host with a `base` template and a daemon that serves.
    pub async fn with(settings: Settings) -> Self {
        let (kernel, clock, build) = (FakeKernel::new(), Clock::manual(START), BuildId::random());
        kernel.add_build(build);
        let folder = tempfile::tempdir().unwrap();
        let mut world = Self {
            kernel,
            clock,
            build,
            key: String::new(),
            settings,
            folder,
            database: "hutch.db",
            http: Client::builder(TokioExecutor::new()).build_http(),
            daemon: None,
        };
        world.key = world.set_up_store().await;
        world.boot().await;
        world
    }

    /// Makes the template and a key; returns the key.
    async fn set_up_store(&self) -> String {
        let store = SqliteStore::open(&self.database()).await.unwrap();
        let team = store.default_team(START).await.unwrap().id;
        let id = TemplateId::random();
        let template = Template {
            id: id.clone(),
            team,
            names: vec!["base".to_owned()],
            public: true,
            created_at: START,
            updated_at: START,
            spawn_count: 0,
            last_spawned_at: None,
            build_count: 0,
        };
        store.upsert_template(template).await.unwrap();
        let build = TemplateBuild {
            id: self.build,
            template: id,
            status: "ready".to_owned(),
            resources: RESOURCES,
            envd_version: hutch_types::ENVD_VERSION.to_owned(),
            created_at: START,
            updated_at: START,
            finished_at: Some(START),
        };
        store.insert_build(build, &["default".to_owned()]).await.unwrap();
        let key = keys::create_key(&store, &self.clock, team, "tests").await.unwrap();
        store.close().await;
        key.value.expose().to_owned()
    }

    fn database(&self) -> PathBuf {
        self.folder.path().join(self.database)
    }

    /// The next daemon finds an empty database, as one that was restored from long ago.
    pub fn forget_everything(&mut self) {
        self.database = "other.db";
    }

    /// Starts a daemon on this host.
    pub async fn boot(&mut self) {
        assert!(self.daemon.is_none(), "one daemon at a time");
        let (kernel, clock) = (self.kernel.clone(), self.clock.clone());
        let (settings, database, build) = (self.settings.clone(), self.database(), self.build);
        let meminfo = self.folder.path().join("meminfo");
        std::fs::write(&meminfo, "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n").unwrap();
        // The daemon's threads are not those of the test.
        let start = move || {
            let threads = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let (address, agent, supervisor) =
                threads.block_on(serve(kernel, clock, settings, database, meminfo, build));
            Daemon { threads, address, agent, supervisor }
        };
        self.daemon = Some(tokio::task::spawn_blocking(start).await.unwrap());
    }

    /// `kill -9`: the daemon's threads vanish in the middle of whatever they do.
    pub async fn crash(&mut self) {
        let daemon = self.daemon.take().expect("a daemon");
        tokio::task::spawn_blocking(move || daemon.threads.shutdown_timeout(PATIENCE)).await.unwrap();
    }

    /// The end that an operator asks for.
    pub async fn shut_down(&mut self) {
        let daemon = self.daemon.take().expect("a daemon");
        let end = move || {
            daemon.threads.block_on(async {
                daemon.agent.shutdown().await;
                assert_eq!(daemon.supervisor.shutdown(PATIENCE).await, 0, "all tasks end");
            });
            daemon.threads.shutdown_timeout(PATIENCE);
        };
        tokio::task::spawn_blocking(end).await.unwrap();
    }

    fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("a daemon")
    }

    pub fn agent(&self) -> &Agent {
        &self.daemon().agent
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.daemon().address)
    }

    /// A call of the REST API with the key.
    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Reply {
        let body = body.map(|b| b.to_string()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url()))
            .header("x-api-key", &self.key)
            .header("content-type", "application/json")
            .body(Full::from(body))
            .unwrap();
        self.send(request).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.call(Method::GET, path, None).await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.call(Method::DELETE, path, None).await
    }

    pub async fn send(&self, request: Request<Full<bytes::Bytes>>) -> Reply {
        let response = self.http.request(request).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        Reply { status: parts.status, headers: parts.headers, text }
    }

    /// Asks for a sandbox of the base template.
    pub async fn try_create(&self, more: Value) -> Reply {
        let mut body = json!({ "templateID": "base", "timeout": 300 });
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        self.call(Method::POST, "/v2/sandboxes", Some(body)).await
    }

    pub async fn create(&self, more: Value) -> Sandbox {
        let body = self.try_create(more).await.expect(201).json();
        Sandbox {
            id: body["sandboxID"].as_str().unwrap().parse().unwrap(),
            token: body["envdAccessToken"].as_str().unwrap().to_owned(),
        }
    }

    /// Runs a script inside, through the edge, and returns what it prints.
    pub async fn run(&self, sandbox: &Sandbox, script: &str) -> String {
        let envd = EnvdClient::through_edge(&self.url(), sandbox.id.as_str(), &sandbox.token).unwrap();
        let output = envd.run(script, PATIENCE).await.unwrap();
        assert_eq!(output.exit_code, 0, "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// A request to envd's port of a sandbox, by host name.
    pub async fn envd(&self, sandbox: &Sandbox, path: &str) -> Reply {
        let request = Request::get(format!("{}{path}", self.url()))
            .header("host", format!("49983-{}.hutch.test", sandbox.id))
            .header("x-access-token", &sandbox.token)
            .body(Full::default())
            .unwrap();
        self.send(request).await
    }

    /// Ids of the running sandboxes, as the API lists them.
    pub async fn listed(&self) -> Vec<SandboxId> {
        let rows = self.get("/v2/sandboxes").await.expect(200).json();
        rows.as_array().unwrap().iter().map(|r| r["sandboxID"].as_str().unwrap().parse().unwrap()).collect()
    }

    pub async fn is_found(&self, sandbox: &Sandbox) -> bool {
        self.get(&format!("/sandboxes/{}", sandbox.id)).await.status == StatusCode::OK
    }

    /// Whether the host has an instance of the sandbox.
    pub fn has_instance(&self, sandbox: &Sandbox) -> bool {
        !self.kernel.labelled("hutch.sandbox", sandbox.id.as_str()).is_empty()
    }

    pub async fn fill_pool(&self, ready: usize) {
        assert!(self.agent().wait_pool(self.build, RESOURCES, ready, PATIENCE).await, "the pool fills");
    }
}

/// The whole daemon, put together as the binary does.
async fn serve(
    kernel: FakeKernel,
    clock: Clock,
    settings: Settings,
    database: PathBuf,
    meminfo: PathBuf,
    build: BuildId,
) -> (SocketAddr, Agent, Supervisor) {
    let supervisor = Supervisor::new();
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&database).await.unwrap());
    let mut config = AgentConfig::new("test".parse().unwrap(), hutch_types::ENVD_VERSION);
    // The fake's processes run on this machine: they are at home in a scratch folder.
    config.default_workdir = String::new();
    config.max_concurrent_starts = settings.boots;
    config.max_queued_starts = settings.queued;
    config.sample_interval = Duration::from_millis(50);
    config.meminfo = meminfo;
    config.pool.refill_quiet = Duration::ZERO;
    let agent = Agent::start(config, Arc::new(FakeRuntime::new(&kernel)), supervisor.clone(), clock.clone())
        .await
        .unwrap();
    let app = App::new(AppDeps {
        store,
        node: Arc::new(agent.clone()) as Arc<dyn NodeClient>,
        clock,
        supervisor: supervisor.clone(),
        limits: settings.limits,
        domain: None,
    });
    app.start().await.unwrap();
    agent.set_pool_target(build, RESOURCES, Some(settings.pool));
    let routes = Arc::new(agent.clone()) as Arc<dyn RouteSource>;
    let edge = Edge::new(routes, Arc::new(app.clone()), supervisor.clone());
    let api = hutch_api::router(app, ApiConfig::default()).into_service::<RequestBody>();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let front = Front::new(FrontConfig::default(), edge, api, supervisor.clone());
    supervisor.spawn("front", front.serve(listener));
    (address, agent, supervisor)
}

/// Waits until something is so.
pub async fn wait_for<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
        panic!("waited in vain for {what}");
    }
}
