use std::collections::BTreeSet;

use axum::body::Body;
use http::{Method, Request};
use serde_json::{Value, json};

use crate::world::World;

/// Operations of the contract, `METHOD path`. Those that are not named here are found in the document anyway.
const CONTRACT: &str = include_str!("contract.txt");

fn operations(document: &Value) -> Vec<(Method, String, Value)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            found.push((method, path.clone(), operation.clone()));
        }
    }
    found
}

fn filled(path: &str) -> String {
    path.split('/')
        .map(|part| if part.starts_with('{') { "iabcdefgh12" } else { part })
        .collect::<Vec<_>>()
        .join("/")
}

#[tokio::test]
async fn the_document_is_served_and_is_what_the_crate_says() {
    let w = World::new().await;
    let reply = w.send(Request::builder().uri("/openapi.json").body(Body::empty()).unwrap()).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["content-type"], "application/json");
    let served = reply.json();
    assert_eq!(served, serde_json::to_value(hutch_api::openapi()).unwrap());
    assert!(served["openapi"].as_str().unwrap().starts_with("3.1"));
}

#[tokio::test]
async fn every_described_operation_is_served() {
    let w = World::new().await;
    let sandbox = w.create(json!({})).await;
    let document = serde_json::to_value(hutch_api::openapi()).unwrap();
    for (method, path, operation) in operations(&document) {
        let request = w.request(method.clone(), &filled(&path)).body(Body::empty()).unwrap();
        let reply = w.send(request).await;
        let status = reply.status.as_u16();
        assert_ne!(status, 405, "{method} {path}");
        assert!(!reply.text.contains("no matching operation"), "{method} {path}: {}", reply.text);
        let described = operation["responses"].as_object().unwrap();
        assert!(described.contains_key(&status.to_string()), "{method} {path}: {status} is not described");
        if described.contains_key("501") {
            let of_a_sandbox = described.contains_key("404");
            let reply = if of_a_sandbox {
                reply.error(404);
                let path = path.replace("{sandboxID}", sandbox.as_str());
                w.send(w.request(method, &path).body(Body::empty()).unwrap()).await
            } else {
                reply
            };
            let text = reply.error(501);
            assert!(text.ends_with(" is not supported by this version of Hutch"), "{text}");
            assert_eq!(reply.header("should-retry"), Some("false"));
        }
    }
}

#[tokio::test]
async fn no_method_is_served_that_is_not_described() {
    let w = World::new().await;
    let document = serde_json::to_value(hutch_api::openapi()).unwrap();
    let described: BTreeSet<(String, String)> =
        operations(&document).into_iter().map(|(m, p, _)| (m.to_string(), p)).collect();
    let paths: BTreeSet<&String> = described.iter().map(|(_, path)| path).collect();
    for path in paths {
        for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let is_described = described.contains(&(method.to_string(), path.clone()));
            let reply = w.send(w.request(method.clone(), &filled(path)).body(Body::empty()).unwrap()).await;
            assert_eq!(reply.status.as_u16() != 405, is_described, "{method} {path}: {}", reply.status);
        }
    }
}

#[tokio::test]
async fn every_operation_of_the_contract_is_there() {
    let document = serde_json::to_value(hutch_api::openapi()).unwrap();
    let described: BTreeSet<String> =
        operations(&document).into_iter().map(|(m, p, _)| format!("{m} {p}")).collect();
    let missing: Vec<&str> =
        CONTRACT.lines().map(str::trim).filter(|l| !l.is_empty() && !described.contains(*l)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[tokio::test]
async fn operations_have_distinct_names_and_all_references_lead_somewhere() {
    let document = serde_json::to_value(hutch_api::openapi()).unwrap();
    let mut names = BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        let name = operation["operationId"].as_str().expect("an operation id").to_owned();
        assert!(names.insert(name.clone()), "{method} {path}: {name} is used twice");
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        for part in path.split('/').filter_map(|p| p.strip_prefix('{')?.strip_suffix('}')) {
            assert!(
                parameters.iter().any(|p| p["name"] == part && p["in"] == "path"),
                "{method} {path}: {part}"
            );
        }
    }
    check_references(&document, &document);
}

fn check_references(value: &Value, document: &Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get("$ref") {
                let pointer = reference.strip_prefix('#').expect("a local reference");
                assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
            }
            map.values().for_each(|v| check_references(v, document));
        }
        Value::Array(items) => items.iter().for_each(|v| check_references(v, document)),
        _ => {}
    }
}

#[tokio::test]
async fn what_is_secured_says_so() {
    let w = World::new().await;
    let document = serde_json::to_value(hutch_api::openapi()).unwrap();
    for (method, path, operation) in operations(&document) {
        let request =
            Request::builder().method(method.clone()).uri(filled(&path)).body(Body::empty()).unwrap();
        let is_refused = w.send(request).await.status == 401;
        assert_eq!(operation.get("security").is_some(), is_refused, "{method} {path}");
    }
}
