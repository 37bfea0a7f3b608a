//! Templates, names, builds and tags.

use hutch_types::{BuildId, TeamId, TemplateId};

use super::Subject;
use super::fixture::{assert_conflict, assert_not_found, at, build, default_team, other_team, template};
use crate::Template;

pub(super) async fn a_template_is_kept_with_its_names_in_order(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let t = template(team, &["zeta", "alpha", "mid"]);
    store.upsert_template(t.clone()).await.unwrap();
    assert_eq!(store.find_template(team, t.id.as_str()).await.unwrap(), t);
    let nameless = Template { created_at: at(1), ..template(team, &[]) };
    store.upsert_template(nameless.clone()).await.unwrap();
    assert_eq!(store.templates(team).await.unwrap(), [nameless, t], "newest first");
    assert_not_found(store.upsert_template(template(TeamId::random(), &[])).await);
}

pub(super) async fn replacing_a_template_keeps_what_the_store_counts(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let t = template(team, &["old"]);
    store.upsert_template(t.clone()).await.unwrap();
    store.note_spawn(&t.id, at(7)).await.unwrap();
    store.insert_build(build(&t.id, "ready", 1), &[]).await.unwrap();
    let again = Template {
        names: vec!["new".to_owned(), "old".to_owned()],
        public: true,
        created_at: at(99),
        updated_at: at(99),
        ..t.clone()
    };
    store.upsert_template(again.clone()).await.unwrap();
    assert_eq!(
        store.find_template(team, "new").await.unwrap(),
        Template { created_at: at(0), spawn_count: 1, last_spawned_at: Some(at(7)), build_count: 1, ..again }
    );
}

pub(super) async fn names_are_unique_in_a_team_and_free_again_when_given_up(subject: &dyn Subject) {
    let store = subject.open().await;
    let (team, other) = (default_team(&*store).await, other_team(&*store, "acme").await);
    let a = template(team, &["py", "python"]);
    store.upsert_template(a.clone()).await.unwrap();
    assert_conflict(store.upsert_template(template(team, &["python"])).await);
    assert_conflict(store.upsert_template(template(team, &["x", a.id.as_str()])).await);
    assert_conflict(store.upsert_template(template(team, &["twice", "twice"])).await);
    store.upsert_template(template(other, &["python"])).await.unwrap();
    store.upsert_template(Template { names: vec!["py".to_owned()], ..a.clone() }).await.unwrap();
    let b = template(team, &["python"]);
    store.upsert_template(b.clone()).await.unwrap();
    assert_eq!(store.find_template(team, "python").await.unwrap().id, b.id);
    assert_eq!(store.find_template(team, "py").await.unwrap().id, a.id);
    assert_conflict(store.upsert_template(Template { team: other, names: Vec::new(), ..a }).await);
}

pub(super) async fn a_rejected_template_changes_nothing(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let a = template(team, &["a"]);
    let b = template(team, &["b"]);
    store.upsert_template(a.clone()).await.unwrap();
    store.upsert_template(b.clone()).await.unwrap();
    let clash = Template {
        names: vec!["c".to_owned(), "a".to_owned()],
        public: true,
        updated_at: at(9),
        ..b.clone()
    };
    assert_conflict(store.upsert_template(clash).await);
    assert_eq!(store.find_template(team, "b").await.unwrap(), b);
    assert_not_found(store.find_template(team, "c").await);
    let unborn = template(team, &["d", "a"]);
    assert_conflict(store.upsert_template(unborn.clone()).await);
    assert_not_found(store.find_template(team, unborn.id.as_str()).await);
}

pub(super) async fn a_name_is_looked_up_in_the_own_team_first(subject: &dyn Subject) {
    let store = subject.open().await;
    let (team, other) = (default_team(&*store).await, other_team(&*store, "acme").await);
    let slug = store.team(team).await.unwrap().slug;
    let public = Template { public: true, ..template(other, &["base"]) };
    store.upsert_template(public.clone()).await.unwrap();
    assert_eq!(store.find_template(team, "base").await.unwrap().id, public.id);
    let own = Template { created_at: at(500), ..template(team, &["base"]) };
    store.upsert_template(own.clone()).await.unwrap();
    for (text, expected) in [
        ("base", &own),
        (format!("{slug}/base").as_str(), &own),
        ("acme/base", &public),
        (public.id.as_str(), &public),
        (own.id.as_str(), &own),
    ] {
        assert_eq!(store.find_template(team, text).await.unwrap().id, expected.id, "{text}");
    }
    assert_eq!(store.find_template(other, "base").await.unwrap().id, public.id);
    // A name wins over an id that reads the same.
    let named_first = Template { id: "legacy".parse().unwrap(), ..template(other, &[]) };
    store.upsert_template(template(team, &["legacy"])).await.unwrap();
    assert_conflict(store.upsert_template(Template { names: vec!["legacy".to_owned()], ..own }).await);
    store.upsert_template(Template { public: true, ..named_first.clone() }).await.unwrap();
    assert_ne!(store.find_template(team, "legacy").await.unwrap().id, named_first.id);
    for text in
        ["", "/", "/base", "base/", "nobody/base", "acme/base/x", "Base", "base:default", "%", "acme/"]
    {
        assert_not_found(store.find_template(team, text).await);
    }
    assert_not_found(store.find_template(team, &format!("{slug}/{}", public.id)).await);
}

