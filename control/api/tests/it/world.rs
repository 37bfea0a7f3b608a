//! One control plane per test.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use hutch_api::ApiConfig;
use hutch_app::{App, AppDeps, Limits};
use hutch_store::{SqliteStore, Store, Team, Template, TemplateBuild};
use hutch_types::supervise::Supervisor;
use hutch_types::{BuildId, Clock, Resources, SandboxId, SandboxState, TeamId, TemplateId, Timestamp};
use serde_json::Value;
use tower::ServiceExt;

use crate::node::FakeNode;

/// 2026-01-02T03:04:05Z.
pub const START: Timestamp = Timestamp(1_767_323_045_000);

pub const BASE_ID: &str = "basetemplateid000000";

pub struct World {
    pub store: Arc<SqliteStore>,
    pub node: Arc<FakeNode>,
    pub clock: Clock,
    pub supervisor: Supervisor,
    pub app: App,
    pub router: Router,
    pub team: TeamId,
    pub key: String,
}

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

    /// The body of an error, after checks of what every error has in common.
    #[track_caller]
    pub fn error(&self, status: u16) -> String {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        assert_eq!(self.headers["content-type"], "application/json");
        let body = self.json();
        assert_eq!(body["code"], status, "{body}");
        body["message"].as_str().expect("a message").to_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|v| v.to_str().expect("text"))
    }
}

impl World {
    pub async fn new() -> Self {
        Self::with(Limits::default()).await
    }

    pub async fn with(limits: Limits) -> Self {
        let store = Arc::new(SqliteStore::open_in_memory().await.expect("a database"));
        let team = store.default_team(START).await.expect("a team").id;
        add_template(&*store, team, BASE_ID, "base", true).await;
        let world = Self::over(store, Arc::new(FakeNode::new()), limits).await;
        world.app.start().await.expect("a start");
        world
    }

    /// A control plane that is not started yet, over what is there already.
    pub async fn over(store: Arc<SqliteStore>, node: Arc<FakeNode>, limits: Limits) -> Self {
        assert_eq!(limits.problems(), Vec::<String>::new());
        let clock = Clock::manual(START);
        let supervisor = Supervisor::new();
        let team = store.default_team(START).await.expect("a team").id;
        let app = App::new(AppDeps {
            store: store.clone(),
            node: node.clone(),
            clock: clock.clone(),
            supervisor: supervisor.clone(),
            limits,
            domain: None,
        });
        let router = hutch_api::router(app.clone(), ApiConfig::default());
        let key = hutch_app::keys::create_key(&*store, &clock, team, &format!("k{}", SandboxId::random()))
            .await
            .expect("a key")
            .value
            .expose()
            .to_owned();
        Self { store, node, clock, supervisor, app, router, team, key }
    }

    pub async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        Reply {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(bytes.to_vec()).expect("text"),
        }
    }

    pub fn request(&self, method: Method, path: &str) -> http::request::Builder {
        Request::builder().method(method).uri(path).header("X-API-KEY", &self.key)
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(self.request(Method::GET, path).body(Body::empty()).expect("a request")).await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.send(self.request(Method::DELETE, path).body(Body::empty()).expect("a request")).await
    }

    /// Posts JSON in chunks, without a content length, as JavaScript clients do.
    pub async fn post(&self, path: &str, body: Value) -> Reply {
        self.post_text(path, &body.to_string()).await
    }

    pub async fn post_text(&self, path: &str, body: &str) -> Reply {
        self.send(
            self.request(Method::POST, path)
                .header("content-type", "application/json")
                .body(chunked(body))
                .expect("a request"),
        )
        .await
    }

    /// Creates a sandbox of the base template and returns its id.
    pub async fn create(&self, more: Value) -> SandboxId {
        let mut body = serde_json::json!({ "templateID": "base" });
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let reply = self.post("/v2/sandboxes", body).await;
        assert_eq!(reply.status, 201, "{}", reply.text);
        reply.json()["sandboxID"].as_str().expect("an id").parse().expect("an id")
    }

    pub async fn state(&self, id: &SandboxId) -> SandboxState {
        self.store.sandbox(id).await.expect("a record").state
    }

    pub async fn wait_for_state(&self, id: &SandboxId, wanted: SandboxState) {
        wait_for(&format!("{id} to be {wanted}"), async || self.state(id).await == wanted).await;
    }

    /// The key of another team.
    pub async fn other_key(&self) -> String {
        let id = TeamId::random();
        let team = Team { id, name: "Other".to_owned(), slug: "other".to_owned(), created_at: START };
        self.store.insert_team(team).await.expect("a team");
        let key = hutch_app::keys::create_key(&*self.store, &self.clock, id, "other").await.expect("a key");
        key.value.expose().to_owned()
    }

    pub async fn get_as(&self, key: &str, path: &str) -> Reply {
        let request =
            Request::builder().uri(path).header("x-api-key", key).body(Body::empty()).expect("a request");
        self.send(request).await
    }
}

pub fn chunked(body: &str) -> Body {
    let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
        body.as_bytes().chunks(7).map(|piece| Ok(piece.to_vec())).collect();
    Body::from_stream(futures::stream::iter(pieces))
}

pub fn resources() -> Resources {
    Resources { vcpus: 2, memory_mib: 512, disk_mib: 1024, max_processes: 256 }
}

/// Stores a template with one ready build, tagged `default` and `v1`.
pub async fn add_template(store: &dyn Store, team: TeamId, id: &str, name: &str, public: bool) -> BuildId {
    let id: TemplateId = id.parse().expect("a template id");
    let template = Template {
        id: id.clone(),
        team,
        names: vec![name.to_owned()],
        public,
        created_at: START,
        updated_at: START,
        spawn_count: 0,
        last_spawned_at: None,
        build_count: 0,
    };
    store.upsert_template(template).await.expect("a template");
    let build = TemplateBuild {
        id: BuildId::random(),
        template: id,
        status: "ready".to_owned(),
        resources: resources(),
        envd_version: "0.6.13".to_owned(),
        created_at: START,
        updated_at: START,
        finished_at: Some(START),
    };
    let build_id = build.id;
    store.insert_build(build, &["default".to_owned(), "v1".to_owned()]).await.expect("a build");
    build_id
}

/// Waits until something is so; a test that waits for more than ten seconds fails.
pub async fn wait_for<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(10), waiting).await.is_err() {
        panic!("waited in vain for {what}");
    }
}

impl World {
    /// The slug of the team.
    pub async fn store_slug(&self) -> String {
        self.store.team(self.team).await.expect("a team").slug
    }
}
