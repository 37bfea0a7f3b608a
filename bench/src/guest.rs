//! A sandbox seen from the host: its network namespace, in which raw servers are started, and its envd.
//!
//! The raw primitives run on the sandbox's own link, so that they and Hutch share everything but Hutch.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::AsFd;

use crate::api::Created;

const LIMIT: Duration = Duration::from_secs(30);

/// A running sandbox.
#[derive(Debug)]
pub struct Guest {
    network: File,
    /// The process id of its envd on the host.
    pub envd: u32,
}

impl Guest {
    /// Finds the sandbox among the processes of this host.
    ///
    /// # Errors
    /// When the sandbox does not answer, or none of the host's processes is its envd.
    pub async fn find(sandbox: &Created) -> anyhow::Result<Self> {
        let told = sandbox.client.start("/bin/readlink", &["/proc/self/ns/net"], LIMIT).await?;
        let wanted = String::from_utf8_lossy(&told.stdout).trim().to_owned();
        ensure!(wanted.starts_with("net:["), "the sandbox told {wanted:?} of its network");
        let envd = crate::memory::pids()
            .find(|pid| {
                let network = fs::read_link(format!("/proc/{pid}/ns/net"));
                network.is_ok_and(|n| n.as_os_str() == wanted.as_str())
                    && fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.starts_with(b"/.hutch/envd"))
            })
            .context("no process of this host is the sandbox's envd")?;
        Ok(Self { network: File::open(format!("/proc/{envd}/ns/net"))?, envd })
    }

    /// Listens on `port` inside, and serves `connections` connections, one after the other, on a thread of its own. Returns
    /// the address as the host dials it.
    ///
    /// # Errors
    /// When the namespace cannot be entered or the port is taken.
    pub fn listen(
        &self,
        port: u16,
        connections: usize,
        serve: impl Fn(TcpStream) -> io::Result<()> + Send + 'static,
    ) -> anyhow::Result<SocketAddr> {
        let network = self.network.try_clone()?;
        let (ready, is_ready) = mpsc::channel();
        thread::spawn(move || {
            let bound = bind(&network, port);
            let listener = match bound {
                Ok((listener, address)) => {
                    if ready.send(Ok(address)).is_err() {
                        return;
                    }
                    listener
                }
                Err(error) => {
                    ready.send(Err(error)).ok();
                    return;
                }
            };
            for stream in listener.incoming().take(connections) {
                if let Err(error) = stream.and_then(&serve) {
                    eprintln!("a raw connection failed: {error}");
                }
            }
        });
        is_ready.recv().context("the raw server ended")?.context("cannot listen inside the sandbox")
    }
}

/// Moves the calling thread into `network` for good and listens there.
fn bind(network: &File, port: u16) -> io::Result<(TcpListener, SocketAddr)> {
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
    // The address by which the sandbox reaches others is the one by which it is reached. Nothing is sent.
    let probe = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    probe.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
    let address = SocketAddr::new(probe.local_addr()?.ip(), port);
    Ok((TcpListener::bind(address)?, address))
}

/// Answers every request, a head without a body, with two bytes.
pub fn answer_requests(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = [0; 4096];
    let mut filled = 0;
    loop {
        match stream.read(buffer.get_mut(filled..).unwrap_or_default())? {
            0 => return Ok(()),
            n => filled += n,
        }
        if buffer.get(..filled).is_some_and(|b| b.ends_with(b"\r\n\r\n")) {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
            filled = 0;
        }
    }
}

/// Reads all that comes and says one byte at its end.
pub fn swallow(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    while stream.read(&mut buffer)? > 0 {}
    stream.write_all(b"k")
}

/// Sends `size` bytes.
pub fn pour(mut stream: TcpStream, size: usize) -> io::Result<()> {
    send(&mut stream, size)
}

/// Writes `size` bytes in large pieces.
pub fn send(stream: &mut TcpStream, size: usize) -> io::Result<()> {
    let chunk = vec![0x5a; 1 << 20];
    let mut left = size;
    while left > 0 {
        let n = left.min(chunk.len());
        stream.write_all(chunk.get(..n).unwrap_or_default())?;
        left -= n;
    }
    Ok(())
}
