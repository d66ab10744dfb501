-- +goose Up

-- Calls that outlive their connection and their process. The one thing that
-- changes in place is calls.epoch: when a later process takes a call up, it
-- writes its own there, if the earlier one's still is (compare and set).

-- The agent's id of the request in its session, and the digest of the key that
-- makes two requests the same call.
ALTER TABLE calls ADD COLUMN agent_request TEXT;
ALTER TABLE calls ADD COLUMN idempotency TEXT;

-- Where to go on at the tool server after this event.
ALTER TABLE events ADD COLUMN cursor BLOB;

-- The agents' sessions, so that they outlive a restart. hash is the SHA-256 of
-- the session's id in hex: the id itself is a secret that is only compared.
CREATE TABLE sessions (
    hash      TEXT NOT NULL UNIQUE,
    principal TEXT,
    server    TEXT,
    version   TEXT,
    client    TEXT,
    created   INTEGER NOT NULL,
    used      INTEGER NOT NULL,
    data      BLOB
);
CREATE INDEX sessions_used ON sessions (used);

-- An address and a cursor are for the process alone, so no view shows them.
DROP VIEW event_list;
CREATE VIEW event_list AS
SELECT c.id, 1 AS seq, 'accepted' AS kind, datetime(c.accepted / 1e6, 'unixepoch') AS at, NULL AS body, NULL AS file
FROM calls c WHERE c.accepted IS NOT NULL
UNION ALL
SELECT c.id, e.key & 268435455,
    CASE e.kind WHEN 1 THEN 'accepted' WHEN 2 THEN 'dispatched' WHEN 3 THEN 'address' WHEN 4 THEN 'progress' WHEN 5 THEN 'message'
        WHEN 6 THEN 'note' WHEN 7 THEN 'cancel_requested' WHEN 8 THEN 'late_result' WHEN 9 THEN 'end' WHEN 11 THEN 'ask' WHEN 12 THEN 'answer' END,
    datetime(e.at / 1e6, 'unixepoch'), CASE WHEN e.kind <> 3 THEN e.body END,
    CASE WHEN e.file IS NOT NULL AND e.kind <> 3 THEN c.n || '-' || (e.key & 268435455) END
FROM calls c JOIN events e ON e.key BETWEEN c.n << 28 AND (c.n << 28) + 268435455;

PRAGMA user_version = 2;

-- +goose Down
DROP VIEW event_list;
CREATE VIEW event_list AS
SELECT c.id, 1 AS seq, 'accepted' AS kind, datetime(c.accepted / 1e6, 'unixepoch') AS at, NULL AS body, NULL AS file
FROM calls c WHERE c.accepted IS NOT NULL
UNION ALL
SELECT c.id, e.key & 268435455,
    CASE e.kind WHEN 1 THEN 'accepted' WHEN 2 THEN 'dispatched' WHEN 4 THEN 'progress' WHEN 5 THEN 'message' WHEN 6 THEN 'note'
        WHEN 7 THEN 'cancel_requested' WHEN 8 THEN 'late_result' WHEN 9 THEN 'end' END,
    datetime(e.at / 1e6, 'unixepoch'), e.body, CASE WHEN e.file IS NOT NULL THEN c.n || '-' || (e.key & 268435455) END
FROM calls c JOIN events e ON e.key BETWEEN c.n << 28 AND (c.n << 28) + 268435455;
DROP TABLE sessions;
ALTER TABLE events DROP COLUMN cursor;
ALTER TABLE calls DROP COLUMN idempotency;
ALTER TABLE calls DROP COLUMN agent_request;
PRAGMA user_version = 1;
