-- +goose Up

-- A call that another one started, as run_commands_parallel does: the id of that
-- one, and its place there from 1.
ALTER TABLE calls ADD COLUMN parent TEXT;
ALTER TABLE calls ADD COLUMN child INTEGER;

DROP VIEW call_list;
CREATE VIEW call_list AS
SELECT c.id, c.principal, c.server, c.tool, datetime(c.started / 1e6, 'unixepoch') AS started,
    CASE e.outcome WHEN 1 THEN 'completed' WHEN 2 THEN 'failed' WHEN 3 THEN 'cancelled' WHEN 4 THEN 'timed_out'
        WHEN 5 THEN 'denied' WHEN 6 THEN 'interrupted' ELSE 'running' END AS state,
    (e.ended - c.started) / 1e6 AS seconds, e.tool_error, e.code, e.ended_by, e.end_limit, e.end_text, c.parent, c.child
FROM calls c LEFT JOIN ends e ON e.n = c.n;
DROP VIEW event_list;
CREATE VIEW event_list AS
SELECT c.id, 1 AS seq, 'accepted' AS kind, datetime(c.accepted / 1e6, 'unixepoch') AS at, NULL AS body, NULL AS file
FROM calls c WHERE c.accepted IS NOT NULL
UNION ALL
SELECT c.id, e.key & 268435455,
    CASE e.kind WHEN 1 THEN 'accepted' WHEN 2 THEN 'dispatched' WHEN 3 THEN 'address' WHEN 4 THEN 'progress' WHEN 5 THEN 'message'
        WHEN 6 THEN 'note' WHEN 7 THEN 'cancel_requested' WHEN 8 THEN 'late_result' WHEN 9 THEN 'end' WHEN 11 THEN 'ask' WHEN 12 THEN 'answer'
        WHEN 13 THEN 'ready' END,
    datetime(e.at / 1e6, 'unixepoch'), CASE WHEN e.kind <> 3 THEN e.body END,
    CASE WHEN e.file IS NOT NULL AND e.kind <> 3 THEN c.n || '-' || (e.key & 268435455) END
FROM calls c JOIN events e ON e.key BETWEEN c.n << 28 AND (c.n << 28) + 268435455;
DROP VIEW delivery_list;
CREATE VIEW delivery_list AS
SELECT c.id, d.kind,
    CASE d.how WHEN 1 THEN 'delivered' WHEN 2 THEN 'aborted_downstream' WHEN 3 THEN 'handed_off' WHEN 4 THEN 'replayed'
        WHEN 5 THEN 'slow' WHEN 6 THEN 'shutdown' WHEN 7 THEN 'asked' WHEN 8 THEN 'told' END AS how,
    d.era, datetime(d.attached / 1e6, 'unixepoch') AS attached, d.first_byte / 1e3 AS first_byte_ms,
    (d.ended - d.attached) / 1e6 AS seconds, d.bytes, d.events, d.dropped
FROM calls c JOIN deliveries d ON d.key BETWEEN c.n << 16 AND (c.n << 16) + 65535;

PRAGMA user_version = 3;

-- +goose Down
DROP VIEW delivery_list;
CREATE VIEW delivery_list AS
SELECT c.id, d.kind,
    CASE d.how WHEN 1 THEN 'delivered' WHEN 2 THEN 'aborted_downstream' WHEN 3 THEN 'handed_off' WHEN 4 THEN 'replayed'
        WHEN 5 THEN 'slow' WHEN 6 THEN 'shutdown' END AS how,
    d.era, datetime(d.attached / 1e6, 'unixepoch') AS attached, d.first_byte / 1e3 AS first_byte_ms,
    (d.ended - d.attached) / 1e6 AS seconds, d.bytes, d.events, d.dropped
FROM calls c JOIN deliveries d ON d.key BETWEEN c.n << 16 AND (c.n << 16) + 65535;
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
DROP VIEW call_list;
CREATE VIEW call_list AS
SELECT c.id, c.principal, c.server, c.tool, datetime(c.started / 1e6, 'unixepoch') AS started,
    CASE e.outcome WHEN 1 THEN 'completed' WHEN 2 THEN 'failed' WHEN 3 THEN 'cancelled' WHEN 4 THEN 'timed_out'
        WHEN 5 THEN 'denied' WHEN 6 THEN 'interrupted' ELSE 'running' END AS state,
    (e.ended - c.started) / 1e6 AS seconds, e.tool_error, e.code, e.ended_by, e.end_limit, e.end_text
FROM calls c LEFT JOIN ends e ON e.n = c.n;
ALTER TABLE calls DROP COLUMN child;
ALTER TABLE calls DROP COLUMN parent;
PRAGMA user_version = 2;
