//! Connect's stream framing: a flag byte (2 = end of stream), a big-endian length, the message.

use bytes::{Buf, BufMut, Bytes, BytesMut};

const END_OF_STREAM: u8 = 2;

/// One message as a frame.
pub(crate) fn encode(message: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(message.len() + 5);
    out.put_u8(0);
    out.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    out.put_slice(message);
    out.freeze()
}

/// Cuts a byte stream into frames.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    buffer: BytesMut,
}

impl Frames {
    pub(crate) fn push(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    /// The next whole frame: whether it ends the stream, and its message.
    pub(crate) fn next(&mut self) -> Option<(bool, Bytes)> {
        let mut head = self.buffer.get(..5)?;
        let flags = head.get_u8();
        let length = usize::try_from(head.get_u32()).ok()?;
        if self.buffer.len() < 5 + length {
            return None;
        }
        self.buffer.advance(5);
        Some((flags & END_OF_STREAM != 0, self.buffer.split_to(length).freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_the_bytes_arrive() {
        let mut wire = encode(b"one").to_vec();
        wire.extend_from_slice(&[2, 0, 0, 0, 2]);
        wire.extend_from_slice(b"{}");
        for step in 1..wire.len() {
            let (mut frames, mut seen) = (Frames::default(), Vec::new());
            for chunk in wire.chunks(step) {
                frames.push(chunk);
                while let Some(f) = frames.next() {
                    seen.push(f);
                }
            }
            assert_eq!(
                seen,
                [(false, Bytes::from_static(b"one")), (true, Bytes::from_static(b"{}"))],
                "{step}"
            );
        }
    }
}
