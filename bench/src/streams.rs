//! Commands: their round trip next to a plain one on the same link, and a lot of output.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::ensure;
use hutch_bench::api::{Api, Created};
use hutch_bench::guest::{self, Guest};
use hutch_bench::memory::Watch;
use hutch_bench::stats::{Table, median, ms};

const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 5203;
const OUTPUT: usize = 100 * 1000 * 1000;
const OUTPUT_ROUNDS: usize = 5;

/// Round trips of commands on a kept connection, in turns with round trips to a trivial HTTP server inside the same sandbox.
pub async fn measure(api: &Api, rounds: usize, server: u32, table: &mut Table) -> anyhow::Result<()> {
    let sandbox = api.create("base").await?;
    let outcome = commands(&sandbox, rounds, server, table).await;
    api.kill(&sandbox).await?;
    outcome
}

async fn commands(sandbox: &Created, rounds: usize, server: u32, table: &mut Table) -> anyhow::Result<()> {
    let guest = Guest::find(sandbox).await?;
    let mut raw_connection = RoundTrips::connect(guest.listen(PORT, 1, guest::answer_requests)?)?;
    let [mut raw, mut exec, mut shell] = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        raw.push(tokio::task::block_in_place(|| raw_connection.once())?);
        exec.push(sandbox.client.start("/bin/true", &[], LIMIT).await?.total);
        shell.push(sandbox.client.run("true", LIMIT).await?.total);
    }
    table.note(&format!(
        "a command's round trip (p50) is {:.2} ms above the link's own HTTP round trip, {:.2} ms with a login shell",
        ms(median(&exec)) - ms(median(&raw)),
        ms(median(&shell)) - ms(median(&raw))
    ));
    table.add("raw: HTTP round trip on the sandbox's link", raw);
    table.add("exec /bin/true on an existing sandbox", exec);
    table.add("exec bash -l -c true on an existing sandbox", shell);

    let watch = Watch::start(&[server, guest.envd]);
    let mut output = Vec::new();
    for _ in 0..OUTPUT_ROUNDS {
        let size = OUTPUT.to_string();
        let ran = sandbox.client.start("/usr/bin/head", &["-c", &size, "/dev/zero"], LIMIT).await?;
        ensure!(ran.stdout.len() == OUTPUT, "{} bytes of output came", ran.stdout.len());
        output.push(ran.total);
    }
    for (name, used) in ["server", "envd"].iter().zip(watch.finish()) {
        table.note(&format!("{name} during 100 MB of output (PSS): {used}"));
    }
    table.add("100 MB of a command's output", output);
    Ok(())
}

/// A kept connection to a trivial server.
struct RoundTrips(TcpStream);

impl RoundTrips {
    fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(Self(stream))
    }

    fn once(&mut self) -> anyhow::Result<Duration> {
        let started = Instant::now();
        self.0.write_all(b"GET / HTTP/1.1\r\nhost: sandbox\r\n\r\n")?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok") {
            let mut buffer = [0; 512];
            let n = self.0.read(&mut buffer)?;
            ensure!(n > 0, "the raw server closed the connection");
            answer.extend_from_slice(buffer.get(..n).unwrap_or_default());
        }
        Ok(started.elapsed())
    }
}
