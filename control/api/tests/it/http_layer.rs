use axum::body::Body;
use http::{Method, Request};
use hutch_app::Limits;
use serde_json::json;

use crate::world::{World, chunked};

fn plain(method: Method, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(path)
}

#[tokio::test]
async fn without_a_known_key_nothing_is_answered() {
    let w = World::new().await;
    for (name, value) in [
        ("x-other", "1".to_owned()),
        ("x-api-key", String::new()),
        ("x-api-key", "wrong".to_owned()),
        ("x-api-key", "e2b_zz".to_owned()),
        ("x-api-key", format!("e2b_{}", "0".repeat(40))),
        ("x-api-key", w.key.trim_start_matches("e2b_").to_owned()),
        ("authorization", format!("Bearer {}", w.key)),
    ] {
        for (method, path) in [
            (Method::GET, "/v2/sandboxes"),
            (Method::POST, "/v2/sandboxes"),
            (Method::GET, "/sandboxes/UPPER-CASE-ID"),
            (Method::DELETE, "/sandboxes/iabcdefgh12"),
            (Method::POST, "/sandboxes/iabcdefgh12/pause"),
            (Method::GET, "/templates"),
        ] {
            let request = plain(method, path).header(name, &value).body(Body::from("{")).unwrap();
            w.send(request).await.error(401);
        }
    }
    let binary =
        plain(Method::GET, "/templates").header("x-api-key", &b"\xff\xfe"[..]).body(Body::empty()).unwrap();
    w.send(binary).await.error(401);
}

#[tokio::test]
async fn a_revoked_key_stops_at_once() {
    let w = World::new().await;
    let key = hutch_app::keys::create_key(&*w.store, &w.clock, w.team, "soon gone").await.unwrap();
    let value = key.value.expose();
    assert_eq!(w.get_as(value, "/v2/sandboxes").await.status, 200);
    let used = hutch_app::keys::list_keys(&*w.store, w.team).await.unwrap();
    let used = used.iter().find(|k| k.id == key.key.id).unwrap();
    assert_eq!(used.last_used_at, Some(w.clock.now()));
    hutch_app::keys::revoke_key(&*w.store, &w.clock, w.team, "soon gone").await.unwrap();
    w.get_as(value, "/v2/sandboxes").await.error(401);
}

#[tokio::test]
async fn keys_have_the_form_that_older_clients_check() {
    let w = World::new().await;
    let key = hutch_app::keys::create_key(&*w.store, &w.clock, w.team, "a name").await.unwrap();
    let value = key.value.expose();
    let hex = value.strip_prefix("e2b_").unwrap();
    assert_eq!(hex.len(), 40);
    assert!(hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
    assert!(!format!("{key:?}").contains(hex));
    assert_eq!(key.key.mask_prefix, hex[..2]);
    assert_eq!(key.key.mask_suffix, hex[36..]);
    let again = hutch_app::keys::create_key(&*w.store, &w.clock, w.team, "a name").await.unwrap_err();
    assert_eq!(again.class(), hutch_app::ErrorClass::Conflict);
}

#[tokio::test]
async fn teams_answer_to_both_headers() {
    let w = World::new().await;
    let bearer = plain(Method::GET, "/teams").header("authorization", format!("Bearer {}", w.key));
    let by_bearer = w.send(bearer.body(Body::empty()).unwrap()).await;
    let by_key = w.get("/teams").await;
    assert_eq!(by_bearer.status, 200);
    assert_eq!(by_bearer.json(), by_key.json());
    let body = by_key.json();
    assert_eq!(body.as_array().unwrap().len(), 1);
    assert_eq!(body[0]["teamID"], w.team.to_string());
    assert_eq!(body[0]["apiKey"], w.key);
    assert_eq!(body[0]["isDefault"], true);
    assert!(body[0]["name"].is_string());
    w.send(plain(Method::GET, "/teams").body(Body::empty()).unwrap()).await.error(401);
    let basic = plain(Method::GET, "/teams").header("authorization", "Basic eA==");
    w.send(basic.body(Body::empty()).unwrap()).await.error(401);
}

#[tokio::test]
async fn health_needs_no_key_and_ends_with_the_daemon() {
    let w = World::new().await;
    let health = || plain(Method::GET, "/health").body(Body::empty()).unwrap();
    assert_eq!(w.send(health()).await.status, 204);
    assert_eq!(w.supervisor.shutdown(std::time::Duration::from_secs(10)).await, 0);
    w.send(health()).await.error(503);
}

#[tokio::test]
async fn unknown_routes_and_methods_are_told_in_json() {
    let w = World::new().await;
    for path in ["/", "/nope", "/v2", "/v2/sandboxes/", "/sandboxes/a/b/c", "//sandboxes", "/v9/sandboxes"] {
        w.get(path).await.error(404);
    }
    let reply = w.delete("/v2/sandboxes").await;
    reply.error(405);
    let allow = reply.header("allow").expect("an Allow header");
    assert!(allow.contains("GET") && allow.contains("POST"), "{allow}");
    let odd = w.request(Method::from_bytes(b"BREW").unwrap(), "/health").body(Body::empty()).unwrap();
    w.send(odd).await.error(405);
}

#[tokio::test]
async fn browsers_may_call_from_anywhere() {
    let w = World::new().await;
    for path in ["/v2/sandboxes", "/sandboxes/iabcdefgh12/pause", "/health", "/templates/aliases/x", "/nope"]
    {
        let preflight = plain(Method::OPTIONS, path)
            .header("origin", "https://app.example")
            .header("access-control-request-method", "POST")
            .header(
                "access-control-request-headers",
                "x-api-key,content-type,lang_version,browser,publisher",
            );
        let reply = w.send(preflight.body(Body::empty()).unwrap()).await;
        assert!(reply.status.is_success(), "{path}: {}", reply.status);
        assert_eq!(reply.header("access-control-allow-origin"), Some("*"), "{path}");
        let allowed = reply.header("access-control-allow-headers").unwrap().to_lowercase();
        for name in [
            "x-api-key",
            "authorization",
            "x-team-id",
            "content-type",
            "lang_version",
            "sdk_runtime",
            "idempotency-key",
        ] {
            assert!(allowed.split(',').any(|a| a.trim() == name), "{name}: {allowed}");
        }
        let methods = reply.header("access-control-allow-methods").unwrap();
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            assert!(methods.contains(method), "{methods}");
        }
    }
    // On real answers, errors included.
    for path in ["/v2/sandboxes", "/nope", "/sandboxes/a-b-c"] {
        let request = w.request(Method::GET, path).header("origin", "https://app.example");
        let reply = w.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(reply.header("access-control-allow-origin"), Some("*"), "{path}");
        let exposed = reply.header("access-control-expose-headers").unwrap().to_lowercase();
        for name in ["x-next-token", "x-total-running", "retry-after", "ratelimit-limit"] {
            assert!(exposed.contains(name), "{name}: {exposed}");
        }
    }
}

