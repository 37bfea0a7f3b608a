//! The filesystem service: what is where, and what changes.
//!
//! As with [`crate::files`], envd acts as root and gives what it creates to the user of the request. Everything that
//! waits for a disk runs off the async threads.

pub(crate) mod dirs;
mod entry;
pub(crate) mod fault;
mod list;
mod remove;
mod rename;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use buffa::MessageField;
use connectrpc::{ConnectError, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream};
use http::{HeaderMap, header};
use hutch_proto::filesystem as pb;
use hutch_proto::filesystem::EntryInfo;

use crate::auth::request_user;
use crate::paths;
use crate::process::keepalive_interval;
use crate::state::State;
use crate::users::User;
use entry::{Names, describe};
use fault::{Fault, rpc_error};
use watch::{Options, Registry, Watcher};

/// Answers `filesystem.Filesystem`.
#[derive(Debug)]
pub struct FilesystemService {
    state: Arc<State>,
    watchers: Arc<Registry>,
}

impl FilesystemService {
    /// The service of this instance.
    pub fn new(state: Arc<State>) -> Self {
        Self { state, watchers: Arc::default() }
    }

    /// Runs `work` for the user of a request where blocking is allowed.
    async fn run<T: Send + 'static>(
        &self,
        ctx: &RequestContext,
        work: impl FnOnce(&Site) -> Result<T, ConnectError> + Send + 'static,
    ) -> Result<T, ConnectError> {
        let (state, headers) = (self.state.clone(), ctx.headers().clone());
        let working = tokio::task::spawn_blocking(move || {
            let user = request_user(&state, &headers)?;
            work(&Site { state, user })
        });
        working.await.unwrap_or_else(|_| Err(ConnectError::internal("the request failed unexpectedly")))
    }

    /// Starts a watcher for a request.
    async fn watch(
        &self,
        ctx: &RequestContext,
        path: String,
        options: Options,
    ) -> Result<Watcher, ConnectError> {
        self.run(ctx, move |site| Watcher::start(&site.state, &site.path(&path)?, options)).await
    }
}

/// On whose behalf, and where.
struct Site {
    state: Arc<State>,
    user: User,
}

impl Site {
    fn path(&self, path: &str) -> Result<PathBuf, ConnectError> {
        paths::resolve(&self.user, &self.state, path)
            .map_err(|e| ConnectError::invalid_argument(e.to_string()))
    }
}

fn stat(path: &Path) -> Result<EntryInfo, ConnectError> {
    describe(path, &mut Names::default()).map_err(|error| match Fault::of(&error) {
        // Below a file there is nothing.
        Fault::NotADirectory => ConnectError::not_found(format!("file not found: '{}'", path.display())),
        _ => rpc_error("describing", path, &error),
    })
}

fn make_dir(path: &Path, user: &User) -> Result<EntryInfo, ConnectError> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            Err(ConnectError::already_exists(format!("directory already exists: {}", path.display())))
        }
        Ok(_) => Err(ConnectError::invalid_argument(format!(
            "path already exists but it is not a directory: {}",
            path.display()
        ))),
        Err(_) => {
            rename::ensure_dirs(path, user)?;
            stat(path)
        }
    }
}

/// Old Python SDKs, which name themselves exactly so, fail on fields that they do not know.
fn is_legacy(headers: &HeaderMap) -> bool {
    headers.get(header::USER_AGENT).is_some_and(|agent| agent == "connect-python")
}

/// An entry as this client can read it.
fn shown(entry: EntryInfo, legacy: bool) -> EntryInfo {
    if !legacy {
        return entry;
    }
    EntryInfo { name: entry.name, r#type: entry.r#type, path: entry.path, ..EntryInfo::default() }
}

/// An answer, marked when it was cut down for an old SDK.
fn answer<T>(body: T, legacy: bool) -> ServiceResult<T> {
    Ok(marked(Response::new(body), legacy))
}

fn marked<T>(response: Response<T>, legacy: bool) -> Response<T> {
    if legacy { response.with_header("x-e2b-legacy-sdk", "true") } else { response }
}

#[expect(
    refining_impl_trait,
    reason = "the trait allows encodable bodies of any kind; these are the messages"
)]
impl pb::Filesystem for FilesystemService {
    async fn stat(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, pb::StatRequest>,
    ) -> ServiceResult<pb::StatResponse> {
        let (path, legacy) = (request.path.to_owned(), is_legacy(ctx.headers()));
        let entry = self.run(&ctx, move |site| stat(&site.path(&path)?)).await?;
        let entry = MessageField::some(shown(entry, legacy));
        answer(pb::StatResponse { entry, ..Default::default() }, legacy)
    }

