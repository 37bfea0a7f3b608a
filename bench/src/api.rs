//! The few REST calls that the measurements make, on kept connections as SDKs have them.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hutch_envd_client::EnvdClient;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

#[derive(Debug, Clone)]
pub struct Api {
    pub url: String,
    key: String,
    pub http: Client<HttpConnector, Full<Bytes>>,
}

/// A created sandbox.
#[derive(Debug)]
pub struct Created {
    pub id: String,
    pub token: String,
    pub client: EnvdClient,
}

impl Api {
    pub fn new(url: &str, key: &str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let http = Client::builder(TokioExecutor::new()).build(connector);
        Self { url: url.trim_end_matches('/').to_owned(), key: key.to_owned(), http }
    }

    pub async fn create(&self, template: &str) -> anyhow::Result<Created> {
        self.create_for(template, 300).await
    }

    /// A sandbox that lives for `seconds`, unless it is killed before.
    pub async fn create_for(&self, template: &str, seconds: u64) -> anyhow::Result<Created> {
        let order = json!({"templateID": template, "timeout": seconds});
        let (status, body) = self.call(Method::POST, "/v2/sandboxes", order).await?;
        if status != 201 {
            bail!("create answered {status}: {body}");
        }
        let text = |name: &str| {
            body[name].as_str().map(str::to_owned).with_context(|| format!("no {name} in the answer"))
        };
        let (id, token) = (text("sandboxID")?, text("envdAccessToken")?);
        let client = EnvdClient::through_edge(&self.url, &id, &token)?;
        Ok(Created { id, token, client })
    }

    pub async fn kill(&self, sandbox: &Created) -> anyhow::Result<()> {
        let (status, body) =
            self.call(Method::DELETE, &format!("/sandboxes/{}", sandbox.id), Value::Null).await?;
        if status != 204 {
            bail!("kill answered {status}: {body}");
        }
        Ok(())
    }

    /// Waits until the warm pool is full again, as far as that can be told from outside: creates are quick and some time has passed.
    pub async fn wait_until_warm(&self) -> anyhow::Result<()> {
        // The pool is refilled when no create has come for a moment; nothing on the wire tells when it is done.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let started = Instant::now();
            let sandbox = self.create("base").await?;
            let took = started.elapsed();
            self.kill(&sandbox).await?;
            if took < Duration::from_millis(25) || Instant::now() > deadline {
                tokio::time::sleep(Duration::from_secs(2)).await;
                return Ok(());
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn call(&self, method: Method, path: &str, body: Value) -> anyhow::Result<(u16, Value)> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("x-api-key", &self.key)
            .header("content-type", "application/json")
            .body(Full::new(body))?;
        let response = self.http.request(request).await?;
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await?.to_bytes();
        Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
    }
}
