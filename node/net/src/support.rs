//! What this host can do for networks: for `hutch doctor`.
//!
//! Everything is really tried, in a network namespace that exists for the trial alone.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hutch_types::Check;
use rustix::thread::UnshareFlags;

use crate::config::NetConfig;
use crate::links::Veth;
use crate::netlink::Client;
use crate::{nft, rules, sysctl};

const DEADLINE: Duration = Duration::from_secs(10);

/// What the network of sandboxes needs from the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetSupport {
    /// Network namespaces and veth pairs can be made.
    pub veth: Check,
    /// `nft` is there, and loads our rules with all that they use.
    pub nftables: Check,
    /// The host forwards packets, or can be told to.
    pub forwarding: Check,
    /// Chains of other firewalls that drop by default, as `family table chain`. They drop what sandboxes send unless
    /// the operator allows it there: forwarding from and to `<prefix>-*`, and DNS to the gateway.
    pub dropping_chains: Vec<String>,
}

impl NetSupport {
    /// Looks at the host. Changes nothing. Blocks for some milliseconds.
    pub fn detect() -> Self {
        let trial =
            std::thread::Builder::new().name("hutch-net-trial".to_owned()).spawn(try_in_new_namespace);
        let failed = |why: &str| Check::Fails(why.to_owned());
        let (veth, nftables) = match trial.map(std::thread::JoinHandle::join) {
            Ok(Ok(checks)) => checks,
            Ok(Err(_)) => (failed("the trial ended early"), failed("the trial ended early")),
            Err(error) => (failed(&error.to_string()), failed(&error.to_string())),
        };
        Self { veth, nftables, forwarding: forwarding(), dropping_chains: dropping_chains() }
    }

    /// Whether sandboxes can have a network.
    pub fn works(&self) -> bool {
        [&self.veth, &self.nftables, &self.forwarding].iter().all(|check| check.works())
    }
}

fn try_in_new_namespace() -> (Check, Check) {
    // SAFETY: only the network namespace is unshared, no file descriptors.
    if let Err(error) = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) } {
        let text = format!("no network namespace can be made ({error}): run as root");
        return (Check::Fails(text.clone()), Check::Fails(text));
    }
    (try_veth(), try_rules())
}

fn try_veth() -> Check {
    let make = || -> io::Result<()> {
        let own = File::open("/proc/thread-self/ns/net")?;
        let pair = Veth {
            interface: "trial-0",
            mac: [2, 0, 0, 0, 0, 1],
            group: 1,
            peer: "trial-1",
            peer_mac: [2, 0, 0, 0, 0, 2],
            peer_namespace: u32::try_from(own.as_raw_fd()).map_err(io::Error::other)?,
            mtu: 1500,
        };
        Client::open()?.apply_one(pair.create())
    };
    match make() {
        Ok(()) => Check::Works("veth".to_owned()),
        Err(error) => Check::Fails(format!("no veth pair can be made ({error}): run modprobe veth")),
    }
}

fn try_rules() -> Check {
    let config = NetConfig::default();
    // A port of its own makes the rules use everything that they ever do.
    match nft(&["-f", "-"], &rules::render(&config, &[], 5353, 8080)) {
        Ok(_) => Check::Works("rules load".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Check::Fails("nft is missing: apt-get install nftables".to_owned())
        }
        Err(error) => Check::Fails(format!(
            "the nftables rules do not load: a kernel with nf_tables, conntrack, NAT, fib and connlimit is needed ({error})"
        )),
    }
}

fn forwarding() -> Check {
    match sysctl::read("ipv4/ip_forward").as_deref() {
        Ok("1") => Check::Works("on".to_owned()),
        Ok(_) if rustix::process::geteuid().is_root() => {
            Check::Works("off, turned on when needed".to_owned())
        }
        Ok(_) => Check::Fails("net.ipv4.ip_forward is 0: run as root or set it to 1".to_owned()),
        Err(error) => Check::Fails(format!("net.ipv4.ip_forward: {error}")),
    }
}

/// Base chains of other tables on the forward and input hooks with a dropping policy.
fn dropping_chains() -> Vec<String> {
    nft(&["list", "chains"], "").map(|text| parse_chains(&text)).unwrap_or_default()
}

fn parse_chains(text: &str) -> Vec<String> {
    let (mut table, mut chain, mut found) = (String::new(), String::new(), Vec::new());
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("table ") {
            rest.trim_end_matches('{').trim().clone_into(&mut table);
        } else if let Some(rest) = line.strip_prefix("chain ") {
            rest.trim_end_matches('{').trim().clone_into(&mut chain);
        } else if line.contains("policy drop")
            && (line.contains("hook forward") || line.contains("hook input"))
        {
            found.push(format!("{table} {chain}"));
        }
    }
    found
}

/// Runs `nft` in the network namespace of the calling thread.
fn nft(args: &[&str], input: &str) -> io::Result<String> {
    let mut child = Command::new("nft")
        .env("PATH", nft::PATH)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let deadline = Instant::now() + DEADLINE;
    // Its output is short unless the host has very many chains: then it is cut off with it.
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            child.kill()?;
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(io::Error::other(
        String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("nft failed").to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_that_drop_by_default_are_found() {
        let text = "table ip filter {\n\tchain INPUT {\n\t\ttype filter hook input priority filter; policy accept;\n\t}\n\
                    \tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy drop;\n\t}\n}\n\
                    table inet ufw {\n\tchain in {\n\t\ttype filter hook input priority 0; policy drop;\n\t}\n\
                    \tchain out {\n\t\ttype filter hook output priority 0; policy drop;\n\t}\n}\n";
        assert_eq!(parse_chains(text), ["ip filter FORWARD", "inet ufw in"]);
    }
}