    async fn make_dir(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, pb::MakeDirRequest>,
    ) -> ServiceResult<pb::MakeDirResponse> {
        let (path, legacy) = (request.path.to_owned(), is_legacy(ctx.headers()));
        let entry = self.run(&ctx, move |site| make_dir(&site.path(&path)?, &site.user)).await?;
        let entry = MessageField::some(shown(entry, legacy));
        answer(pb::MakeDirResponse { entry, ..Default::default() }, legacy)
    }

    async fn r#move(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, pb::MoveRequest>,
    ) -> ServiceResult<pb::MoveResponse> {
        let (source, destination) = (request.source.to_owned(), request.destination.to_owned());
        let legacy = is_legacy(ctx.headers());
        let moved = self.run(&ctx, move |site| {
            let (source, destination) = (site.path(&source)?, site.path(&destination)?);
            rename::rename(&source, &destination, &site.user)?;
            stat(&destination)
        });
        let entry = MessageField::some(shown(moved.await?, legacy));
        answer(pb::MoveResponse { entry, ..Default::default() }, legacy)
    }

    async fn list_dir(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, pb::ListDirRequest>,
    ) -> ServiceResult<pb::ListDirResponse> {
        let (path, depth) = (request.path.to_owned(), request.depth);
        let legacy = is_legacy(ctx.headers());
        let entries = self.run(&ctx, move |site| list::list(&site.path(&path)?, depth)).await?;
        let entries = entries.into_iter().map(|entry| shown(entry, legacy)).collect();
        answer(pb::ListDirResponse { entries, ..Default::default() }, legacy)
    }

    async fn remove(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, pb::RemoveRequest>,
    ) -> ServiceResult<pb::RemoveResponse> {
        let path = request.path.to_owned();
        self.run(&ctx, move |site| remove::remove(&site.path(&path)?)).await?;
        answer(pb::RemoveResponse::default(), is_legacy(ctx.headers()))
    }

    async fn watch_dir(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, pb::WatchDirRequest>,
    ) -> ServiceResult<ServiceStream<pb::WatchDirResponse>> {
        let legacy = is_legacy(ctx.headers());
        let options = Options {
            recursive: request.recursive,
            include_entry: request.include_entry && !legacy,
            allow_network_mounts: request.allow_network_mounts,
        };
        let watcher = self.watch(&ctx, request.path.to_owned(), options).await?;
        let events = watch::stream(watcher, keepalive_interval(ctx.headers()));
        Ok(marked(Response::stream(events).compress(false), legacy))
    }

    async fn create_watcher(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, pb::CreateWatcherRequest>,
    ) -> ServiceResult<pb::CreateWatcherResponse> {
        let legacy = is_legacy(ctx.headers());
        let options = Options {
            recursive: request.recursive,
            include_entry: request.include_entry && !legacy,
            allow_network_mounts: request.allow_network_mounts,
        };
        let watcher = self.watch(&ctx, request.path.to_owned(), options).await?;
        let watcher_id = self.watchers.add(watcher)?;
        answer(pb::CreateWatcherResponse { watcher_id, ..Default::default() }, legacy)
    }

    async fn get_watcher_events(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, pb::GetWatcherEventsRequest>,
    ) -> ServiceResult<pb::GetWatcherEventsResponse> {
        let watcher = self.watchers.get(request.watcher_id)?;
        let events = self.run(&ctx, move |_| watcher.fetch_now()).await?;
        answer(pb::GetWatcherEventsResponse { events, ..Default::default() }, is_legacy(ctx.headers()))
    }

    async fn remove_watcher(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, pb::RemoveWatcherRequest>,
    ) -> ServiceResult<pb::RemoveWatcherResponse> {
        let watcher = self.watchers.remove(request.watcher_id)?;
        // The kernel may have many watches to undo.
        let ending = move |_: &Site| {
            drop(watcher);
            Ok(())
        };
        self.run(&ctx, ending).await?;
        answer(pb::RemoveWatcherResponse::default(), is_legacy(ctx.headers()))
    }
}
