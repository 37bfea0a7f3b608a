//! Templates, their names, builds and tags.

use hutch_types::{BuildId, Resources, TeamId, TemplateId, Timestamp};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::column::{Columns, integer};
use super::error::{conflict, failed, not_found, rejected};
use crate::{StoreError, Template, TemplateBuild};

/// A template `t` with its names as a JSON array, the main one first.
macro_rules! template_columns {
    () => {
        "t.id, t.team_id, t.public, t.created_at, t.updated_at, t.spawn_count, t.last_spawned_at, t.build_count, \
         (SELECT json_group_array(name) FROM \
             (SELECT name FROM template_names WHERE template_id = t.id ORDER BY position)) AS names"
    };
}

macro_rules! build_columns {
    () => {
        "b.id, b.template_id, b.status, b.vcpus, b.memory_mib, b.disk_mib, b.max_processes, b.envd_version, \
         b.created_at, b.updated_at, b.finished_at"
    };
}

fn template_from_row(row: &SqliteRow) -> Result<Template, StoreError> {
    let c = Columns::new(row, "template");
    Ok(Template {
        id: c.parsed("id")?,
        team: c.parsed("team_id")?,
        names: c.json("names")?,
        public: c.raw("public")?,
        created_at: c.time("created_at")?,
        updated_at: c.time("updated_at")?,
        spawn_count: c.number("spawn_count")?,
        last_spawned_at: c.time_if_any("last_spawned_at")?,
        build_count: c.number("build_count")?,
    })
}

fn build_from_row(row: &SqliteRow) -> Result<TemplateBuild, StoreError> {
    let c = Columns::new(row, "template build");
    Ok(TemplateBuild {
        id: c.parsed("id")?,
        template: c.parsed("template_id")?,
        status: c.raw("status")?,
        resources: resources_from(&c)?,
        envd_version: c.raw("envd_version")?,
        created_at: c.time("created_at")?,
        updated_at: c.time("updated_at")?,
        finished_at: c.time_if_any("finished_at")?,
    })
}

/// The four columns of a record's [`Resources`].
pub(super) fn resources_from(c: &Columns<'_>) -> Result<Resources, StoreError> {
    Ok(Resources {
        vcpus: c.number("vcpus")?,
        memory_mib: c.number("memory_mib")?,
        disk_mib: c.number("disk_mib")?,
        max_processes: c.number("max_processes")?,
    })
}

pub(super) async fn upsert(conn: &mut SqliteConnection, template: &Template) -> Result<(), StoreError> {
    let attempted = "storing a template";
    let stored = sqlx::query(
        "INSERT INTO templates
             (id, team_id, public, created_at, updated_at, spawn_count, last_spawned_at, build_count)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (id) DO UPDATE SET public = excluded.public, updated_at = excluded.updated_at
             WHERE team_id = excluded.team_id",
    )
    .bind(template.id.as_str())
    .bind(template.team.to_string())
    .bind(template.public)
    .bind(template.created_at.0)
    .bind(template.updated_at.0)
    .bind(integer(template.spawn_count))
    .bind(template.last_spawned_at.map(|t| t.0))
    .bind(integer(template.build_count))
    .execute(&mut *conn)
    .await
    .map_err(rejected(attempted, || "the template exists".to_owned(), "team"))?;
    if stored.rows_affected() == 0 {
        return Err(conflict(format!("the template id '{}' belongs to another team", template.id)));
    }

    sqlx::query("DELETE FROM template_names WHERE template_id = ?")
        .bind(template.id.as_str())
        .execute(&mut *conn)
        .await
        .map_err(failed(attempted))?;
    for (position, name) in (0_i64..).zip(&template.names) {
        name_template(conn, template, name, position).await?;
    }
    Ok(())
}

