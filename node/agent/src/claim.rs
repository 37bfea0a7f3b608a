//! Makes a warm instance the sandbox of a request.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hutch_node_api::StartSandbox;
use hutch_runtime::RuntimeError;
use hutch_types::PauseMode;
use hutch_types::ids::random_hex;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::envd::{Call, Known};
use crate::error::StartError;
use crate::labels::{Owner, SandboxLabels};
use crate::pool::Warm;
use crate::shared::Shared;

const MIB: u64 = 1 << 20;

/// What envd is told. It replaces whatever it was told before.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Init<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    env_vars: Option<&'a BTreeMap<String, String>>,
    access_token: &'a str,
    timestamp: String,
    default_user: &'a str,
    default_workdir: &'a str,
    hostname: &'a str,
    sandbox_id: &'a str,
    template_id: &'a str,
    build_id: String,
    #[serde(rename = "hyperloopIP", skip_serializing_if = "Option::is_none")]
    guest_service: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    machine_id: Option<String>,
    memory_total_bytes: u64,
    cpu_count: u32,
    disk_total_bytes: u64,
}

/// Gives `warm` the identity of `request`: labels, host name, network policy, envd's knowledge.
///
/// The label comes first and alone. Once anything of the sandbox has reached the instance, no later daemon may take
/// it for an untouched one. The other steps do not depend on one another.
///
/// After an error the instance is in an undefined state and must be killed.
pub(crate) async fn personalise(
    shared: &Shared,
    warm: &mut Warm,
    request: &StartSandbox,
    cancel: &CancellationToken,
) -> Result<(), StartError> {
    let instance = warm.instance.clone();
    let limit = shared.config.step_timeout;
    let labels = Owner::Sandbox(SandboxLabels {
        sandbox_id: request.sandbox_id.clone(),
        template_id: request.template_id.clone(),
        build_id: request.build_id,
        logs_cursor: 0,
        ingress: Arc::new(request.ingress.clone()),
    });
    let name = request.sandbox_id.as_str();
    let init = init_call(shared, request, Life::New)?;

    let all = async {
        step("label the instance", limit, instance.set_labels(labels.to_labels())).await?;
        tokio::try_join!(
            step("set the host name", limit, instance.set_hostname(name)),
            step("set the network policy", limit, instance.set_network(&request.network)),
            async {
                let within = shared.config.init_timeout;
                warm.envd.call_until(&init, within, Known::Up).await.map(drop).map_err(StartError::Envd)
            },
        )?;
        Ok(())
    };
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(StartError::Stopped),
        result = all => result,
        _ = instance.exited() => Err(StartError::Died),
    }
}

/// Gives a resumed instance what it does not have any more: network policy, and envd's knowledge where it booted anew.
///
/// After an error the instance is in an undefined state.
pub(crate) async fn greet_again(
    shared: &Shared,
    warm: &mut Warm,
    request: &StartSandbox,
    mode: PauseMode,
) -> Result<(), StartError> {
    let instance = warm.instance.clone();
    let limit = shared.config.step_timeout;
    let init = init_call(shared, request, Life::Resumed(mode))?;
    let (within, known) = match mode {
        PauseMode::Full => (shared.config.init_timeout, Known::Up),
        PauseMode::Filesystem => (shared.config.boot_timeout, Known::Booting),
    };
    let all = async {
        let name = request.sandbox_id.as_str();
        tokio::try_join!(
            step("set the host name", limit, instance.set_hostname(name)),
            step("set the network policy", limit, instance.set_network(&request.network)),
            async { warm.envd.call_until(&init, within, known).await.map(drop).map_err(StartError::Envd) },
        )?;
        Ok(())
    };
    tokio::select! {
        result = all => result,
        _ = instance.exited() => Err(StartError::Died),
    }
}

/// Whom envd is told about.
#[derive(Clone, Copy)]
enum Life {
    /// A new sandbox.
    New,
    /// One that it may know already.
    Resumed(PauseMode),
}

fn init_call(shared: &Shared, request: &StartSandbox, life: Life) -> Result<Call, StartError> {
    let id = request.sandbox_id.as_str();
    let init = Init {
        // What was saved with the memory is kept.
        env_vars: (!matches!(life, Life::Resumed(PauseMode::Full))).then_some(&request.env),
        access_token: request.access_token.expose(),
        timestamp: shared.clock.now().to_rfc3339(),
        default_user: &shared.config.default_user,
        default_workdir: &shared.config.default_workdir,
        hostname: id,
        sandbox_id: id,
        template_id: request.template_id.as_str(),
        build_id: request.build_id.to_string(),
        guest_service: shared.config.guest_service,
        // It is a file, and stays with the sandbox.
        machine_id: matches!(life, Life::New).then(|| random_hex(16)),
        memory_total_bytes: u64::from(request.resources.memory_mib) * MIB,
        cpu_count: request.resources.vcpus,
        disk_total_bytes: u64::from(request.resources.disk_mib) * MIB,
    };
    let body = serde_json::to_vec(&init).map_err(|e| StartError::Step {
        step: "encode POST /init",
        source: RuntimeError::failed("encode", e),
    })?;
    Ok(Call::post_json("POST /init", "/init", body))
}

/// One step on an instance, with a deadline.
pub(crate) async fn step(
    step: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<(), RuntimeError>>,
) -> Result<(), StartError> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result.map_err(|source| StartError::Step { step, source }),
        Err(_) => Err(StartError::StepTimedOut { step, limit }),
    }
}
