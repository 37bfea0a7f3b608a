//! Terminals.

use connectrpc::ErrorCode;
use hutch_proto::process::process_input::Input;
use hutch_proto::process::{
    CloseStdinRequest, PTY, SendSignalRequest, Signal, StartRequest, UpdateRequest, pty,
};

use crate::support::*;

fn size(cols: u32, rows: u32) -> PTY {
    PTY { size: pty::Size { cols, rows, ..Default::default() }.into(), ..Default::default() }
}

fn in_terminal(script: &str) -> StartRequest {
    StartRequest { pty: size(91, 17).into(), ..sh(script) }
}

fn shown(seen: &Seen) -> String {
    String::from_utf8_lossy(&seen.pty).into_owned()
}

#[tokio::test]
async fn a_terminal_has_its_size_echoes_and_is_resized() {
    with_envd(async |envd| {
        let client = envd.client();
        let script = "stty size; tty; trap 'stty size; exit 4' WINCH; echo ready; while :; do read x && echo got $x; done";
        let mut stream = client.start(in_terminal(script)).await.unwrap();
        let mut seen = started!(stream);
        while !shown(&seen).contains("ready") && next!(stream, seen) {}
        assert!(shown(&seen).contains("17 91") && shown(&seen).contains("/dev/pts/"), "{seen:?}");
        client.send_input(input(seen.pid, Input::Pty(b"hello\n".to_vec()))).await.unwrap();
        while !shown(&seen).contains("got hello") && next!(stream, seen) {}
        let update = UpdateRequest { process: by_pid(seen.pid).into(), pty: size(120, 50).into(), ..Default::default() };
        client.update(update).await.unwrap();
        // Some shells run the trap between two reads only; others have ended by now.
        client.send_input(input(seen.pid, Input::Pty(b"again\n".to_vec()))).await.ok();
        while next!(stream, seen) {}
        assert!(shown(&seen).contains("50 120"), "{seen:?}");
        assert_eq!(seen.exit_code(), 4);
        assert!(seen.stdout.is_empty() && seen.stderr.is_empty());
    })
    .await;
}

#[tokio::test]
async fn control_characters_reach_the_foreground_process() {
    with_envd(async |envd| {
        let client = envd.client();
        let mut stream = client.start(in_terminal("echo ready; exec sleep 60")).await.unwrap();
        let mut seen = started!(stream);
        while !shown(&seen).contains("ready") && next!(stream, seen) {}
        client.send_input(input(seen.pid, Input::Pty(b"\x03".to_vec()))).await.unwrap();
        while next!(stream, seen) {}
        assert_eq!(seen.end.unwrap().2, "signal: interrupt");
    })
    .await;
}

#[tokio::test]
async fn terminals_and_pipes_are_not_mixed_up() {
    with_envd(async |envd| {
        let client = envd.client();
        let mut stream = client.start(in_terminal("exec sleep 60")).await.unwrap();
        let pid = started!(stream).pid;
        let error = client.send_input(input(pid, Input::Stdin(b"x".to_vec()))).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Internal);
        let close = CloseStdinRequest { process: by_pid(pid).into(), ..Default::default() };
        assert_eq!(client.close_stdin(close).await.unwrap_err().code, ErrorCode::Unknown);

        let mut stream = client.start(sh("exec sleep 60")).await.unwrap();
        let pid = started!(stream).pid;
        let update =
            UpdateRequest { process: by_pid(pid).into(), pty: size(1, 1).into(), ..Default::default() };
        assert_eq!(client.update(update).await.unwrap_err().code, ErrorCode::Internal);
    })
    .await;
}

#[tokio::test]
async fn a_terminal_that_is_left_ends_cleanly() {
    with_envd(async |envd| {
        for script in ["exit 0", "exec true", "sleep 0.05", "exec < /dev/null > /dev/null 2>&1; sleep 0.05"] {
            let seen = all!(envd.client().start(in_terminal(script)).await.unwrap());
            assert!(seen.error.is_none(), "{script}: {seen:?}");
            assert_eq!(seen.end, Some((0, true, "exit status 0".to_owned(), None)), "{script}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_terminal_that_is_killed_ends_with_the_signal() {
    with_envd(async |envd| {
        let client = envd.client();
        let mut stream = client.start(in_terminal("sleep 60")).await.unwrap();
        let mut seen = started!(stream);
        let kill = SendSignalRequest {
            process: by_pid(seen.pid).into(),
            signal: Signal::SIGNAL_SIGKILL.into(),
            ..Default::default()
        };
        client.send_signal(kill).await.unwrap();
        while next!(stream, seen) {}
        let killed = "signal: killed".to_owned();
        assert_eq!(seen.end, Some((-1, false, killed.clone(), Some(killed))));
    })
    .await;
}

#[tokio::test]
async fn many_terminals_live_side_by_side_and_all_end() {
    with_envd(async |envd| {
        const MANY: usize = 100;
        let client = envd.client();
        let mut streams = Vec::new();
        for i in 0..MANY {
            let mut stream =
                client.start(in_terminal(&format!("read x; echo {i}-$x; stty size"))).await.unwrap();
            let seen = started!(stream);
            streams.push((i, stream, seen));
        }
        assert_eq!(envd.state.processes.live_count(), MANY);
        for (i, mut stream, mut seen) in streams {
            let process = by_pid(seen.pid);
            let cols = u32::try_from(i + 1).unwrap();
            let update =
                UpdateRequest { process: process.into(), pty: size(cols, 9).into(), ..Default::default() };
            client.update(update).await.unwrap();
            client.send_input(input(seen.pid, Input::Pty(b"hi\n".to_vec()))).await.unwrap();
            while next!(stream, seen) {}
            let text = shown(&seen);
            assert!(text.contains(&format!("{i}-hi")) && text.contains(&format!("9 {cols}")), "{text}");
            assert_eq!(seen.exit_code(), 0);
        }
    })
    .await;
}
