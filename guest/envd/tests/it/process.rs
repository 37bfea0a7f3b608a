//! Start, List, Connect, signals, input.

use std::time::{Duration, Instant};

use connectrpc::ErrorCode;
use connectrpc::client::CallOptions;
use hutch_proto::process::process_input::Input;
use hutch_proto::process::stream_input_request::{self, Event};
use hutch_proto::process::{
    CloseStdinRequest, ConnectRequest, ListRequest, ProcessInput, SendSignalRequest, Signal,
    StreamInputRequest,
};

use crate::support::*;

async fn listed(client: &Client) -> Vec<u32> {
    let list = client.list(ListRequest::default()).await.unwrap().into_owned();
    list.processes.iter().map(|p| p.pid).collect()
}

fn signal(pid: u32, signal: Signal) -> SendSignalRequest {
    SendSignalRequest { process: by_pid(pid).into(), signal: signal.into(), ..SendSignalRequest::default() }
}

fn connect(pid: u32) -> ConnectRequest {
    ConnectRequest { process: by_pid(pid).into(), ..ConnectRequest::default() }
}

#[tokio::test]
async fn a_command_runs_over_every_codec_and_protocol() {
    with_envd(async |envd| {
        for client in [envd.client(), envd.json_client(), envd.h2_client()] {
            let request = sh("echo out; echo err >&2; exit 3");
            let seen = all!(client.start(request).await.unwrap());
            assert_eq!((seen.stdout(), seen.stderr()), ("out\n", "err\n"));
            let expected = (3, true, "exit status 3".to_owned(), Some("exit status 3".to_owned()));
            assert_eq!(seen.end, Some(expected));
            assert!(seen.pid > 0 && seen.error.is_none());

            let seen = all!(client.start(sh("true")).await.unwrap());
            assert_eq!(seen.end, Some((0, true, "exit status 0".to_owned(), None)));
        }
    })
    .await;
}

