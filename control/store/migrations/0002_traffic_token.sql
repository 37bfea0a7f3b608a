-- What requests to a sandbox's ports must bring; NULL where anybody may come.
ALTER TABLE sandboxes ADD COLUMN traffic_token TEXT;

PRAGMA user_version = 2;
