-- How much text each sandbox has logged, kept by triggers so that no way of adding or removing lines can forget it.
-- A line counts with 64 bytes beside its text: what its row and its place in the indexes take, roughly.

CREATE TABLE log_sizes (
    sandbox_id TEXT    NOT NULL PRIMARY KEY,
    bytes      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO log_sizes
    SELECT sandbox_id, SUM(64 + octet_length(message) + octet_length(fields)) FROM logs GROUP BY sandbox_id;

CREATE TRIGGER logs_grow AFTER INSERT ON logs BEGIN
    INSERT INTO log_sizes VALUES (NEW.sandbox_id, 64 + octet_length(NEW.message) + octet_length(NEW.fields))
        ON CONFLICT (sandbox_id) DO UPDATE SET bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER logs_shrink AFTER DELETE ON logs BEGIN
    UPDATE log_sizes SET bytes = bytes - 64 - octet_length(OLD.message) - octet_length(OLD.fields)
        WHERE sandbox_id = OLD.sandbox_id;
    DELETE FROM log_sizes WHERE sandbox_id = OLD.sandbox_id AND bytes <= 0;
END;

PRAGMA user_version = 2;
