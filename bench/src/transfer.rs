//! 100 MB up and down through `/files`, next to a plain TCP copy over a veth pair.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};

use crate::api::{Api, Created};
use crate::raw::run;
use crate::stats::Table;

const SIZE: usize = 100 * 1000 * 1000;
const ROUNDS: usize = 5;

pub async fn measure(api: &Api, sandbox: &Created, table: &mut Table) -> anyhow::Result<()> {
    let raw = tokio::task::spawn_blocking(raw_copy).await??;
    table.add("raw: 100 MB over TCP through a veth", raw);

    let data = Bytes::from(vec![0x5a; SIZE]);
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let request = request(api, sandbox, http::Method::POST)
            .header("content-type", "application/octet-stream")
            .body(Full::new(data.clone()))?;
        let response = api.http.request(request).await?;
        if !response.status().is_success() {
            bail!("the upload answered {}", response.status());
        }
        response.into_body().collect().await?;
        up.push(started.elapsed());

        let started = Instant::now();
        let response = api.http.request(request_get(api, sandbox)?).await?;
        let mut body = response.into_body();
        let mut seen = 0;
        while let Some(frame) = body.frame().await {
            seen += frame?.data_ref().map_or(0, Bytes::len);
        }
        anyhow::ensure!(seen == SIZE, "{seen} bytes came back");
        down.push(started.elapsed());
    }
    table.add("upload 100 MB", up);
    table.add("download 100 MB", down);
    Ok(())
}

fn request(api: &Api, sandbox: &Created, method: http::Method) -> http::request::Builder {
    Request::builder()
        .method(method)
        .uri(format!("{}/files?path=/home/user/bench.bin&username=user", api.url))
        .header("e2b-sandbox-id", &sandbox.id)
        .header("e2b-sandbox-port", "49983")
        .header("x-access-token", &sandbox.token)
}

fn request_get(api: &Api, sandbox: &Created) -> anyhow::Result<Request<Full<Bytes>>> {
    Ok(request(api, sandbox, http::Method::GET).body(Full::new(Bytes::new()))?)
}

/// A namespace behind a veth pair, with a process inside that reads all it is sent. Removed when dropped.
struct Sink {
    name: String,
    child: Child,
    address: SocketAddr,
}

impl Sink {
    fn new() -> anyhow::Result<Self> {
        let name = format!("hb{}", std::process::id());
        let ip = |args: &[&str]| run(Command::new("ip").args(args));
        let (host, guest) = (format!("{name}h"), format!("{name}g"));
        ip(&["netns", "add", &name])?;
        ip(&["link", "add", &host, "type", "veth", "peer", "name", &guest, "netns", &name])?;
        ip(&["addr", "add", "10.255.77.1/30", "dev", &host])?;
        ip(&["link", "set", &host, "up"])?;
        ip(&["-n", &name, "addr", "add", "10.255.77.2/30", "dev", &guest])?;
        ip(&["-n", &name, "link", "set", &guest, "up"])?;
        let script = "import socket\ns=socket.create_server(('10.255.77.2',5201))\nwhile True:\n c,_=s.accept()\n \
                      b=bytearray(1<<20)\n while c.recv_into(b): pass\n c.sendall(b'k')\n c.close()\n";
        let child = Command::new("ip")
            .args(["netns", "exec", &name, "python3", "-c", script])
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start the receiving end")?;
        Ok(Self { name, child, address: SocketAddr::new(Ipv4Addr::new(10, 255, 77, 2).into(), 5201) })
    }

    fn connect(&self) -> anyhow::Result<TcpStream> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match TcpStream::connect_timeout(&self.address, Duration::from_secs(1)) {
                Ok(stream) => return Ok(stream),
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("left behind: {error}");
        }
        if let Err(error) = run(Command::new("ip").args(["netns", "del", &self.name])) {
            eprintln!("left behind: {error:#}");
        }
    }
}

fn raw_copy() -> anyhow::Result<Vec<Duration>> {
    let sink = Sink::new()?;
    let chunk = vec![0x5a; 1 << 20];
    (0..ROUNDS)
        .map(|_| {
            let mut stream = sink.connect()?;
            let started = Instant::now();
            let mut left = SIZE;
            while left > 0 {
                let n = left.min(chunk.len());
                stream.write_all(chunk.get(..n).unwrap_or_default())?;
                left -= n;
            }
            stream.shutdown(std::net::Shutdown::Write)?;
            stream.read_exact(&mut [0])?;
            Ok(started.elapsed())
        })
        .collect()
}
