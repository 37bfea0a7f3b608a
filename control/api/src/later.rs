//! Operations of the contract that this version answers with 501.

use axum::routing::MethodFilter;
use utoipa::openapi::HttpMethod;

/// Who may ask. The answer is the same, but a wrong API key is told first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// Needs an API key.
    Key,
    /// Needs the API key of the team that the sandbox of the path belongs to. That there is no such sandbox is told first, as the
    /// operation itself will: clients tell "gone" from "cannot" by it.
    Owner,
    /// Another scheme, which comes with the operation itself.
    Other,
}

/// One operation that comes later.
pub(crate) struct Later {
    pub(crate) method: HttpMethod,
    pub(crate) path: &'static str,
    /// What it does, as the beginning of "… is not supported by this version of Hutch".
    pub(crate) what: &'static str,
    pub(crate) asker: Asker,
}

const fn key(method: HttpMethod, path: &'static str, what: &'static str) -> Later {
    Later { method, path, what, asker: Asker::Key }
}

const fn owner(method: HttpMethod, path: &'static str, what: &'static str) -> Later {
    Later { method, path, what, asker: Asker::Owner }
}

const fn other(method: HttpMethod, path: &'static str, what: &'static str) -> Later {
    Later { method, path, what, asker: Asker::Other }
}

use HttpMethod::{Delete, Get, Patch, Post, Put};

/// All of them.
pub(crate) const LATER: &[Later] = &[
    owner(Post, "/sandboxes/{sandboxID}/fork", "forking sandboxes"),
    owner(Post, "/v2/sandboxes/{sandboxID}/fork", "forking sandboxes"),
    owner(Put, "/sandboxes/{sandboxID}/network", "changing the network of a running sandbox"),
    owner(Post, "/sandboxes/{sandboxID}/snapshots", "taking snapshots"),
    key(Get, "/snapshots", "listing snapshots"),
    key(Post, "/v3/templates", "building templates"),
    key(Post, "/v2/templates", "building templates"),
    key(Post, "/templates", "building templates"),
    key(Post, "/templates/{templateID}", "building templates"),
    key(Post, "/templates/{templateID}/builds/{buildID}", "building templates"),
    key(Post, "/v2/templates/{templateID}/builds/{buildID}", "building templates"),
    key(Get, "/templates/{templateID}/files/{hash}", "building templates"),
    key(Get, "/templates/{templateID}/builds/{buildID}/status", "building templates"),
    key(Get, "/templates/{templateID}/builds/{buildID}/logs", "building templates"),
    key(Delete, "/templates/{templateID}", "deleting templates"),
    key(Patch, "/templates/{templateID}", "publishing templates"),
    key(Patch, "/v2/templates/{templateID}", "publishing templates"),
    key(Post, "/templates/tags", "tagging templates"),
    key(Delete, "/templates/tags", "tagging templates"),
    key(Get, "/templates/{templateID}/tags", "listing the tags of a template"),
    key(Get, "/templates/{templateID}/tags/count", "listing the tags of a template"),
    key(Get, "/templates/{templateID}/tags/groups", "the history of tags"),
    key(Get, "/templates/{templateID}/tags/{tag}/assignments", "the history of tags"),
    key(Get, "/volumes", "volumes"),
    key(Post, "/volumes", "volumes"),
    key(Get, "/volumes/{volumeID}", "volumes"),
    key(Delete, "/volumes/{volumeID}", "volumes"),
    other(Get, "/volumecontent/{volumeID}/path", "volumes"),
    other(Patch, "/volumecontent/{volumeID}/path", "volumes"),
    other(Delete, "/volumecontent/{volumeID}/path", "volumes"),
    other(Get, "/volumecontent/{volumeID}/dir", "volumes"),
    other(Post, "/volumecontent/{volumeID}/dir", "volumes"),
    other(Get, "/volumecontent/{volumeID}/file", "volumes"),
    other(Put, "/volumecontent/{volumeID}/file", "volumes"),
    key(Get, "/secrets", "secrets"),
    key(Post, "/secrets", "secrets"),
    key(Get, "/secrets/{secretID}", "secrets"),
    key(Post, "/secrets/{secretID}", "secrets"),
    key(Delete, "/secrets/{secretID}", "secrets"),
    key(Get, "/teams/{teamID}/metrics", "team metrics"),
    key(Get, "/teams/{teamID}/metrics/max", "team metrics"),
    other(Get, "/api-keys", "managing API keys over the API"),
    other(Post, "/api-keys", "managing API keys over the API"),
    other(Patch, "/api-keys/{apiKeyID}", "managing API keys over the API"),
    other(Delete, "/api-keys/{apiKeyID}", "managing API keys over the API"),
    other(Post, "/access-tokens", "access tokens"),
    other(Delete, "/access-tokens/{accessTokenID}", "access tokens"),
    key(Get, "/events/sandboxes", "events"),
    key(Get, "/events/sandboxes/{sandboxID}", "events"),
    key(Get, "/events/webhooks", "webhooks"),
    key(Post, "/events/webhooks", "webhooks"),
    key(Get, "/events/webhooks/{webhookID}", "webhooks"),
    key(Patch, "/events/webhooks/{webhookID}", "webhooks"),
    key(Delete, "/events/webhooks/{webhookID}", "webhooks"),
    key(Get, "/events/webhooks/{webhookID}/deliveries", "webhooks"),
    key(Get, "/events/webhooks/{webhookID}/stats", "webhooks"),
    other(Get, "/nodes", "node administration"),
    other(Get, "/nodes/{nodeID}", "node administration"),
    other(Post, "/nodes/{nodeID}", "node administration"),
    other(Post, "/admin/teams/{teamID}/sandboxes/kill", "team administration"),
    other(Post, "/admin/teams/{teamID}/builds/cancel", "team administration"),
    other(Get, "/admin/sandboxes/running-counts", "team administration"),
    other(Post, "/admin/teams/{teamID}/api-keys", "team administration"),
    other(Delete, "/admin/teams/{teamID}/api-keys/{apiKeyID}", "team administration"),
    other(Get, "/clusters/{clusterID}/rigs", "clusters"),
    other(Put, "/clusters/{clusterID}/rigs/{rigID}/capacity", "clusters"),
    other(Get, "/clusters/{clusterID}/rigs/{rigID}/instances", "clusters"),
    other(Delete, "/clusters/{clusterID}/rigs/instances/{instanceID}", "clusters"),
    other(Get, "/clusters/{clusterID}/rigs/{rigID}/errors", "clusters"),
];

impl Later {
    /// The method, as the router wants it.
    pub(crate) fn filter(&self) -> MethodFilter {
        match self.method {
            Delete => MethodFilter::DELETE,
            Patch => MethodFilter::PATCH,
            Post => MethodFilter::POST,
            Put => MethodFilter::PUT,
            _ => MethodFilter::GET,
        }
    }
}
