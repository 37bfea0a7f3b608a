//! The nftables rules, as text.

use crate::config::{NetConfig, SPECIAL_RANGES};
use crate::service::SERVICE_PORT;
use crate::subnet::Subnet;

/// A ruleset that replaces the table in one transaction: there is no moment without rules.
///
/// `host_networks` are denied like the special ranges. `dns_port` and `service_port` are where the DNS relay and the guest
/// service listen on the gateway address.
pub(crate) fn render(
    config: &NetConfig,
    host_networks: &[Subnet],
    dns_port: u16,
    service_port: u16,
) -> String {
    let NetConfig { subnet, prefix, table, max_connections, .. } = config;
    let (gateway, allow) = (config.gateway(), config.allow_group());
    let denied: Vec<String> = denied_ranges(config, host_networks).iter().map(ToString::to_string).collect();
    let denied = denied.join(", ");
    let redirects: String = [
        ("udp", 53, dns_port),
        ("tcp", 53, dns_port),
        ("tcp", SERVICE_PORT, service_port),
    ]
    .into_iter()
    .filter(|(_, asked, port)| asked != port)
    .map(|(protocol, asked, port)| {
        format!(
            "        iifname \"{prefix}-*\" ip daddr {gateway} {protocol} dport {asked} redirect to :{port}\n"
        )
    })
    .collect();
    let redirect = if redirects.is_empty() {
        redirects
    } else {
        format!(
            "
    chain prerouting_nat {{
        type nat hook prerouting priority dstnat; policy accept;
{redirects}    }}
"
        )
    };
    format!(
        "table inet {table}
delete table inet {table}
table inet {table} {{
    set denied {{
        type ipv4_addr
        flags interval
        auto-merge
        elements = {{ {denied} }}
    }}

    set connections {{
        type ipv4_addr
        size 65535
        flags dynamic
    }}

    chain prerouting_raw {{
        type filter hook prerouting priority raw; policy accept;
        iifname != \"{prefix}-*\" accept
        meta nfproto != ipv4 drop
        ip saddr != {subnet} drop
        fib saddr . iif oif missing drop
        iifgroup != {allow} ip daddr != {gateway} drop
    }}
{redirect}
    chain input {{
        type filter hook input priority filter; policy accept;
        iifname \"{prefix}-*\" jump to_host
    }}

    chain to_host {{
        ct state established ct direction reply accept
        ip daddr != {gateway} drop
        tcp dport {service_port} ct state new add @connections {{ ip saddr ct count over {max_connections} }} drop
        tcp dport {service_port} accept
        iifgroup != {allow} drop
        ct state new add @connections {{ ip saddr ct count over {max_connections} }} drop
        udp dport {dns_port} accept
        tcp dport {dns_port} accept
        drop
    }}

    chain forward {{
        type filter hook forward priority filter; policy accept;
        iifname \"{prefix}-*\" jump from_sandbox
        oifname \"{prefix}-*\" jump to_sandbox
    }}

    chain from_sandbox {{
        iifgroup != {allow} drop
        oifname \"{prefix}-*\" drop
        ip daddr @denied drop
        ct state new add @connections {{ ip saddr ct count over {max_connections} }} drop
        tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu
        accept
    }}

    chain to_sandbox {{
        oifgroup != {allow} drop
        ct state established,related accept
        drop
    }}

    chain postrouting {{
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr {subnet} oifname != \"lo\" oifname != \"{prefix}-*\" masquerade
    }}
}}
"
    )
}

/// Removes the table; no error when there is none.
pub(crate) fn render_removal(table: &str) -> String {
    format!("table inet {table}\ndelete table inet {table}\n")
}

