//! Much output, slow clients, and clients that vanish.

use connectrpc::ErrorCode;
use hutch_proto::process::ConnectRequest;
use hutch_proto::process::process_input::Input;

use crate::support::*;

/// Far more than all the buffers on the way hold.
const MUCH: usize = 24 << 20;

fn much() -> String {
    format!("head -c {MUCH} /dev/zero | tr '\\0' a; echo; exit 7")
}

#[tokio::test]
async fn much_output_arrives_whole_and_in_small_pieces() {
    with_envd(async |envd| {
        let seen = all!(envd.client().start(sh(&much())).await.unwrap());
        assert_eq!((seen.stdout.len(), seen.exit_code()), (MUCH + 1, 7));
        assert!(seen.stdout[..MUCH].iter().all(|b| *b == b'a'));
        assert!(seen.largest_chunk <= 32 * 1024, "{}", seen.largest_chunk);
    })
    .await;
}

#[tokio::test]
async fn a_client_that_pauses_loses_nothing() {
    with_envd(async |envd| {
        let client = envd.client();
        let mut stream = client.start(sh(&much())).await.unwrap();
        let mut seen = started!(stream);
        let other = async {
            // Meanwhile envd answers others, however full the paused client's buffers are.
            for _ in 0..20 {
                assert_eq!(all!(envd.client().start(sh("true")).await.unwrap()).exit_code(), 0);
            }
        };
        other.await;
        assert_eq!(envd.state.processes.live_count(), 1, "the process waits for its client");
        while next!(stream, seen) {}
        assert_eq!((seen.stdout.len(), seen.exit_code()), (MUCH + 1, 7));
    })
    .await;
}

#[tokio::test]
async fn a_client_that_vanishes_while_it_holds_the_process_back_lets_it_go_on() {
    with_envd(async |envd| {
        let client = envd.client();
        let mut stuck = client.start(sh(&much())).await.unwrap();
        started!(stuck);
        // Its queue and the buffers of its connection are full before the process is through.
        assert_eq!(envd.state.processes.live_count(), 1);
        drop(stuck);
        wait_for("the process to end", async || (envd.state.processes.live_count() == 0).then_some(())).await;
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_takes_nothing_from_another_and_is_told() {
    with_envd(async |envd| {
        let client = envd.client();
        let mut stuck = client.start(sh_with_stdin(&format!("read go; {}", much()))).await.unwrap();
        let mut stuck_seen = started!(stuck);
        let pid = stuck_seen.pid;
        let request = ConnectRequest { process: by_pid(pid).into(), ..ConnectRequest::default() };
        let mut other = client.connect(request).await.unwrap();
        let mut seen = started!(other);
        client.send_input(input(pid, Input::Stdin(b"go\n".to_vec()))).await.unwrap();
        while next!(other, seen) {}
        assert_eq!((seen.stdout.len(), seen.exit_code()), (MUCH + 1, 7));
        while next!(stuck, stuck_seen) {}
        assert!(stuck_seen.end.is_none(), "what was cut must not look complete");
        assert_eq!(stuck_seen.error.unwrap().code, ErrorCode::DataLoss);
    })
    .await;
}

#[tokio::test]
async fn without_any_client_output_is_dropped_and_blocks_nothing() {
    with_envd(async |envd| {
        let client = envd.client();
        let mut stream = client.start(sh(&much())).await.unwrap();
        started!(stream);
        drop(stream);
        wait_for("the process to end", async || (envd.state.processes.live_count() == 0).then_some(())).await;
    })
    .await;
}

#[tokio::test]
async fn bytes_that_are_no_text_arrive_as_they_are() {
    with_envd(async |envd| {
        for client in [envd.client(), envd.json_client()] {
            let seen = all!(client.start(sh(r"printf '\000\377\376\n\n\r'")).await.unwrap());
            assert_eq!(seen.stdout, b"\x00\xff\xfe\n\n\r");
        }
    })
    .await;
}
