//! A small blocking route-netlink client.
//!
//! Written by hand because of where it is used: on a thread that has entered another network namespace, where no async
//! runtime is wanted, and with several requests sent in one call.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

const DEADLINE: Duration = Duration::from_secs(5);

/// Larger than any single datagram of a dump.
const BUFFER_BYTES: usize = 64 * 1024;

const HEADER_BYTES: usize = 16;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
/// Fail when it exists already.
pub(crate) const NLM_F_EXCL: u16 = 0x200;
/// Make it.
pub(crate) const NLM_F_CREATE: u16 = 0x400;
/// Replace it when it exists already.
pub(crate) const NLM_F_REPLACE: u16 = 0x100;

/// One request, or one message of an answer: a fixed header of its kind, then attributes.
#[derive(Debug)]
pub(crate) struct Message {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

impl Message {
    /// A request of `kind` whose fixed header is `fixed` (a multiple of 4 bytes).
    pub(crate) fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        Self { kind, flags, body: fixed.to_vec() }
    }

    /// Adds an attribute.
    pub(crate) fn attr(mut self, kind: u16, value: &[u8]) -> Self {
        put_attr(&mut self.body, kind, value);
        self
    }

    /// Adds an attribute that is a number in the host's byte order.
    pub(crate) fn attr_u32(self, kind: u16, value: u32) -> Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute that is a text with a NUL at its end.
    pub(crate) fn attr_text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attr(kind, &bytes)
    }

    fn encode(&self, extra_flags: u16, seq: u32, out: &mut Vec<u8>) {
        let len = u32::try_from(HEADER_BYTES + self.body.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&len.to_ne_bytes());
        out.extend_from_slice(&self.kind.to_ne_bytes());
        out.extend_from_slice(&(NLM_F_REQUEST | self.flags | extra_flags).to_ne_bytes());
        out.extend_from_slice(&seq.to_ne_bytes());
        out.extend_from_slice(&0u32.to_ne_bytes());
        out.extend_from_slice(&self.body);
        out.resize(out.len().next_multiple_of(4), 0);
    }
}

/// Attributes inside an attribute.
#[derive(Debug, Default)]
pub(crate) struct Nested(Vec<u8>);

impl Nested {
    /// Starts with a fixed header, which some nested attributes have.
    pub(crate) fn new(fixed: &[u8]) -> Self {
        Self(fixed.to_vec())
    }

