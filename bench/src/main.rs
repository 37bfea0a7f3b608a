//! Measures what Hutch promises on a running server, next to the raw primitives measured in the same run. It prints a table, and
//! JSON to a file for comparisons. It asserts nothing: figures of a shared machine are no test.

mod raw;
mod streams;
mod transfer;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Parser, ValueEnum};
use futures::future::join_all;
use hutch_bench::api::{Api, Created};
use hutch_bench::memory;
use hutch_bench::stats::Table;
use serde_json::json;

#[derive(Debug, Parser)]
#[command(about = "Measures a running Hutch next to the raw primitives")]
struct Args {
    /// The server's address, `http://host:port`.
    #[arg(long)]
    url: String,
    /// An API key.
    #[arg(long)]
    api_key: String,
    /// The server's process, for its memory.
    #[arg(long)]
    pid: u32,
    /// The server's data directory: its template is the root of the raw measurements.
    #[arg(long)]
    data_dir: PathBuf,
    /// Rounds of sequential and staggered runs.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Sandboxes of the burst.
    #[arg(long, default_value_t = 20)]
    size: usize,
    /// Measure only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Where to write the figures as JSON.
    #[arg(long, default_value = "bench/results/latest.json")]
    json: PathBuf,
}

/// What can be measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Creates: one after the other, staggered, at once, and cold.
    Create,
    /// Commands and their output.
    Exec,
    /// Files up and down.
    Files,
    /// Memory of idle sandboxes.
    Memory,
}

/// What the public leaderboards of sandbox services time.
const FIRST_COMMAND: &str = "node -v";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let api = Api::new(&args.url, &args.api_key);
    let mut table = Table::default();

    let wants = |part| args.only.is_empty() || args.only.contains(&part);
    if wants(Part::Create) {
        creates(&api, &args, &mut table).await?;
    }
    if wants(Part::Exec) {
        streams::measure(&api, args.rounds * 5, args.pid, &mut table).await?;
    }
    if wants(Part::Files) {
        transfer::measure(&api, "bench-large", args.pid, &mut table).await?;
    }
    if wants(Part::Memory) {
        memory::measure(&api, args.pid, &mut table).await?;
    }

    print!("{}", table.render());
    if let Some(dir) = args.json.parent() {
        std::fs::create_dir_all(dir)?;
    }
    std::fs::write(&args.json, format!("{:#}\n", json!(table.to_json())))?;
    println!("\nfigures: {}", args.json.display());
    Ok(())
}

/// Creates in all their ways, next to runc alone.
async fn creates(api: &Api, args: &Args, table: &mut Table) -> anyhow::Result<()> {
    let raw =
        raw::Bundle::new(&args.data_dir).context("the raw measurements need the server's base layer")?;
    table.add("raw: runc run true", raw.run(args.rounds)?);
    table.add("raw: runc exec true", raw.exec(args.rounds)?);
    drop(raw);

    api.wait_until_warm().await?;
    let (mut create, mut first) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        let one = create_and_run(api).await?;
        create.push(one.create);
        first.push(one.first_output);
        // The pool refills between runs of a user, too; a burst is measured below.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    table.add("create (warm pool, sequential)", create);
    table.add("create to first output of node -v (sequential)", first);

    api.wait_until_warm().await?;
    let staggered = (0..args.rounds).map(|i| {
        let api = api.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(200) * u32::try_from(i).unwrap_or(u32::MAX)).await;
            create_and_run(&api).await
        }
    });
    let staggered = join_all(staggered).await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    table.add("create (staggered 200 ms)", staggered.iter().map(|r| r.create).collect());
    table
        .add("create to first output (staggered 200 ms)", staggered.iter().map(|r| r.first_output).collect());

    api.wait_until_warm().await?;
    burst(api, args.size, table).await?;

    table.add("create (cold: no pool)", cold(api, args.rounds.min(10)).await?);
    Ok(())
}

struct Run {
    create: Duration,
    first_output: Duration,
}

/// What a user waits for: from the create call to the first command's output. The sandbox is killed outside of the time.
async fn create_and_run(api: &Api) -> anyhow::Result<Run> {
    let started = Instant::now();
    let sandbox = api.create("base").await?;
    let create = started.elapsed();
    let ran = sandbox.client.run(FIRST_COMMAND, Duration::from_secs(60)).await;
    let first_output = started.elapsed();
    api.kill(&sandbox).await?;
    let ran = ran?;
    anyhow::ensure!(ran.exit_code == 0 && ran.stdout.starts_with(b"v"), "node -v printed {ran:?}");
    Ok(Run { create, first_output })
}

/// Many creates at once, far beyond the pool. Nothing is killed before all are done, so that the time is that of the creates.
async fn burst(api: &Api, size: usize, table: &mut Table) -> anyhow::Result<()> {
    let began = Instant::now();
    let results = join_all((0..size).map(|_| async {
        let sandbox = api.create("base").await?;
        let create = began.elapsed();
        let ran = sandbox.client.run(FIRST_COMMAND, Duration::from_secs(60)).await;
        anyhow::Ok((sandbox, Run { create, first_output: began.elapsed() }, ran))
    }))
    .await;
    let failed = results.iter().filter(|r| !matches!(r, Ok((_, _, Ok(ran))) if ran.exit_code == 0)).count();
    let done: Vec<_> = results.into_iter().flatten().collect();
    let last = done.iter().map(|(_, run, _)| run.create).max().unwrap_or_default();
    table.add(&format!("create (burst {size})"), done.iter().map(|(_, run, _)| run.create).collect());
    table.add(
        &format!("create to first output (burst {size})"),
        done.iter().map(|(_, r, _)| r.first_output).collect(),
    );
    table.note(&format!(
        "burst of {size}: {} completed, {failed} failed, the last create after {:.2} s",
        size - failed,
        last.as_secs_f64()
    ));
    for (sandbox, ..) in &done {
        api.kill(sandbox).await?;
    }
    Ok(())
}

/// Creates that the warm pool cannot serve: from the template `bench-cold`, which no pool holds.
async fn cold(api: &Api, rounds: usize) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        let started = Instant::now();
        let sandbox: Created = api.create("bench-cold").await?;
        times.push(started.elapsed());
        api.kill(&sandbox).await?;
    }
    Ok(times)
}
