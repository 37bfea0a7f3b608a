use hutch_store::Store;
use serde_json::json;

use crate::world::{BASE_ID, World, add_template};

#[tokio::test]
async fn a_listed_template_has_what_clients_need() {
    let w = World::new().await;
    let slug = w.store_slug().await;
    for path in
        ["/templates", "/v2/templates", "/default-templates", &format!("/templates?teamID={}", w.team)]
    {
        let reply = w.get(path).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        let body = reply.json();
        let template = &body[0];
        assert_eq!(template["templateID"], BASE_ID);
        assert_eq!(template["aliases"], json!(["base"]));
        assert_eq!(template["names"], json!([format!("{slug}/base")]));
        assert_eq!(template["buildStatus"], "ready");
        assert_eq!(template["public"], true);
        assert_eq!(template["cpuCount"], 2);
        for needed in [
            "buildID",
            "memoryMB",
            "diskSizeMB",
            "createdAt",
            "updatedAt",
            "spawnCount",
            "buildCount",
            "envdVersion",
        ] {
            assert!(template.get(needed).is_some_and(|v| !v.is_null()), "{path}: {needed}");
        }
        // There, though null.
        assert!(template["createdBy"].is_null() && template.get("createdBy").is_some());
        assert!(template.get("lastSpawnedAt").is_some());
    }
    for bad in [uuid_of_nobody(), "x".to_owned()] {
        let text = w.get(&format!("/templates?teamID={bad}")).await.error(400);
        assert_eq!(text, "Team ID param mismatch with the API key");
        w.get(&format!("/v2/templates?teamID={bad}")).await.error(400);
    }
}

fn uuid_of_nobody() -> String {
    hutch_types::TeamId::random().to_string()
}

#[tokio::test]
async fn templates_come_in_pages() {
    let w = World::new().await;
    for n in 0..4 {
        add_template(&*w.store, w.team, &format!("pagetemplate0000000{n}"), &format!("page{n}"), false).await;
    }
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let reply = w.get(&format!("/v2/templates?limit=2{token}")).await;
        seen.extend(reply.json().as_array().unwrap().iter().map(|t| t["templateID"].to_string()));
        match reply.header("x-next-token") {
            Some(next) => token = format!("&nextToken={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 5);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 5);
    assert_eq!(w.get("/default-templates").await.json().as_array().unwrap().len(), 1);
    w.get("/v2/templates?nextToken=zz").await.error(400);
}

#[tokio::test]
async fn a_template_is_found_by_every_name() {
    let w = World::new().await;
    let slug = w.store_slug().await;
    for reference in [BASE_ID.to_owned(), "base".to_owned(), "BASE".to_owned(), format!("{slug}%2Fbase")] {
        let reply = w.get(&format!("/templates/{reference}")).await;
        assert_eq!(reply.status, 200, "{reference}: {}", reply.text);
        let body = reply.json();
        assert_eq!(body["templateID"], BASE_ID);
        assert_eq!(body["builds"].as_array().unwrap().len(), 1);
        assert_eq!(body["builds"][0]["status"], "ready");
        let alias = w.get(&format!("/templates/aliases/{reference}%3Av1")).await;
        assert_eq!(alias.status, 200, "{reference}: {}", alias.text);
        assert_eq!(alias.json(), json!({ "templateID": BASE_ID, "public": true }));
    }
    for missing in ["nope", "nobody%2Fbase", "base%3Av9"] {
        w.get(&format!("/templates/aliases/{missing}")).await.error(404);
    }
    w.get("/templates/nope").await.error(404);
    for bad in ["a%2Fb%2Fc", "%2E%2E%2Fetc", "a%3A", "%00"] {
        w.get(&format!("/templates/aliases/{bad}")).await.error(400);
        w.get(&format!("/templates/{bad}")).await.error(400);
    }
}

#[tokio::test]
async fn a_private_template_is_its_teams_alone() {
    let w = World::new().await;
    add_template(&*w.store, w.team, "privatetemplate00000", "private", false).await;
    let other = w.other_key().await;
    assert_eq!(w.get("/templates/aliases/private").await.status, 200);
    w.get_as(&other, "/templates/aliases/private").await.error(404);
    w.get_as(&other, "/templates/privatetemplate00000").await.error(404);
    let seen = w.get_as(&other, "/templates").await.json();
    assert_eq!(seen.as_array().unwrap().len(), 1);
    assert_eq!(seen[0]["templateID"], BASE_ID);
}

#[tokio::test]
async fn tags_are_known_by_their_builds() {
    let w = World::new().await;
    let exists = async |tag: &str| w.get(&format!("/templates/base/tags/exists?tag={tag}")).await.json();
    assert_eq!(exists("V1").await, json!({ "exists": true, "normalizedTag": "v1" }));
    assert_eq!(exists("default").await["exists"], true);
    assert_eq!(exists("v2").await["exists"], false);
    w.get("/templates/base/tags/exists").await.error(400);
    w.get("/templates/base/tags/exists?tag=a%2Fb").await.error(400);
    w.get("/templates/nope/tags/exists?tag=v1").await.error(404);
}

#[tokio::test]
async fn starts_are_counted() {
    let w = World::new().await;
    w.create(json!({})).await;
    crate::world::wait_for("the count", async || {
        w.store.find_template(w.team, "base").await.unwrap().spawn_count == 1
    })
    .await;
    assert_eq!(w.get("/templates").await.json()[0]["spawnCount"], 1);
}
