//! The program itself, for what shows only from outside: how much memory it takes.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{PATIENCE, wait_for};

/// What envd may take at most, whatever passes through it. Optimised it takes a third.
const MOST: u64 = 64 << 20;

struct Program {
    child: Child,
    port: u16,
    home: tempfile::TempDir,
}

impl Program {
    async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        // Someone else may take the port meanwhile; then this one does not answer and the test fails, very rarely.
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        // As a user without an account, so that the machine's own settings are left alone.
        let mut command = Command::new(env!("CARGO_BIN_EXE_envd"));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(home.path(), Some(UID), Some(UID)).unwrap();
            std::os::unix::process::CommandExt::uid(&mut command, UID);
            std::os::unix::process::CommandExt::gid(&mut command, UID);
        }
        command.args(["--port", &port.to_string()]).env("HOME", home.path()).stdin(Stdio::null());
        let program = Self { child: command.spawn().unwrap(), port, home };
        wait_for("envd", async || TcpStream::connect(("127.0.0.1", port)).await.ok()).await;
        program
    }

    /// The most memory that it has had, in bytes.
    fn most_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    /// Sends a request and returns the stream after the head of its answer, and what came of the body already.
    async fn ask(&self, head: &str, body: &[u8]) -> (TcpStream, BytesMut, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let length = body.len();
        let head = format!("{head}\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        let mut got = BytesMut::new();
        loop {
            assert_ne!(stream.read_buf(&mut got).await.unwrap(), 0, "{got:?}");
            if let Some(at) = memchr::memmem::find(&got, b"\r\n\r\n") {
                let head = String::from_utf8(got.split_to(at + 4).to_vec()).unwrap();
                return (stream, got, head);
            }
        }
    }
}