    /// Adds an attribute.
    pub(crate) fn attr(mut self, kind: u16, value: &[u8]) -> Self {
        put_attr(&mut self.0, kind, value);
        self
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn put_attr(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&len.to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// What an answer holds behind its netlink header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer(Vec<u8>);

impl Answer {
    /// An answer with this content, for tests.
    #[cfg(test)]
    pub(crate) fn of(body: Vec<u8>) -> Self {
        Self(body)
    }

    /// Bytes of the fixed header.
    pub(crate) fn fixed(&self, range: std::ops::Range<usize>) -> Option<&[u8]> {
        self.0.get(range)
    }

    /// One byte of the fixed header.
    pub(crate) fn byte(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    /// Attribute `kind` behind a fixed header of `fixed_len` bytes.
    pub(crate) fn attr(&self, fixed_len: usize, kind: u16) -> Option<&[u8]> {
        let mut rest = self.0.get(fixed_len..)?;
        while rest.len() >= 4 {
            let len = usize::from(u16_at(rest, 0)?);
            let value = rest.get(4..len)?;
            if u16_at(rest, 2)? & 0x3fff == kind {
                return Some(value);
            }
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        None
    }

    /// A number attribute.
    pub(crate) fn attr_u32(&self, fixed_len: usize, kind: u16) -> Option<u32> {
        u32_at(self.attr(fixed_len, kind)?, 0)
    }

    /// A text attribute.
    pub(crate) fn attr_text(&self, fixed_len: usize, kind: u16) -> Option<String> {
        let bytes = self.attr(fixed_len, kind)?;
        Some(String::from_utf8_lossy(bytes.strip_suffix(&[0]).unwrap_or(bytes)).into_owned())
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A socket to the network namespace in which it was opened, wherever its thread goes later.
#[derive(Debug)]
pub(crate) struct Client {
    socket: OwnedFd,
    seq: u32,
}

impl Client {
    pub(crate) fn open() -> io::Result<Self> {
        // Protocol 0 is `NETLINK_ROUTE`.
        Self::open_protocol(None)
    }

    /// A client of `NETLINK_SOCK_DIAG`: the sockets of the network namespace.
    pub(crate) fn open_sock_diag() -> io::Result<Self> {
        Self::open_protocol(Some(rustix::net::netlink::SOCK_DIAG))
    }

    fn open_protocol(protocol: Option<rustix::net::Protocol>) -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(DEADLINE))?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(DEADLINE))?;
        Ok(Self { socket, seq: 0 })
    }

    /// Sends all requests in one go, and waits until each is done. The kernel tries them all, whatever becomes of the
    /// others. Returns how each went.
    pub(crate) fn apply(&mut self, requests: &[Message]) -> io::Result<Vec<io::Result<()>>> {
        let first = self.seq.wrapping_add(1);
        let mut packet = Vec::new();
        for request in requests {
            self.seq = self.seq.wrapping_add(1);
            request.encode(NLM_F_ACK, self.seq, &mut packet);
        }
        rustix::net::send(&self.socket, &packet, SendFlags::empty())?;
        let mut results: Vec<Option<io::Result<()>>> = requests.iter().map(|_| None).collect();
        while results.iter().any(Option::is_none) {
            self.receive(|kind, seq, body| {
                let slot = usize::try_from(seq.wrapping_sub(first)).ok().and_then(|n| results.get_mut(n));
                if let (NLMSG_ERROR, Some(slot)) = (kind, slot) {
                    *slot = Some(acknowledged(body));
                }
                Ok(())
            })?;
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// As [`Self::apply`], where nothing may fail.
    pub(crate) fn apply_all(&mut self, requests: &[Message]) -> io::Result<()> {
        self.apply(requests)?.into_iter().collect()
    }

    /// One request without an answer of its own.
    pub(crate) fn apply_one(&mut self, request: Message) -> io::Result<()> {
        self.apply_all(&[request])
    }

    /// One request and the message that answers it.
    pub(crate) fn get(&mut self, request: Message) -> io::Result<Answer> {
        let mut packet = Vec::new();
        self.seq = self.seq.wrapping_add(1);
        request.encode(0, self.seq, &mut packet);
        rustix::net::send(&self.socket, &packet, SendFlags::empty())?;
        let (wanted, mut answer) = (self.seq, None);
        while answer.is_none() {
            self.receive(|kind, seq, body| {
                if seq == wanted && kind == NLMSG_ERROR {
                    acknowledged(body)?;
                } else if seq == wanted {
                    answer = Some(Answer(body.to_vec()));
                }
                Ok(())
            })?;
        }
        answer.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Everything of the requested kind.
    pub(crate) fn dump(&mut self, request: Message) -> io::Result<Vec<Answer>> {
        let mut packet = Vec::new();
        self.seq = self.seq.wrapping_add(1);
        request.encode(NLM_F_DUMP, self.seq, &mut packet);
        rustix::net::send(&self.socket, &packet, SendFlags::empty())?;
        let (wanted, mut answers, mut is_done) = (self.seq, Vec::new(), false);
        while !is_done {
            self.receive(|kind, seq, body| {
                match kind {
                    _ if seq != wanted => {}
                    NLMSG_DONE => is_done = true,
                    NLMSG_ERROR => acknowledged(body)?,
                    _ => answers.push(Answer(body.to_vec())),
                }
                Ok(())
            })?;
        }
        Ok(answers)
    }

    /// Hands the messages of one datagram to `each` as kind, sequence number and body.
    fn receive(&mut self, mut each: impl FnMut(u16, u32, &[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut buffer = vec![0u8; BUFFER_BYTES];
        let received = loop {
            match rustix::net::recv(&self.socket, buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((received, _)) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        };
        let mut rest = buffer.get(..received).unwrap_or_default();
        while let (Some(len), Some(kind), Some(seq)) = (u32_at(rest, 0), u16_at(rest, 4), u32_at(rest, 8)) {
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let Some(body) = rest.get(HEADER_BYTES..len) else { break };
            each(kind, seq, body)?;
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(())
    }
}

/// An acknowledgement starts with zero or a negative error number.
fn acknowledged(body: &[u8]) -> io::Result<()> {
    match u32_at(body, 0) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.cast_signed().wrapping_neg())),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_read_back() {
        let message = Message::new(16, 0, &[0; 16]).attr_text(3, "ab").attr_u32(27, 7);
        let answer = Answer(message.body.clone());
        assert_eq!(message.body.len(), 16 + 8 + 8);
        assert_eq!(answer.attr_text(16, 3).as_deref(), Some("ab"));
        assert_eq!(answer.attr_u32(16, 27), Some(7));
        assert_eq!(answer.attr(16, 99), None);
    }

    #[test]
    fn cut_or_endless_attributes_are_no_panic() {
        for bytes in [&[][..], &[1], &[0, 0, 3, 0], &[200, 0, 3, 0, 1], &[4, 0, 3]] {
            assert_eq!(Answer(bytes.to_vec()).attr(0, 3), None, "{bytes:?}");
        }
    }

    #[test]
    fn error_numbers_become_io_errors() {
        let error = acknowledged(&(-17i32).to_ne_bytes()).expect_err("an error");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        acknowledged(&0i32.to_ne_bytes()).expect("fine");
    }
}
