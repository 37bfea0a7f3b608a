//! Boots one instance in a task of its own, which nobody can cancel: whoever waited may leave, the instance is never
//! lost track of.

use std::sync::Arc;

use hutch_runtime::{Instance, InstanceSpec};
use hutch_types::{InstanceId, Secret};

use super::{Key, Pool, Warm};
use crate::envd::{Call, Envd, Known};
use crate::error::StartError;
use crate::labels::Owner;
use crate::shared::Shared;
use crate::work::Job;

/// A boot under way. Dropping it without a result, as a panic would, fails it.
struct Boot {
    pool: Arc<Pool>,
    key: Key,
    is_open: bool,
    _job: Job,
}

impl Boot {
    fn finish(&mut self, result: Result<Warm, StartError>) {
        if std::mem::take(&mut self.is_open) {
            self.pool.booted(self.key, result);
        }
    }
}

impl Drop for Boot {
    fn drop(&mut self) {
        self.finish(Err(StartError::Lost));
    }
}

/// Boots an instance for `key`; [`Pool::booted`] is told how it went.
pub(super) fn spawn(pool: &Arc<Pool>, key: Key) {
    let shared = pool.shared.clone();
    let mut boot = Boot { pool: pool.clone(), key, is_open: true, _job: shared.work.begin() };
    shared.supervisor.clone().spawn("boot", async move {
        let id = InstanceId::random();
        let spec = InstanceSpec {
            id: id.clone(),
            build_id: key.build,
            resources: key.resources,
            secret: Secret::random(32),
        };
        let limit = shared.config.boot_timeout;
        // Never dropped midway, except by a shutdown, after which an adoption cleans up.
        let mut start = shared.runtime.start(spec);
        let started = match tokio::time::timeout(limit, &mut start).await {
            Ok(result) => result.map_err(StartError::Runtime),
            Err(_) => {
                tracing::warn!(instance = %id, "the runtime takes too long to start an instance");
                boot.finish(Err(StartError::BootTimedOut(limit)));
                tokio::select! {
                    late = &mut start => {
                        if let Ok(instance) = late {
                            shared.reap(&*instance).await;
                        }
                    }
                    () = shared.closing.cancelled() => {}
                }
                return;
            }
        };
        let result = match started {
            Ok(instance) => match make_ready(&shared, &instance).await {
                Ok(envd) => Ok(Warm { instance, envd }),
                Err(error) => {
                    shared.reap(&*instance).await;
                    Err(error)
                }
            },
            Err(error) => Err(error),
        };
        boot.finish(result);
    });
}

/// Waits until envd answers, and notes meanwhile that the instance is nobody's.
async fn make_ready(shared: &Shared, instance: &Arc<dyn Instance>) -> Result<Envd, StartError> {
    let limit = shared.config.step_timeout;
    let label = async {
        let step = "label an instance";
        match tokio::time::timeout(limit, instance.set_labels(Owner::Pool.to_labels())).await {
            Ok(result) => result.map_err(|source| StartError::Step { step, source }),
            Err(_) => Err(StartError::StepTimedOut { step, limit }),
        }
    };
    let answer = async {
        let mut envd = Envd::new(&**instance);
        let within = shared.config.boot_timeout;
        envd.call_until(&Call::health(), within, Known::Booting).await.map_err(StartError::Envd)?;
        Ok(envd)
    };
    tokio::select! {
        both = async { tokio::try_join!(label, answer) } => both.map(|((), envd)| envd),
        _ = instance.exited() => Err(StartError::Died),
    }
}