const UID: u32 = 64_123;

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[tokio::test]
async fn a_hundred_megabytes_of_output_pass_in_constant_memory() {
    const SIZE: usize = 100 << 20;
    let envd = Program::start().await;
    let script = format!("head -c {SIZE} /dev/zero | tr '\\\\0' a");
    let message = format!(r#"{{"process":{{"cmd":"/bin/sh","args":["-c","{script}"]}},"stdin":false}}"#);
    let frame = [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message.as_bytes()].concat();
    let begin = Instant::now();
    let head = "POST /process.Process/Start HTTP/1.0\r\nContent-Type: application/connect+json";
    let (mut stream, mut got, head) = envd.ask(head, &frame).await;
    assert!(head.contains(" 200 ") && !head.to_ascii_lowercase().contains("chunked"), "{head}");
    let (mut size, mut ended) = (0, false);
    while !ended {
        while let Some((flags, length)) =
            got.get(..5).map(|h| (h[0], u32::from_be_bytes([h[1], h[2], h[3], h[4]])))
        {
            if got.len() < 5 + length as usize {
                break;
            }
            got.advance(5);
            let message: serde_json::Value = serde_json::from_slice(&got.split_to(length as usize)).unwrap();
            if let Some(data) = message["event"]["data"]["stdout"].as_str() {
                let data = STANDARD.decode(data).unwrap();
                assert!(data.iter().all(|b| *b == b'a'));
                size += data.len();
            }
            assert!(message.get("error").is_none(), "{message}");
            ended |= flags & 2 != 0;
        }
        if !ended {
            let more = tokio::time::timeout(PATIENCE, stream.read_buf(&mut got)).await.unwrap().unwrap();
            assert_ne!(more, 0, "cut after {size}");
        }
    }
    assert_eq!(size, SIZE);
    let most = envd.most_memory();
    assert!(most < MOST, "{most} bytes");
    eprintln!("100 MiB in {:?}, at most {} MiB", begin.elapsed(), most >> 20);
}

#[tokio::test]
async fn a_file_beyond_two_gibibytes_comes_whole_in_constant_memory() {
    const SIZE: u64 = (2 << 30) + 12_345;
    let envd = Program::start().await;
    // Holes are quick to read; marks tell where in the file one is.
    let marks: [u64; 5] = [0, 65_530, (1 << 31) - 8, (1 << 31) + 8, SIZE - 16];
    let file = std::fs::File::create(envd.home.path().join("huge")).unwrap();
    file.set_len(SIZE).unwrap();
    for at in marks {
        std::os::unix::fs::FileExt::write_all_at(&file, format!("{at:016x}").as_bytes(), at).unwrap();
    }
    let (mut stream, mut got, head) = envd.ask("GET /files?path=huge HTTP/1.1", b"").await;
    assert!(head.to_ascii_lowercase().contains(&format!("content-length: {SIZE}\r\n")), "{head}");
    let zeros = vec![0; 1 << 20];
    let (mut at, mut seen) = (0, 0);
    loop {
        // Up to the next mark there are zeros; the mark itself is looked at when all of it is there.
        while !got.is_empty() {
            let next = marks.into_iter().find(|mark| *mark >= at);
            let quiet = next.map_or(u64::MAX, |mark| mark - at);
            if quiet == 0 {
                if got.len() < 16 {
                    break;
                }
                assert_eq!(&got.split_to(16)[..], format!("{at:016x}").as_bytes());
                (at, seen) = (at + 16, seen + 1);
                continue;
            }
            let length = usize::try_from(quiet).unwrap().min(got.len()).min(zeros.len());
            assert!(got[..length] == zeros[..length], "not as it was near {at}");
            got.advance(length);
            at += length as u64;
        }
        got.reserve(1 << 20);
        if stream.read_buf(&mut got).await.unwrap() == 0 {
            break;
        }
    }
    assert_eq!((at, seen, got.len()), (SIZE, marks.len(), 0));
    let most = envd.most_memory();
    assert!(most < MOST, "{most} bytes");
}

#[tokio::test]
async fn a_large_upload_takes_constant_memory_packed_or_not() {
    const SIZE: usize = 96 << 20;
    let envd = Program::start().await;
    let content = vec![b'u'; SIZE];
    let head = "POST /files?path=large HTTP/1.1\r\nContent-Type: application/octet-stream";
    let (_, _, answer) = envd.ask(head, &content).await;
    assert!(answer.contains(" 200 "), "{answer}");
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&content).unwrap();
    let packed = encoder.finish().unwrap();
    let head = format!("{head}\r\nContent-Encoding: gzip").replace("large", "packed");
    let (_, _, answer) = envd.ask(&head, &packed).await;
    assert!(answer.contains(" 200 "), "{answer}");
    for name in ["large", "packed"] {
        assert!(std::fs::read(envd.home.path().join(name)).unwrap() == content, "{name} differs");
    }
    let most = envd.most_memory();
    assert!(most < MOST, "{most} bytes");
}

#[tokio::test]
async fn a_directory_of_very_many_entries_is_listed_or_refused_in_bounded_memory() {
    const LIMIT: usize = 100_000;
    let envd = Program::start().await;
    let dir = envd.home.path().join("many");
    std::fs::create_dir(&dir).unwrap();
    let first = dir.join("0");
    std::fs::write(&first, "").unwrap();
    // Names of one file are as many entries and quicker to make; a file has room for fewer than there are here.
    let mut source = first;
    for i in 1..LIMIT {
        let path = dir.join(i.to_string());
        if std::fs::hard_link(&source, &path).is_err() {
            std::fs::write(&path, "").unwrap();
            source = path;
        }
    }
    let list = async || {
        let head = "POST /filesystem.Filesystem/ListDir HTTP/1.0\r\nContent-Type: application/json";
        let (mut stream, mut got, head) = envd.ask(head, br#"{"path":"many","depth":1}"#).await;
        while stream.read_buf(&mut got).await.unwrap() > 0 {}
        (head, got)
    };
    let (head, body) = list().await;
    assert!(head.contains(" 200 "), "{head}");
    let answer: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(answer["entries"].as_array().unwrap().len(), LIMIT);
    let most = envd.most_memory();
    assert!(most < 4 * MOST, "{most} bytes");
    std::fs::write(dir.join("one more"), "").unwrap();
    let (head, body) = list().await;
    assert!(head.contains(" 400 "), "{head}");
    assert!(String::from_utf8_lossy(&body).contains("failed_precondition"), "{body:?}");
}
