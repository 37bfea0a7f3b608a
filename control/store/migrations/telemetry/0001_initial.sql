-- Samples and log lines: many, small, and not worth a sync of the disk each.

CREATE TABLE metrics (
    sandbox_id       TEXT    NOT NULL,
    at               INTEGER NOT NULL,
    cpu_count        INTEGER NOT NULL,
    cpu_used_pct     REAL    NOT NULL,
    mem_used_bytes   INTEGER NOT NULL,
    mem_total_bytes  INTEGER NOT NULL,
    mem_cache_bytes  INTEGER NOT NULL,
    disk_used_bytes  INTEGER NOT NULL,
    disk_total_bytes INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX metrics_by_sandbox ON metrics (sandbox_id, at);
CREATE INDEX metrics_age ON metrics (at);

CREATE TABLE logs (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    sandbox_id TEXT    NOT NULL,
    at         INTEGER NOT NULL,
    level      TEXT    NOT NULL,
    severity   INTEGER NOT NULL,
    message    TEXT    NOT NULL,
    fields     TEXT    NOT NULL
) STRICT;

CREATE INDEX logs_by_sandbox ON logs (sandbox_id, at, seq);
CREATE INDEX logs_age ON logs (at);

PRAGMA application_id = 1215657060;
PRAGMA user_version = 1;
