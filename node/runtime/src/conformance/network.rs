//! What an instance can reach.

use std::net::{IpAddr, TcpListener};

use hutch_types::NetworkPolicy;

use super::{Suite, guest, kill};

/// Connects by the shell alone, within a second.
fn connect(address: IpAddr, port: u16) -> String {
    format!("timeout 1 bash -c 'exec 3<>/dev/tcp/{address}/{port}'")
}

pub(super) async fn denied_at_first(suite: &Suite<'_>) {
    let runtime = suite.open().await;
    let (a, b) = tokio::join!(suite.start(&runtime), suite.start(&runtime));
    let own = connect(IpAddr::from([127, 0, 0, 1]), a.envd_port());
    assert!(guest::shell(&*a, &own).await.is_success, "a server of its own cannot be reached");
    // A neighbour, with everything allowed or not, and a service of the host.
    let service = TcpListener::bind("0.0.0.0:0").expect("listen on the host");
    let service_port = service.local_addr().expect("address").port();
    let gateway = guest::stdout(&*a, "ip route | sed -n 's/^default via \\([0-9.]*\\).*/\\1/p'").await;
    let gateway: IpAddr = gateway.parse().expect("a default gateway");
    let outside = IpAddr::from([1, 1, 1, 1]);
    for is_allowed in [false, true] {
        if is_allowed {
            let policy = NetworkPolicy { allow_internet_access: true };
            a.set_network(&policy).await.expect("set the policy");
            b.set_network(&policy).await.expect("set the policy");
        } else {
            assert!(
                !guest::shell(&*a, &connect(outside, 80)).await.is_success,
                "the internet can be reached"
            );
        }
        let neighbour = guest::shell(&*a, &connect(b.address(), b.envd_port())).await;
        assert!(!neighbour.is_success, "a neighbour can be reached (allowed: {is_allowed})");
        let host = guest::shell(&*a, &connect(gateway, service_port)).await;
        assert!(!host.is_success, "the host can be reached (allowed: {is_allowed})");
    }
    a.set_network(&NetworkPolicy { allow_internet_access: false }).await.expect("set the policy");
    assert!(!guest::shell(&*a, &connect(outside, 80)).await.is_success, "the internet can be reached");
    guest::wait_healthy(&*a).await;
    kill(&*a).await;
    kill(&*b).await;
}