#[tokio::test]
async fn bodies_above_the_limit_are_refused() {
    let w = World::with(Limits { max_body_bytes: 1000, ..Limits::default() }).await;
    let large = json!({ "templateID": "base", "metadata": { "a": "x".repeat(2000) } }).to_string();
    let text = w.post_text("/v2/sandboxes", &large).await.error(413);
    assert!(text.contains("limits.max_body_bytes"), "{text}");
    // Refused by what is declared, before anything is read.
    let declared = w.request(Method::POST, "/v2/sandboxes").header("content-length", "5000000000");
    w.send(declared.body(Body::empty()).unwrap()).await.error(413);
    let endless =
        Body::from_stream(futures::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 100])));
    w.send(w.request(Method::POST, "/v2/sandboxes").body(endless).unwrap()).await.error(413);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_refused() {
    let w = World::new().await;
    let broken = Body::from_stream(futures::stream::iter([
        Ok(b"{\"templateID\":".to_vec()),
        Err(std::io::Error::other("the connection broke")),
    ]));
    w.send(w.request(Method::POST, "/v2/sandboxes").body(broken).unwrap()).await.error(400);
}

#[tokio::test]
async fn explicit_identity_encoding_and_any_content_type_are_accepted() {
    let w = World::new().await;
    for content_type in ["application/json", "application/json; charset=utf-8", "text/plain"] {
        let request = w
            .request(Method::POST, "/v2/sandboxes")
            .header("content-type", content_type)
            .header("content-encoding", "identity");
        let reply = w.send(request.body(chunked(r#"{"templateID":"base"}"#)).unwrap()).await;
        assert_eq!(reply.status, 201, "{content_type}: {}", reply.text);
    }
}

#[tokio::test]
async fn every_answer_names_its_request() {
    let w = World::new().await;
    let own = w.get("/nope").await;
    assert_eq!(own.header("x-request-id").unwrap().len(), 36);
    let given =
        w.request(Method::GET, "/health").header("x-request-id", "my-id.1").body(Body::empty()).unwrap();
    assert_eq!(w.send(given).await.header("x-request-id"), Some("my-id.1"));
    for odd in ["a b", &"x".repeat(65), "<script>"] {
        let odd = w.request(Method::GET, "/health").header("x-request-id", odd).body(Body::empty()).unwrap();
        assert_eq!(w.send(odd).await.header("x-request-id").unwrap().len(), 36);
    }
}