pub(super) async fn private_templates_are_not_found_by_others(subject: &dyn Subject) {
    let store = subject.open().await;
    let (team, other) = (default_team(&*store).await, other_team(&*store, "acme").await);
    let t = template(other, &["secret"]);
    store.upsert_template(t.clone()).await.unwrap();
    for text in ["secret", "acme/secret", t.id.as_str()] {
        assert_not_found(store.find_template(team, text).await);
        store.find_template(other, text).await.unwrap();
    }
    assert_eq!(store.templates(team).await.unwrap(), []);
    store.upsert_template(Template { public: true, ..t.clone() }).await.unwrap();
    assert_eq!(store.templates(team).await.unwrap().len(), 1);
}

pub(super) async fn the_newest_ready_build_of_a_tag_serves(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let t = template(team, &["py"]);
    store.upsert_template(t.clone()).await.unwrap();
    assert_not_found(store.build_by_tag(&t.id, "default").await);
    let tags = |tags: &[&str]| tags.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();

    let first = build(&t.id, "ready", 1);
    store.insert_build(first.clone(), &tags(&["default", "v1"])).await.unwrap();
    assert_eq!(store.build_by_tag(&t.id, "default").await.unwrap(), first);
    assert_eq!(store.build(first.id).await.unwrap(), first);

    let mut second = build(&t.id, "building", 2);
    store.insert_build(second.clone(), &tags(&["default"])).await.unwrap();
    assert_eq!(store.build_by_tag(&t.id, "default").await.unwrap().id, first.id, "a build that is not ready");
    second.status = "ready".to_owned();
    second.finished_at = Some(at(3));
    store.insert_build(second.clone(), &[]).await.unwrap();
    assert_eq!(store.build_by_tag(&t.id, "default").await.unwrap(), second, "its tags are kept");
    assert_eq!(store.build_by_tag(&t.id, "v1").await.unwrap().id, first.id);

    store.insert_build(first.clone(), &tags(&["default"])).await.unwrap();
    assert_eq!(store.build_by_tag(&t.id, "default").await.unwrap().id, first.id, "pointed back");
    assert_eq!(store.builds(&t.id).await.unwrap(), [second, first], "newest first, each once");
    assert_eq!(store.find_template(team, "py").await.unwrap().build_count, 2);
    for unknown in ["", "v2", "DEFAULT"] {
        assert_not_found(store.build_by_tag(&t.id, unknown).await);
    }
    assert_not_found(store.build(BuildId::random()).await);
    assert_eq!(store.builds(&TemplateId::random()).await.unwrap(), []);
}

pub(super) async fn a_build_can_be_replaced_but_not_stolen(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let (a, b) = (template(team, &["a"]), template(team, &["b"]));
    store.upsert_template(a.clone()).await.unwrap();
    store.upsert_template(b.clone()).await.unwrap();
    let of_a = build(&a.id, "ready", 1);
    store.insert_build(of_a.clone(), &[]).await.unwrap();
    let mut stolen = of_a.clone();
    stolen.template = b.id.clone();
    assert_conflict(store.insert_build(stolen, &["default".to_owned()]).await);
    assert_eq!(store.build(of_a.id).await.unwrap(), of_a);
    assert_not_found(store.build_by_tag(&b.id, "default").await);
    assert_not_found(store.insert_build(build(&TemplateId::random(), "ready", 1), &[]).await);
}

pub(super) async fn starts_are_counted(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let t = template(team, &["py"]);
    store.upsert_template(t.clone()).await.unwrap();
    for ms in [10, 30, 20] {
        store.note_spawn(&t.id, at(ms)).await.unwrap();
    }
    store.note_spawn(&TemplateId::random(), at(1)).await.unwrap();
    let found = store.find_template(team, "py").await.unwrap();
    assert_eq!((found.spawn_count, found.last_spawned_at), (3, Some(at(30))));
}