#[tokio::test]
async fn the_process_sees_its_environment_directory_and_nothing_of_envds() {
    with_envd(async |envd| {
        std::fs::create_dir(envd.home().join("sub")).unwrap();
        let mut request = sh("pwd; env | sort; umask; cat /proc/self/oom_score_adj; ls /proc/self/fd | wc -l; ps -o sid= -p $$");
        let process = request.process.get_or_insert_default();
        process.cwd = Some("sub".to_owned());
        process.envs.insert("MARK".to_owned(), "here it is".to_owned());
        let seen = all!(envd.client().start(request).await.unwrap());
        let lines: Vec<&str> = seen.stdout().lines().collect();
        assert_eq!(lines[0], envd.home().join("sub").to_str().unwrap());
        for wanted in ["MARK=here it is", "USER=user", "LOGNAME=user", "E2B_SANDBOX=true", "0022"] {
            assert!(lines.contains(&wanted), "{wanted} is missing in {lines:?}");
        }
        assert!(!lines.iter().any(|l| l.starts_with("CARGO")), "{lines:?}");
        assert_eq!(lines[lines.len() - 3].trim(), "100", "a better victim than envd");
        // 0, 1, 2 and the directory that ls reads.
        assert_eq!(lines[lines.len() - 2].trim(), "4", "{lines:?}");
        assert_eq!(lines[lines.len() - 1].trim(), seen.pid.to_string(), "the process leads its session");
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_started_is_an_error_and_leaves_nothing() {
    with_envd(async |envd| {
        let client = envd.client();
        let mut no_cwd = sh("true");
        no_cwd.process.get_or_insert_default().cwd = Some("/no/such".to_owned());
        let mut file_cwd = sh("true");
        file_cwd.process.get_or_insert_default().cwd = Some("/etc/passwd".to_owned());
        let mut no_program = sh("true");
        no_program.process.get_or_insert_default().cmd = "/no/such/program".to_owned();
        let mut other_home = sh("true");
        other_home.process.get_or_insert_default().cwd = Some("~root/x".to_owned());
        let cases = [
            (no_cwd, "cwd '/no/such' does not exist"),
            (file_cwd, "cwd '/etc/passwd' is not a directory"),
            (no_program, "error starting process '/no/such/program -c true'"),
            (other_home, "cannot expand user-specific home dir"),
            (Default::default(), "the request has no process to start"),
        ];
        for (request, message) in cases {
            let seen = all!(client.start(request).await.unwrap());
            let error = seen.error.unwrap();
            assert_eq!(error.code, ErrorCode::InvalidArgument, "{error:?}");
            assert!(error.message.as_deref().unwrap().contains(message), "{error:?}");
        }
        let ghost = CallOptions::default().with_header("authorization", "Basic Z2hvc3Q6");
        let seen = all!(client.start_with_options(sh("true"), ghost).await.unwrap());
        let error = seen.error.unwrap();
        assert_eq!(error.code, ErrorCode::Unauthenticated);
        assert_eq!(error.message.as_deref(), Some("invalid username: 'ghost'"));
        assert_eq!(listed(&client).await, [0u32; 0]);
    })
    .await;
}

#[tokio::test]
async fn stdin_is_written_in_order_and_closed() {
    with_envd(async |envd| {
        let client = envd.json_client();
        // It stays until both closes are made: a process that has ended is not found any more.
        let dir = tempfile::tempdir().unwrap();
        let gate = dir.path().join("closed");
        let script = format!("cat; until [ -e {} ]; do sleep 0.01; done", gate.display());
        let mut stream = client.start(sh_with_stdin(&script)).await.unwrap();
        let mut seen = started!(stream);
        let pid = seen.pid;
        client.send_input(input(pid, Input::Stdin(b"one\n".to_vec()))).await.unwrap();
        let event = |event| StreamInputRequest { event: Some(event), ..StreamInputRequest::default() };
        let data = |bytes: &[u8]| {
            let input = ProcessInput { input: Some(Input::Stdin(bytes.to_vec())), ..ProcessInput::default() };
            event(Event::Data(Box::new(stream_input_request::DataEvent {
                input: input.into(),
                ..Default::default()
            })))
        };
        let start = stream_input_request::StartEvent { process: by_pid(pid).into(), ..Default::default() };
        let events = [
            event(Event::Start(Box::new(start))),
            data(b"two\n"),
            event(Event::Keepalive(Box::default())),
            data(b"three\n"),
        ];
        client.stream_input(connectrpc::stream_iter(events)).await.unwrap();
        let error = client.stream_input(connectrpc::stream_iter([data(b"lost")])).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        for _ in 0..2 {
            client
                .close_stdin(CloseStdinRequest { process: by_pid(pid).into(), ..Default::default() })
                .await
                .unwrap();
        }
        std::fs::write(&gate, "").unwrap();
        while next!(stream, seen) {}
        assert_eq!((seen.stdout(), seen.exit_code()), ("one\ntwo\nthree\n", 0));
    })
    .await;
}

#[tokio::test]
async fn input_is_streamed_while_it_is_made_over_both_protocols() {
    with_envd(async |envd| {
        for client in [envd.json_client(), envd.h2_client()] {
            let mut stream = client.start(sh_with_stdin("while read x; do echo got $x; done")).await.unwrap();
            let mut seen = started!(stream);
            let event = |event| StreamInputRequest { event: Some(event), ..StreamInputRequest::default() };
            let start =
                stream_input_request::StartEvent { process: by_pid(seen.pid).into(), ..Default::default() };
            let (lines, sent) = tokio::sync::mpsc::unbounded_channel();
            lines.send(event(Event::Start(Box::new(start)))).unwrap();
            let sent = futures::stream::unfold(sent, |mut sent| async { Some((sent.recv().await?, sent)) });
            let sending = client.stream_input(sent);
            let talking = async {
                // Each line is asked for by the answer to the one before it: nothing waits for the end of the stream.
                for i in 0..3 {
                    let line = format!("{i}\n").into_bytes();
                    let input = ProcessInput { input: Some(Input::Stdin(line)), ..ProcessInput::default() };
                    let data = stream_input_request::DataEvent { input: input.into(), ..Default::default() };
                    lines.send(event(Event::Data(Box::new(data)))).unwrap();
                    while !seen.stdout().ends_with(&format!("got {i}\n")) && next!(stream, seen) {}
                }
                drop(lines);
                seen
            };
            let (done, mut seen) = tokio::join!(sending, talking);
            done.unwrap();
            let close = CloseStdinRequest { process: by_pid(seen.pid).into(), ..Default::default() };
            client.close_stdin(close).await.unwrap();
            while next!(stream, seen) {}
            assert_eq!((seen.stdout(), seen.exit_code()), ("got 0\ngot 1\ngot 2\n", 0));
        }
    })
    .await;
}

#[tokio::test]
async fn writing_where_nothing_reads_is_an_error() {
    with_envd(async |envd| {
        let client = envd.client();
        let mut stream = client.start(sh("sleep 30")).await.unwrap();
        let seen = started!(stream);
        for data in [Input::Stdin(b"x".to_vec()), Input::Pty(b"x".to_vec())] {
            let error = client.send_input(input(seen.pid, data)).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::Internal, "{error:?}");
        }
        let error = client.send_input(input(999_999_999, Input::Stdin(Vec::new()))).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::NotFound);
    })
    .await;
}

#[tokio::test]
async fn a_killed_process_ends_although_its_children_hold_the_pipes() {
    with_envd(async |envd| {
        let client = envd.client();
        let mut stream = client.start(sh("sleep 60 & echo $!; wait; echo done")).await.unwrap();
        let mut seen = started!(stream);
        while !seen.stdout.ends_with(b"\n") && next!(stream, seen) {}
        client.send_signal(signal(seen.pid, Signal::SIGNAL_SIGKILL)).await.unwrap();
        while next!(stream, seen) {}
        let expected = (-1, false, "signal: killed".to_owned(), Some("signal: killed".to_owned()));
        assert_eq!(seen.end, Some(expected));
        assert_eq!(listed(&client).await, [0u32; 0]);
        let child: i32 = seen.stdout().trim().parse().unwrap();
        assert!(
            std::path::Path::new(&format!("/proc/{child}")).exists(),
            "only the process itself is signalled"
        );
        // SAFETY: ends the `sleep` that this test started.
        unsafe { libc::kill(child, libc::SIGKILL) };
        let again = client.send_signal(signal(seen.pid, Signal::SIGNAL_SIGKILL)).await.unwrap_err();
        assert_eq!(again.code, ErrorCode::NotFound);
        assert_eq!(again.message, Some(format!("process with pid {} not found", seen.pid)));
    })
    .await;
}

#[tokio::test]
async fn term_is_a_signal_and_others_are_not_taken() {
    with_envd(async |envd| {
        let client = envd.client();
        let mut stream = client.start(sh("exec sleep 30")).await.unwrap();
        let mut seen = started!(stream);
        let error = client.send_signal(signal(seen.pid, Signal::SIGNAL_UNSPECIFIED)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Unimplemented);
        client.send_signal(signal(seen.pid, Signal::SIGNAL_SIGTERM)).await.unwrap();
        while next!(stream, seen) {}
        assert_eq!(seen.end.unwrap().2, "signal: terminated");
    })
    .await;
}

#[tokio::test]
async fn a_server_left_in_the_background_does_not_hold_the_end() {
    with_envd(async |envd| {
        let begin = Instant::now();
        let seen = all!(envd.client().start(sh("sleep 20 & echo $!")).await.unwrap());
        assert_eq!(seen.exit_code(), 0);
        assert!(begin.elapsed() < Duration::from_secs(10));
        // SAFETY: ends the `sleep` that this test started.
        unsafe { libc::kill(seen.stdout().trim().parse().unwrap(), libc::SIGKILL) };
    })
    .await;
}

#[tokio::test]
async fn the_timeout_of_the_request_is_the_life_of_the_process() {
    with_envd(async |envd| {
        // Raw, so that no client ends the call by itself.
        let body = r#"{"process":{"cmd":"/bin/sh","args":["-c","exec sleep 60"]}}"#;
        let mut frame = String::from("\0\0\0\0");
        frame.push(char::from(u8::try_from(body.len()).unwrap()));
        let headers = ["Content-Type: application/connect+json", "Connect-Timeout-Ms: 300"];
        let answer = envd.post("/process.Process/Start", &headers, &(frame + body)).await;
        assert_eq!(answer.status, 200);
        assert!(answer.body.contains(r#""code":"deadline_exceeded""#), "{answer:?}");
        wait_for("the process to be gone", async || (envd.state.processes.live_count() == 0).then_some(()))
            .await;

        for (timeout, wanted) in [("0", r#""exitCode":0"#), ("soon", r#""code":"invalid_argument""#)] {
            let body = r#"{"process":{"cmd":"/bin/sh","args":["-c","exit 0"]}}"#;
            let frame = format!("\0\0\0\0{}{body}", char::from(u8::try_from(body.len()).unwrap()));
            let timeout_header = format!("Connect-Timeout-Ms: {timeout}");
            let headers = ["Content-Type: application/connect+json", &timeout_header];
            let answer = envd.post("/process.Process/Start", &headers, &frame).await;
            // An exit code of 0 is left out of proto3 JSON; the status is what shows success.
            let wanted = if timeout == "0" { r#""status":"exit status 0""# } else { wanted };
            assert!(answer.body.contains(wanted), "{timeout}: {answer:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_process_outlives_its_client_and_can_be_joined_by_pid_and_tag() {
    with_envd(async |envd| {
        let client = envd.client();
        let mut request = sh_with_stdin("read line; echo got $line; exit 5");
        request.tag = Some("the one".to_owned());
        let mut stream = client.start(request).await.unwrap();
        let pid = started!(stream).pid;
        drop(stream);
        assert_eq!(listed(&client).await, [pid]);
        let mut one = client.connect(connect(pid)).await.unwrap();
        let mut two = client
            .connect(ConnectRequest { process: by_tag("the one").into(), ..Default::default() })
            .await
            .unwrap();
        let (mut seen_one, mut seen_two) = (started!(one), started!(two));
        assert_eq!((seen_one.pid, seen_two.pid), (pid, pid));
        client.send_input(input(pid, Input::Stdin(b"it\n".to_vec()))).await.unwrap();
        while next!(one, seen_one) {}
        while next!(two, seen_two) {}
        for seen in [seen_one, seen_two] {
            assert_eq!((seen.stdout(), seen.exit_code()), ("got it\n", 5));
        }
        let late = all!(client.connect(connect(pid)).await.unwrap());
        assert_eq!((late.pid, late.exit_code()), (pid, 5), "the end is remembered for who comes late");
        let never = all!(client.connect(connect(999_999_999)).await.unwrap());
        assert_eq!(never.error.unwrap().code, ErrorCode::NotFound);
    })
    .await;
}

#[tokio::test]
async fn a_silent_stream_says_that_it_is_alive() {
    with_envd(async |envd| {
        let client = envd.client();
        let options = CallOptions::default().with_header("keepalive-ping-interval", "1");
        let mut stream = client.start_with_options(sh("exec sleep 60"), options).await.unwrap();
        let mut seen = started!(stream);
        while seen.keepalives < 2 && next!(stream, seen) {}
        assert_eq!(seen.keepalives, 2);
    })
    .await;
}

#[tokio::test]
async fn ends_and_starts_are_logged_for_the_host() {
    with_envd(async |envd| {
        let seen = all!(envd.client().start(sh("exit 9")).await.unwrap());
        let answer = envd.get("/logs?after=0", &[&format!("x-hutch-secret: {SECRET}")]).await;
        let page = answer.json();
        let lines = page["lines"].as_array().unwrap();
        let of = |message: &str| {
            lines.iter().find(|l| l["message"] == message).unwrap_or_else(|| panic!("{lines:?}"))
        };
        assert_eq!(of("process started")["fields"]["pid"], seen.pid);
        assert_eq!(of("process started")["fields"]["command"], "/bin/sh -c exit 9");
        assert_eq!(of("process ended")["fields"]["exit_code"], 9);
        assert_eq!(of("process ended")["level"], "warn");
        assert_eq!(page["next"], lines.len());
    })
    .await;
}
