//! What a stream's command prints: decided by the seed, so that the client knows every byte before it comes.

use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// A small generator of numbers (splitmix64): equal seeds make equal soaks.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `from` to `to`, both included.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from + 1)
    }
}

/// How a stream's client and command behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Output through a pipe, read at once.
    Pipe,
    /// Output through a terminal.
    Terminal,
    /// Much output at once to a client that reads slowly.
    Slow,
}

/// One command.
#[derive(Debug, Clone)]
pub struct Script {
    pub kind: Kind,
    /// Blocks of output.
    blocks: u64,
    /// Bytes of a block's filling.
    fill: usize,
    /// Between two blocks.
    pub pause: Duration,
    /// Stands in every block.
    name: String,
}

impl Script {
    pub fn new(random: &mut Random, kind: Kind, name: String) -> Self {
        let (blocks, fill, pause) = match kind {
            Kind::Slow => (random.between(100, 300), 16 << 10, 0),
            // Lines that are longer than a terminal's buffer are none of its uses.
            Kind::Terminal => (random.between(10, 40), random.between(20, 2000), random.between(50, 500)),
            Kind::Pipe => (random.between(10, 40), random.between(20, 16 << 10), random.between(50, 500)),
        };
        let fill = usize::try_from(fill).unwrap_or(20);
        Self { kind, blocks, fill, pause: Duration::from_millis(pause), name }
    }

    /// The start request. The script needs nothing but the shell itself: it is the streams that are put to the test. Waiting is
    /// reading, with a limit, from a pipe that nobody writes to.
    pub fn request(&self) -> Value {
        let Self { blocks, fill, name, pause, .. } = self;
        let pause = if pause.is_zero() {
            String::new()
        } else {
            format!("read -r -t {}.{:03} -u 3 _; ", pause.as_secs(), pause.subsec_millis())
        };
        let script = format!(
            "exec 3<> <(:); printf -v fill '%0{fill}d' 0; for ((i = 0; i < {blocks}; i++)); do \
             printf '{name} %d %s\\n' \"$i\" \"$fill\"; {pause}done; exit 0"
        );
        let mut start = json!({"process": {"cmd": "/bin/bash", "args": ["-c", script]}, "stdin": false});
        if self.kind == Kind::Terminal {
            start["pty"] = json!({"size": {"cols": 80, "rows": 24}});
        }
        start
    }

    /// How many bytes come, and their hash.
    pub fn expected(&self) -> (u64, [u8; 32]) {
        let end = if self.kind == Kind::Terminal { "\r\n" } else { "\n" };
        let fill = "0".repeat(self.fill);
        let (mut length, mut hash) = (0, Sha256::new());
        for i in 0..self.blocks {
            let block = format!("{} {i} {fill}{end}", self.name);
            length += u64::try_from(block.len()).unwrap_or(0);
            hash.update(block.as_bytes());
        }
        (length, hash.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn equal_seeds_make_equal_scripts() {
        let make = |seed| Script::new(&mut Random::new(seed), Kind::Pipe, "s".to_owned()).request();
        assert_eq!(make(7), make(7));
        assert_ne!(make(7), make(8));
    }

    #[test]
    fn the_shell_prints_what_is_expected() {
        let mut script = Script::new(&mut Random::new(3), Kind::Pipe, "one 2".to_owned());
        script.pause = Duration::from_millis(1);
        let request = script.request();
        let args = request["process"]["args"].as_array().unwrap().iter().map(|a| a.as_str().unwrap());
        let printed = Command::new("bash").args(args).output().unwrap();
        assert!(printed.status.success());
        let (length, hash) = script.expected();
        assert_eq!(printed.stdout.len() as u64, length);
        assert_eq!(<[u8; 32]>::from(Sha256::digest(&printed.stdout)), hash);
    }
}
