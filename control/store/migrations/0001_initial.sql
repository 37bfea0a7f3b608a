-- Times are milliseconds since the Unix epoch, ids and JSON are text.

CREATE TABLE teams (
    id          TEXT    NOT NULL PRIMARY KEY,
    name        TEXT    NOT NULL,
    slug        TEXT    NOT NULL UNIQUE,
    created_at  INTEGER NOT NULL
) STRICT;

CREATE TABLE api_keys (
    id           TEXT    NOT NULL PRIMARY KEY,
    team_id      TEXT    NOT NULL REFERENCES teams (id),
    name         TEXT    NOT NULL,
    hash         TEXT    NOT NULL UNIQUE,
    mask_prefix  TEXT    NOT NULL,
    mask_suffix  TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER,
    revoked_at   INTEGER
) STRICT;

-- The name of a revoked key may be used again.
CREATE UNIQUE INDEX api_keys_live_name ON api_keys (team_id, name) WHERE revoked_at IS NULL;

CREATE TABLE templates (
    id              TEXT    NOT NULL PRIMARY KEY,
    team_id         TEXT    NOT NULL REFERENCES teams (id),
    public          INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    spawn_count     INTEGER NOT NULL,
    last_spawned_at INTEGER,
    build_count     INTEGER NOT NULL
) STRICT;

CREATE INDEX templates_by_team ON templates (team_id);

CREATE TABLE template_names (
    team_id     TEXT    NOT NULL REFERENCES teams (id),
    name        TEXT    NOT NULL,
    template_id TEXT    NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    position    INTEGER NOT NULL,
    PRIMARY KEY (team_id, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX template_names_by_template ON template_names (template_id, position);
CREATE INDEX template_names_by_name ON template_names (name);

CREATE TABLE builds (
    id            TEXT    NOT NULL PRIMARY KEY,
    template_id   TEXT    NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    status        TEXT    NOT NULL,
    vcpus         INTEGER NOT NULL,
    memory_mib    INTEGER NOT NULL,
    disk_mib      INTEGER NOT NULL,
    max_processes INTEGER NOT NULL,
    envd_version  TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    finished_at   INTEGER
) STRICT;

CREATE INDEX builds_by_template ON builds (template_id, created_at);

-- A tag keeps its older builds: while the newest is not ready, the one before it serves.
CREATE TABLE build_tags (
    assignment  INTEGER PRIMARY KEY AUTOINCREMENT,
    template_id TEXT    NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    tag         TEXT    NOT NULL,
    build_id    TEXT    NOT NULL REFERENCES builds (id) ON DELETE CASCADE
) STRICT;

CREATE INDEX build_tags_by_tag ON build_tags (template_id, tag, assignment);
CREATE UNIQUE INDEX build_tags_once ON build_tags (build_id, tag);

CREATE TABLE sandboxes (
    id                    TEXT    NOT NULL PRIMARY KEY,
    team_id               TEXT    NOT NULL REFERENCES teams (id),
    template_id           TEXT    NOT NULL,
    build_id              TEXT    NOT NULL,
    alias                 TEXT,
    vcpus                 INTEGER NOT NULL,
    memory_mib            INTEGER NOT NULL,
    disk_mib              INTEGER NOT NULL,
    max_processes         INTEGER NOT NULL,
    metadata              TEXT    NOT NULL,
    access_token          TEXT    NOT NULL,
    allow_internet_access INTEGER,
    extra                 TEXT    NOT NULL,
    created_at            INTEGER NOT NULL,
    first_end_at          INTEGER NOT NULL,
    state                 TEXT    NOT NULL,
    started_at            INTEGER NOT NULL,
    end_at                INTEGER NOT NULL,
    envd_version          TEXT    NOT NULL,
    isolation             TEXT    NOT NULL,
    ended_at              INTEGER,
    end_reason            TEXT
) STRICT;

-- Lists and the count of a team's live sandboxes; the last two columns make it cover the count.
CREATE INDEX sandboxes_live ON sandboxes (team_id, started_at, id, state, ended_at) WHERE ended_at IS NULL;
-- The reaper's question.
CREATE INDEX sandboxes_deadline ON sandboxes (end_at) WHERE state = 'running';
CREATE INDEX sandboxes_ended ON sandboxes (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE idempotency (
    team_id     TEXT    NOT NULL REFERENCES teams (id),
    key         TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    claimed_at  INTEGER NOT NULL,
    claim_until INTEGER NOT NULL,
    status      INTEGER,
    body        TEXT,
    PRIMARY KEY (team_id, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_age ON idempotency (claimed_at);

PRAGMA application_id = 1215657059;
PRAGMA user_version = 1;
