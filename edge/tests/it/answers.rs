//! The form of the edge's own answers, and the ids of requests.

use hutch_edge::FrontConfig;

use crate::{front, get_request, talk};

const UNKNOWN: &str = "3000-iunknown0123456789.hutch.test";
const BROWSER: &str = "User-Agent: Mozilla/5.0 (X11; Linux x86_64) Chrome/140\r\nAccept: text/html,application/xhtml+xml,*/*;q=0.8\r\n";

#[tokio::test]
async fn people_get_pages_and_programs_get_json() {
    let (front, _) = front(FrontConfig::default()).await;
    for (extra, is_page) in [
        (BROWSER.to_owned(), true),
        (format!("{BROWSER}Sec-Fetch-Mode: navigate\r\n"), true),
        ("Accept: text/html\r\n".to_owned(), true),
        (format!("{BROWSER}Sec-Fetch-Mode: cors\r\n"), false),
        (format!("{BROWSER}X-Requested-With: XMLHttpRequest\r\n"), false),
        ("User-Agent: Mozilla/5.0\r\nAccept: application/json\r\n".to_owned(), false),
        ("User-Agent: e2b-python-sdk/2.63.0\r\nAccept: */*\r\n".to_owned(), false),
    ] {
        let answer = talk(front, &get_request(UNKNOWN, "/", &extra)).await;
        assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
        assert_eq!(answer.contains("content-type: text/html"), is_page, "{extra}");
        assert_eq!(answer.contains("Sandbox Not Found"), is_page, "{extra}");
        assert_eq!(answer.contains("\"The sandbox was not found\""), !is_page, "{extra}");
        assert!(answer.contains("access-control-allow-origin: *"), "scripts must be able to read it");
        assert!(answer.contains("access-control-expose-headers: x-request-id"), "{answer}");
    }
}

#[tokio::test]
async fn every_answer_of_the_edge_names_its_request() {
    let (front, _) = front(FrontConfig::default()).await;
    let named = |answer: &str| {
        let line = answer.lines().find_map(|l| l.strip_prefix("x-request-id: "));
        line.expect("an id").to_owned()
    };
    let mine = talk(front, &get_request(UNKNOWN, "/", "X-Request-Id: job-7.b_2\r\n")).await;
    assert_eq!(named(&mine), "job-7.b_2");
    let page = talk(front, &get_request(UNKNOWN, "/", &format!("{BROWSER}X-Request-Id: job-7\r\n"))).await;
    assert!(page.contains("<code>job-7</code>"), "{page}");
    for harmful in ["<script>", "a b", &"x".repeat(100)] {
        let page =
            talk(front, &get_request(UNKNOWN, "/", &format!("{BROWSER}X-Request-Id: {harmful}\r\n"))).await;
        assert_ne!(named(&page), harmful);
        assert!(!page.contains(harmful), "{page}");
    }
    let half = talk(front, &get_request("localhost", "/", "E2b-Sandbox-Port: 1\r\n")).await;
    assert!(half.starts_with("HTTP/1.1 400") && !named(&half).is_empty());
}