/// What no sandbox reaches, without ranges that others cover.
fn denied_ranges(config: &NetConfig, host_networks: &[Subnet]) -> Vec<Subnet> {
    let mut all: Vec<Subnet> = SPECIAL_RANGES.to_vec();
    all.extend(config.denied.iter().chain(host_networks));
    all.sort_by_key(|subnet| (subnet.network(), subnet.prefix()));
    let mut kept: Vec<Subnet> = Vec::with_capacity(all.len());
    for subnet in all {
        if kept.last().is_none_or(|last| !last.covers(subnet)) {
            kept.push(subnet);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn denies(config: &NetConfig, address: [u8; 4]) -> bool {
        denied_ranges(config, &[]).iter().any(|range| range.contains(Ipv4Addr::from(address)))
    }

    #[test]
    fn internal_addresses_are_denied_up_to_the_edges_of_their_ranges_and_not_beyond() {
        let config = NetConfig::default();
        for denied in [
            [0, 0, 0, 0],
            [10, 0, 0, 0],
            [10, 255, 255, 255],
            [100, 64, 0, 0],
            [100, 127, 255, 255],
            [127, 0, 0, 1],
            [169, 254, 169, 254],
            [172, 16, 0, 0],
            [172, 31, 255, 255],
            [192, 168, 0, 0],
            [192, 168, 255, 255],
            [198, 18, 0, 0],
            [198, 19, 255, 255],
            [224, 0, 0, 1],
            [239, 255, 255, 255],
            [240, 0, 0, 0],
            [255, 255, 255, 255],
        ] {
            assert!(denies(&config, denied), "{denied:?}");
        }
        for allowed in [
            [1, 0, 0, 0],
            [9, 255, 255, 255],
            [11, 0, 0, 0],
            [100, 63, 255, 255],
            [100, 128, 0, 0],
            [126, 255, 255, 255],
            [128, 0, 0, 0],
            [169, 253, 255, 255],
            [169, 255, 0, 0],
            [172, 15, 255, 255],
            [172, 32, 0, 0],
            [192, 0, 1, 0],
            [192, 167, 255, 255],
            [192, 169, 0, 0],
            [198, 17, 255, 255],
            [198, 20, 0, 0],
            [223, 255, 255, 255],
        ] {
            assert!(!denies(&config, allowed), "{allowed:?}");
        }
    }

    #[test]
    fn extra_ranges_are_added_and_covered_ones_left_out() {
        let denied = vec!["10.1.0.0/16".parse().expect("net"), "8.8.8.8/32".parse().expect("net")];
        let config = NetConfig { denied, ..NetConfig::default() };
        let host = ["192.0.2.0/24".parse().expect("net")];
        let ranges: Vec<String> = denied_ranges(&config, &host).iter().map(ToString::to_string).collect();
        assert_eq!(
            ranges.join(" "),
            "0.0.0.0/8 8.8.8.8/32 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 \
             192.0.2.0/24 192.168.0.0/16 198.18.0.0/15 224.0.0.0/4 240.0.0.0/4"
        );
    }

    #[test]
    fn the_whole_ruleset_is_as_expected() {
        let config = NetConfig { max_connections: 100, ..NetConfig::default() };
        let expected = r#"table inet hutch
delete table inet hutch
table inet hutch {
    set denied {
        type ipv4_addr
        flags interval
        auto-merge
        elements = { 0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.0.0.0/24, 192.168.0.0/16, 198.18.0.0/15, 224.0.0.0/4, 240.0.0.0/4 }
    }

    set connections {
        type ipv4_addr
        size 65535
        flags dynamic
    }

    chain prerouting_raw {
        type filter hook prerouting priority raw; policy accept;
        iifname != "ht-*" accept
        meta nfproto != ipv4 drop
        ip saddr != 10.200.0.0/16 drop
        fib saddr . iif oif missing drop
        iifgroup != 180879361 ip daddr != 10.200.0.1 drop
    }

    chain input {
        type filter hook input priority filter; policy accept;
        iifname "ht-*" jump to_host
    }

    chain to_host {
        ct state established ct direction reply accept
        ip daddr != 10.200.0.1 drop
        tcp dport 80 ct state new add @connections { ip saddr ct count over 100 } drop
        tcp dport 80 accept
        iifgroup != 180879361 drop
        ct state new add @connections { ip saddr ct count over 100 } drop
        udp dport 53 accept
        tcp dport 53 accept
        drop
    }

    chain forward {
        type filter hook forward priority filter; policy accept;
        iifname "ht-*" jump from_sandbox
        oifname "ht-*" jump to_sandbox
    }

    chain from_sandbox {
        iifgroup != 180879361 drop
        oifname "ht-*" drop
        ip daddr @denied drop
        ct state new add @connections { ip saddr ct count over 100 } drop
        tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu
        accept
    }

    chain to_sandbox {
        oifgroup != 180879361 drop
        ct state established,related accept
        drop
    }

    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr 10.200.0.0/16 oifname != "lo" oifname != "ht-*" masquerade
    }
}
"#;
        let rendered = render(&config, &[], 53, 80);
        for (line, (got, want)) in rendered.lines().zip(expected.lines()).enumerate() {
            assert_eq!(got, want, "line {}", line + 1);
        }
        assert_eq!(rendered, expected);
    }

    #[test]
    fn servers_on_other_ports_are_reached_by_a_redirect() {
        let rendered = render(&NetConfig::default(), &[], 5300, 8000);
        assert!(rendered.contains("ip daddr 10.200.0.1 udp dport 53 redirect to :5300"));
        assert!(rendered.contains("tcp dport 5300 accept"));
        assert!(!rendered.contains("udp dport 53 accept"));
        assert!(rendered.contains("ip daddr 10.200.0.1 tcp dport 80 redirect to :8000"));
        assert!(rendered.contains("tcp dport 8000 accept"));
        let only_the_service = render(&NetConfig::default(), &[], 53, 8000);
        assert!(!only_the_service.contains("dport 53 redirect"));
    }
}
