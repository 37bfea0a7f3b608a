//! Files up and down through `/files`, next to a plain TCP copy over the same sandbox's link, in turns.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hutch_bench::api::{Api, Created};
use hutch_bench::guest::{self, Guest};
use hutch_bench::memory::Watch;
use hutch_bench::stats::{Table, fastest, median, ms};

/// The sizes, how often each is copied, and how they are called.
const SIZES: [(usize, usize, &str); 2] = [(100 * 1000 * 1000, 7, "100 MB"), (1 << 30, 5, "1 GiB")];
const DOWN_PORT: u16 = 5201;
const UP_PORT: u16 = 5202;
const BOUNDARY: &str = "hutch-bench-boundary";
const LIMIT: Duration = Duration::from_secs(120);

/// Copies into and out of a sandbox of `template`, which has memory enough to hold the file in its page cache: a disk that is slower
/// than the network would be measured otherwise.
pub async fn measure(api: &Api, template: &str, server: u32, table: &mut Table) -> anyhow::Result<()> {
    let sandbox = api.create(template).await?;
    let outcome = copies(api, &sandbox, server, table).await;
    api.kill(&sandbox).await?;
    outcome
}

async fn copies(api: &Api, sandbox: &Created, server: u32, table: &mut Table) -> anyhow::Result<()> {
    let guest = Guest::find(sandbox).await?;
    let way = Way::new(api, sandbox)?;
    for (size, rounds, called) in SIZES {
        let raw_up = guest.listen(UP_PORT, rounds, guest::swallow)?;
        let raw_down = guest.listen(DOWN_PORT, rounds, move |stream| guest::pour(stream, size))?;
        let [mut up, mut octets, mut form, mut down, mut get] = [const { Vec::new() }; 5];
        let watch = Watch::start(&[server, guest.envd]);
        for _ in 0..rounds {
            up.push(blocking(move || copy_up(raw_up, size)).await?);
            remove(sandbox).await?;
            octets.push(way.upload(size, Form::Octets).await?);
            remove(sandbox).await?;
            form.push(way.upload(size, Form::Multipart).await?);
            down.push(blocking(move || copy_down(raw_down, size)).await?);
            get.push(way.download(size).await?);
        }
        let used = watch.finish();
        remove(sandbox).await?;
        for (of, pick) in [("medians", median as fn(&[Duration]) -> Duration), ("fastest rounds", fastest)] {
            let ratio = |raw: &[Duration], ours: &[Duration]| ms(pick(raw)) / ms(pick(ours));
            table.note(&format!(
                "{called} against raw TCP on the same link, {of}: upload {:.2}, as multipart {:.2}, download {:.2} of its speed",
                ratio(&up, &octets),
                ratio(&up, &form),
                ratio(&down, &get)
            ));
        }
        for (name, used) in ["server", "envd"].iter().zip(used) {
            table.note(&format!("{name} during the copies of {called} (PSS): {used}"));
        }
        table.add(&format!("raw: {called} over TCP into the sandbox"), up);
        table.add(&format!("upload {called}"), octets);
        table.add(&format!("upload {called} (multipart)"), form);
        table.add(&format!("raw: {called} over TCP out of the sandbox"), down);
        table.add(&format!("download {called}"), get);
    }
    Ok(())
}

/// A file that is overwritten gives its old space back first, which is no part of a copy.
async fn remove(sandbox: &Created) -> anyhow::Result<()> {
    let removed = sandbox.client.start("/bin/rm", &["-f", PATH], LIMIT).await?;
    ensure!(removed.exit_code == 0, "rm: {}", String::from_utf8_lossy(&removed.stderr));
    Ok(())
}

const PATH: &str = "/home/user/bench.bin";

#[derive(Debug, Clone, Copy)]
enum Form {
    Octets,
    Multipart,
}

/// How the sandbox's files are reached: plain HTTP/1.1 on a socket, so that the client costs next to nothing.
#[derive(Debug, Clone)]
struct Way {
    edge: SocketAddr,
    head: String,
}

impl Way {
    fn new(api: &Api, sandbox: &Created) -> anyhow::Result<Self> {
        let host = api.url.strip_prefix("http://").context("the server's address is no http:// address")?;
        let head = format!(
            "/files?path={PATH}&username=user HTTP/1.1\r\nhost: {host}\r\ne2b-sandbox-id: {}\r\ne2b-sandbox-port: 49983\r\n\
             x-access-token: {}\r\nconnection: close\r\n",
            sandbox.id, sandbox.token
        );
        Ok(Self { edge: host.parse().context("the server's address is no IP address and port")?, head })
    }

    async fn upload(&self, size: usize, form: Form) -> anyhow::Result<Duration> {
        let way = self.clone();
        blocking(move || {
            let (kind, before, after) = match form {
                Form::Octets => ("application/octet-stream".to_owned(), String::new(), String::new()),
                Form::Multipart => (
                    format!("multipart/form-data; boundary={BOUNDARY}"),
                    format!(
                        "--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"bench.bin\"\r\n\r\n"
                    ),
                    format!("\r\n--{BOUNDARY}--\r\n"),
                ),
            };
            let length = before.len() + size + after.len();
            let mut stream = connect(way.edge)?;
            let started = Instant::now();
            let head = &way.head;
            write!(
                stream,
                "POST {head}content-type: {kind}\r\ncontent-length: {length}\r\n\r\n{before}"
            )?;
            guest::send(&mut stream, size)?;
            stream.write_all(after.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            ensure!(answer.starts_with("HTTP/1.1 200"), "the upload answered {answer}");
            Ok(started.elapsed())
        })
        .await
    }

    async fn download(&self, size: usize) -> anyhow::Result<Duration> {
        let way = self.clone();
        blocking(move || {
            let mut stream = connect(way.edge)?;
            let started = Instant::now();
            write!(stream, "GET {}\r\n", way.head)?;
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            stream.read_line(&mut line)?;
            ensure!(line.starts_with("HTTP/1.1 200"), "the download answered {line}");
            while line != "\r\n" {
                line.clear();
                ensure!(stream.read_line(&mut line)? > 0, "the download's head has no end");
            }
            let mut seen = stream.buffer().len();
            let mut stream = stream.into_inner();
            seen += drain(&mut stream)?;
            ensure!(seen == size, "{seen} bytes came back instead of {size}");
            Ok(started.elapsed())
        })
        .await
    }
}

fn connect(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}

fn drain(stream: &mut TcpStream) -> anyhow::Result<usize> {
    let mut buffer = vec![0; 1 << 20];
    let mut seen = 0;
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(seen),
            n => seen += n,
        }
    }
}

fn copy_up(address: SocketAddr, size: usize) -> anyhow::Result<Duration> {
    let mut stream = connect(address)?;
    let started = Instant::now();
    guest::send(&mut stream, size)?;
    stream.shutdown(Shutdown::Write)?;
    stream.read_exact(&mut [0])?;
    Ok(started.elapsed())
}

fn copy_down(address: SocketAddr, size: usize) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let mut stream = connect(address)?;
    let seen = drain(&mut stream)?;
    ensure!(seen == size, "{seen} raw bytes came instead of {size}");
    Ok(started.elapsed())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work).await?
}
