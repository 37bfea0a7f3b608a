-- What is saved at the end of the lease ('full', 'filesystem'); NULL: it is killed then.
ALTER TABLE sandboxes ADD auto_pause TEXT;
-- While it is pausing, paused or resuming: what is (being) saved, and since when.
ALTER TABLE sandboxes ADD pause_mode TEXT;
ALTER TABLE sandboxes ADD paused_at INTEGER;

PRAGMA user_version = 3;
