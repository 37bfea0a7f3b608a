//! No secret is printed or logged.

use std::io::Write;
use std::sync::Arc;

use hutch_node_api::{NodeClient, RouteSource};
use hutch_runtime_fake::{Fault, Step};
use hutch_types::Secret;
use parking_lot::Mutex;

use crate::support::Host;

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn no_secret_is_logged_or_shown_in_an_error_or_label() {
    let captured = Captured::default();
    let sink = captured.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || sink.clone());
    // All of the agent runs on this thread.
    let _guard = tracing::subscriber::set_default(subscriber.finish());

    let host = Host::with(|c| c.sample_interval = std::time::Duration::from_millis(10)).await;
    let mut shown = String::new();
    let mut secrets = Vec::new();
    for fault in [None, Some(Step::Hostname), Some(Step::Network)] {
        host.fill_pool(1).await;
        let mut request = host.request();
        request.access_token = Secret::new("token-in-the-clear");
        request.env.insert("API_KEY".into(), "env-in-the-clear".into());
        if let Some(step) = fault {
            host.kernel.inject(step, Fault::Fail(2));
        }
        let result = host.agent.start_sandbox(request.clone()).await;
        shown.push_str(&format!("{result:?} {:?}", host.agent));
        if let Some(route) = host.agent.route(&request.sandbox_id).await {
            shown.push_str(&format!("{route:?}"));
            secrets.push(route.secret.expose().to_owned());
        }
    }
    for id in host.kernel.instances() {
        let view = host.kernel.view(&id).unwrap();
        shown.push_str(&format!("{:?} {view:?}", view.labels));
        secrets.push(view.spec.secret.expose().to_owned());
    }
    let host = host.restart(|_| {}).await;
    host.agent.destroy_all().await.unwrap();

    let log = String::from_utf8(captured.0.lock().clone()).unwrap();
    assert!(log.contains("running") && log.contains("could not be claimed"), "the log was captured: {log}");
    assert!(secrets.len() >= 2);
    secrets.extend(["token-in-the-clear".to_owned(), "env-in-the-clear".to_owned()]);
    for secret in secrets {
        assert!(!log.contains(&secret), "{secret} in the log");
        assert!(!shown.contains(&secret), "{secret} in {shown}");
    }
}