async fn name_template(
    conn: &mut SqliteConnection,
    template: &Template,
    name: &str,
    position: i64,
) -> Result<(), StoreError> {
    let taken = || format!("the template name '{name}' is taken");
    let named = sqlx::query(
        "INSERT INTO template_names (team_id, name, template_id, position)
         SELECT ?1, ?2, ?3, ?4 WHERE NOT EXISTS (SELECT 1 FROM templates WHERE id = ?2 AND id <> ?3)",
    )
    .bind(template.team.to_string())
    .bind(name)
    .bind(template.id.as_str())
    .bind(position)
    .execute(conn)
    .await
    .map_err(rejected("naming a template", taken, "team"))?;
    if named.rows_affected() == 0 { Err(conflict(taken())) } else { Ok(()) }
}

pub(super) async fn list(conn: &mut SqliteConnection, team: TeamId) -> Result<Vec<Template>, StoreError> {
    sqlx::query(concat!(
        "SELECT ",
        template_columns!(),
        " FROM templates AS t WHERE t.team_id = ? OR t.public ORDER BY t.created_at DESC, t.id"
    ))
    .bind(team.to_string())
    .fetch_all(conn)
    .await
    .map_err(failed("listing templates"))?
    .iter()
    .map(template_from_row)
    .collect()
}

/// One statement, so that a template that is renamed meanwhile is found by its old or its new name. `rank` puts what
/// the text most likely means first.
pub(super) async fn find(
    conn: &mut SqliteConnection,
    team: TeamId,
    id_or_name: &str,
) -> Result<Template, StoreError> {
    let (slug, name) = split_name(id_or_name);
    let row = sqlx::query(concat!(
        "WITH candidates (template_id, rank) AS (
             SELECT n.template_id, CASE WHEN n.team_id = ?1 THEN 0 ELSE 1 END
             FROM template_names AS n JOIN teams AS o ON o.id = n.team_id
             WHERE n.name = ?3 AND (?2 IS NULL OR o.slug = ?2)
             UNION ALL
             SELECT ?3, 2 WHERE ?2 IS NULL
         )
         SELECT ",
        template_columns!(),
        " FROM candidates AS c JOIN templates AS t ON t.id = c.template_id
          WHERE t.team_id = ?1 OR t.public
          ORDER BY c.rank, t.created_at, t.id LIMIT 1"
    ))
    .bind(team.to_string())
    .bind(slug)
    .bind(name)
    .fetch_optional(conn)
    .await
    .map_err(failed("looking up a template"))?;
    template_from_row(&row.ok_or_else(|| not_found(format!("template '{id_or_name}'")))?)
}

/// `slug/name` into its parts; a bare name or an id has no slug.
fn split_name(id_or_name: &str) -> (Option<&str>, &str) {
    match id_or_name.split_once('/') {
        Some((slug, name)) => (Some(slug), name),
        None => (None, id_or_name),
    }
}

pub(super) async fn note_spawn(
    conn: &mut SqliteConnection,
    template: &TemplateId,
    now: Timestamp,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE templates SET spawn_count = spawn_count + 1,
                last_spawned_at = max(coalesce(last_spawned_at, ?2), ?2) WHERE id = ?1",
    )
    .bind(template.as_str())
    .bind(now.0)
    .execute(conn)
    .await
    .map(drop)
    .map_err(failed("counting a start"))
}

