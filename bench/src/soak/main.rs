//! Holds many command streams open on many sandboxes for minutes: pipes, terminals and slow readers, mixed by a seed. Every byte is
//! compared by hash; stalls, descriptors and memory are counted. Ends with 1 when something was lost, stalled or left behind.

mod count;
mod script;
mod stream;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use futures::future::join_all;
use hutch_bench::api::{Api, Created};
use hutch_bench::guest::Guest;
use hutch_bench::memory::Watch;
use hutch_envd_client::EnvdClient;

use crate::count::Counts;
use crate::script::{Kind, Random};
use crate::stream::Seen;

#[derive(Debug, Parser)]
#[command(about = "Holds many command streams open for minutes and compares every byte")]
struct Args {
    /// The server's address, `http://host:port`.
    #[arg(long)]
    url: String,
    /// An API key.
    #[arg(long)]
    api_key: String,
    /// The server's process, for its memory and descriptors.
    #[arg(long)]
    pid: u32,
    /// Sandboxes that the streams are spread over.
    #[arg(long, default_value_t = 20)]
    sandboxes: usize,
    /// Streams at a time.
    #[arg(long, default_value_t = 200)]
    streams: usize,
    /// How long new commands are started.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Decides what every command prints, and when.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The longest silence, beyond a command's own pauses, that is no fault.
    #[arg(long, default_value_t = 10)]
    stall_seconds: u64,
}

/// A command that has not ended after this is a fault; the longest lasts less than a minute by itself.
const COMMAND_LIMIT: Duration = Duration::from_secs(180);
/// Descriptors of the server beyond those of before that are no leak: kept connections of others.
const SPARE_DESCRIPTORS: usize = 16;
/// The same for memory in KiB: allocators keep some.
const SPARE_SERVER_KIB: u64 = 64 << 10;
const SPARE_ENVD_KIB: u64 = 8 << 10;
/// How long descriptors may take to go; connections that are kept count.
const SETTLE: Duration = Duration::from_secs(90);

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    anyhow::ensure!(args.sandboxes > 0 && args.streams > 0, "a soak needs sandboxes and streams");
    let api = Api::new(&args.url, &args.api_key);
    let mut sandboxes = Vec::new();
    let outcome = match fill(&api, &args, &mut sandboxes).await {
        Ok(()) => soak(&args, &sandboxes).await,
        Err(error) => Err(error),
    };
    for sandbox in &sandboxes {
        if let Err(error) = api.kill(sandbox).await {
            eprintln!("left behind: {}: {error:#}", sandbox.id);
        }
    }
    let faults = outcome?;
    for fault in faults.iter().take(20) {
        println!("FAULT: {fault}");
    }
    println!("soak: {}", if faults.is_empty() { "passed" } else { "failed" });
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn fill(api: &Api, args: &Args, sandboxes: &mut Vec<Created>) -> anyhow::Result<()> {
    for _ in 0..args.sandboxes {
        sandboxes.push(api.create_for("base", args.seconds + 600).await?);
    }
    // What the first command makes once, such as connections and threads, is no leak.
    for sandbox in sandboxes {
        sandbox.client.run("true", COMMAND_LIMIT).await?;
    }
    Ok(())
}

/// Runs the streams, prints what they did, and returns what was wrong.
async fn soak(args: &Args, sandboxes: &[Created]) -> anyhow::Result<Vec<String>> {
    let mut guests = Vec::new();
    for sandbox in sandboxes {
        guests.push(Guest::find(sandbox).await?.envd);
    }
    let before = Counts::of(args.pid, &guests);
    let watch = Watch::start(&[args.pid]);
    println!(
        "soak: {} streams on {} sandboxes for {} s, seed {}",
        args.streams, args.sandboxes, args.seconds, args.seed
    );

    let mut random = Random::new(args.seed);
    let until = Instant::now() + Duration::from_secs(args.seconds);
    let streams = (0..args.streams).zip(sandboxes.iter().cycle()).map(|(i, sandbox)| {
        let kind = match i % 20 {
            0 => Kind::Slow,
            1..=3 => Kind::Terminal,
            _ => Kind::Pipe,
        };
        // A client of its own: connections that it keeps end with it, and do not count as a leak.
        let client = EnvdClient::through_edge(&args.url, &sandbox.id, &sandbox.token);
        let (seed, name) = (random.next(), format!("{}-{i}", args.seed));
        async move {
            let client = client?;
            anyhow::Ok(stream::run(client, kind, seed, name, until, COMMAND_LIMIT).await)
        }
    });
    let mut total = Seen::default();
    for seen in join_all(streams).await {
        let seen = seen?;
        total.commands += seen.commands;
        total.bytes += seen.bytes;
        total.stalls += seen.stalls;
        total.longest_stall = total.longest_stall.max(seen.longest_stall);
        total.faults.extend(seen.faults);
    }
    let most = watch.finish();
    println!(
        "{} commands, {:.1} MB, {} faults; longest stall {:.2} s, {} longer than 1 s",
        total.commands,
        total.bytes as f64 / 1e6,
        total.faults.len(),
        total.longest_stall.as_secs_f64(),
        total.stalls
    );
    if total.longest_stall > Duration::from_secs(args.stall_seconds) {
        total.faults.push(format!("a stream stood still for {:?}", total.longest_stall));
    }

    let after = settled(args, &guests, &before).await;
    println!("server: {} before, {} after", before.server, after.server);
    if let Some(used) = most.first() {
        println!("server during the streams (PSS): {used}");
    }
    println!("envd, all {}: {} before, {} after", guests.len(), before.envd, after.envd);
    println!("processes in the sandboxes: {} before, {} after", before.processes, after.processes);
    total.faults.extend(leaks(&before, &after, guests.len()));
    Ok(total.faults)
}

/// The counts once descriptors have gone back, or when they have had their time.
async fn settled(args: &Args, guests: &[u32], before: &Counts) -> Counts {
    let deadline = Instant::now() + SETTLE;
    loop {
        let now = Counts::of(args.pid, guests);
        if leaks(before, &now, guests.len()).is_empty() || Instant::now() > deadline {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

fn leaks(before: &Counts, after: &Counts, guests: usize) -> Vec<String> {
    let many = u64::try_from(guests).unwrap_or(1);
    let mut leaks = Vec::new();
    let mut check = |what: &str, was: u64, is: u64, spare: u64| {
        if is > was + spare {
            leaks.push(format!("{what}: {was} before, {is} after"));
        }
    };
    let wide = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let descriptors = |c: &count::Usage| wide(c.descriptors);
    check(
        "descriptors of the server",
        descriptors(&before.server),
        descriptors(&after.server),
        wide(SPARE_DESCRIPTORS),
    );
    check("descriptors of envd", descriptors(&before.envd), descriptors(&after.envd), wide(guests));
    check("memory of the server in KiB", before.server.pss_kib, after.server.pss_kib, SPARE_SERVER_KIB);
    check("memory of envd in KiB", before.envd.pss_kib, after.envd.pss_kib, SPARE_ENVD_KIB * many);
    check("processes in the sandboxes", wide(before.processes), wide(after.processes), 0);
    leaks
}