pub(super) async fn insert_build(
    conn: &mut SqliteConnection,
    build: &TemplateBuild,
    tags: &[String],
) -> Result<(), StoreError> {
    let attempted = "storing a template build";
    let id = build.id.to_string();
    let known = sqlx::query("SELECT 1 FROM builds WHERE id = ?")
        .bind(&id)
        .fetch_optional(&mut *conn)
        .await
        .map_err(failed(attempted))?
        .is_some();
    let stored = sqlx::query(
        "INSERT INTO builds (id, template_id, status, vcpus, memory_mib, disk_mib, max_processes, envd_version,
                             created_at, updated_at, finished_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (id) DO UPDATE SET status = excluded.status, vcpus = excluded.vcpus,
             memory_mib = excluded.memory_mib, disk_mib = excluded.disk_mib, max_processes = excluded.max_processes,
             envd_version = excluded.envd_version, created_at = excluded.created_at,
             updated_at = excluded.updated_at, finished_at = excluded.finished_at
         WHERE template_id = excluded.template_id",
    )
    .bind(&id)
    .bind(build.template.as_str())
    .bind(&build.status)
    .bind(build.resources.vcpus)
    .bind(build.resources.memory_mib)
    .bind(build.resources.disk_mib)
    .bind(build.resources.max_processes)
    .bind(&build.envd_version)
    .bind(build.created_at.0)
    .bind(build.updated_at.0)
    .bind(build.finished_at.map(|t| t.0))
    .execute(&mut *conn)
    .await
    .map_err(rejected(attempted, || "the template build exists".to_owned(), "template"))?;
    if stored.rows_affected() == 0 {
        return Err(conflict(format!("the build id '{id}' belongs to another template")));
    }
    if !known {
        sqlx::query("UPDATE templates SET build_count = build_count + 1 WHERE id = ?")
            .bind(build.template.as_str())
            .execute(&mut *conn)
            .await
            .map_err(failed(attempted))?;
    }
    for tag in tags {
        // A tag that is pointed to a build again moves to the front: the row gets a new number.
        sqlx::query("INSERT OR REPLACE INTO build_tags (template_id, tag, build_id) VALUES (?, ?, ?)")
            .bind(build.template.as_str())
            .bind(tag)
            .bind(&id)
            .execute(&mut *conn)
            .await
            .map_err(failed(attempted))?;
    }
    Ok(())
}

pub(super) async fn builds(
    conn: &mut SqliteConnection,
    template: &TemplateId,
) -> Result<Vec<TemplateBuild>, StoreError> {
    sqlx::query(concat!(
        "SELECT ",
        build_columns!(),
        " FROM builds AS b WHERE b.template_id = ? ORDER BY b.created_at DESC, b.rowid DESC"
    ))
    .bind(template.as_str())
    .fetch_all(conn)
    .await
    .map_err(failed("listing template builds"))?
    .iter()
    .map(build_from_row)
    .collect()
}

pub(super) async fn build_by_tag(
    conn: &mut SqliteConnection,
    template: &TemplateId,
    tag: &str,
) -> Result<TemplateBuild, StoreError> {
    let row = sqlx::query(concat!(
        "SELECT ",
        build_columns!(),
        " FROM build_tags AS g JOIN builds AS b ON b.id = g.build_id
          WHERE g.template_id = ? AND g.tag = ? AND b.status = 'ready'
          ORDER BY g.assignment DESC LIMIT 1"
    ))
    .bind(template.as_str())
    .bind(tag)
    .fetch_optional(conn)
    .await
    .map_err(failed("looking up a tag"))?;
    build_from_row(&row.ok_or_else(|| not_found(format!("tag '{tag}'")))?)
}

pub(super) async fn build(conn: &mut SqliteConnection, id: BuildId) -> Result<TemplateBuild, StoreError> {
    let row = sqlx::query(concat!("SELECT ", build_columns!(), " FROM builds AS b WHERE b.id = ?"))
        .bind(id.to_string())
        .fetch_optional(conn)
        .await
        .map_err(failed("reading a template build"))?;
    build_from_row(&row.ok_or_else(|| not_found("template build"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_carry_the_slug_of_its_team() {
        assert_eq!(split_name("base"), (None, "base"));
        assert_eq!(split_name("acme/base"), (Some("acme"), "base"));
        assert_eq!(split_name("/base"), (Some(""), "base"));
        assert_eq!(split_name("a/b/c"), (Some("a"), "b/c"));
        assert_eq!(split_name(""), (None, ""));
    }
}
