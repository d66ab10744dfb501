-- +goose Up

-- Everything here is appended, never changed: a call is a row in calls, its
-- end a row in ends. Rows are numbered in the order in which calls came, so
-- that writing touches the last page of a table only. Times are microseconds
-- since 1970, durations microseconds. Text that is empty is NULL.

-- The owner of the journal: every process that writes here takes a higher
-- epoch. Calls with a number below low have ended. Calls with a number up to
-- indexed are in ids.
CREATE TABLE owner (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    epoch   INTEGER NOT NULL,
    low     INTEGER NOT NULL,
    indexed INTEGER NOT NULL
);
INSERT INTO owner (id, epoch, low, indexed) VALUES (1, 0, 1, 0);

-- accepted is the time of the call's first event, which has no row in events
-- then.
CREATE TABLE calls (
    n           INTEGER PRIMARY KEY,
    id          TEXT NOT NULL,
    epoch       INTEGER NOT NULL,
    started     INTEGER NOT NULL,
    accepted    INTEGER,
    principal   TEXT,
    server      TEXT,
    tool        TEXT,
    public_tool TEXT,
    session     TEXT,
    client      TEXT,
    era         TEXT,
    request_id  TEXT,
    traceparent TEXT,
    digest      TEXT,
    limits      TEXT,
    arguments   BLOB
);

-- The index of calls by id. Ids are random, so every call would touch another
-- page of it: it is filled later, many calls at a time. h is the first 60 bits
-- of the id, or a number up to 16 higher if another call has that.
CREATE TABLE ids (
    h INTEGER PRIMARY KEY,
    n INTEGER NOT NULL
);

-- A call ends once: the key is the compare-and-set.
CREATE TABLE ends (
    n          INTEGER PRIMARY KEY,
    seq        INTEGER NOT NULL,
    outcome    INTEGER NOT NULL,
    ended      INTEGER NOT NULL,
    dispatched INTEGER NOT NULL,
    first_byte INTEGER NOT NULL,
    missing    INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    tool_error INTEGER NOT NULL,
    code       INTEGER NOT NULL,
    ended_by   TEXT,
    end_limit  TEXT,
    end_text   TEXT
);

-- key is call number << 28 | seq: unique, and the events of a call lie side by
-- side. file is the size of a body that is kept in the folder blobs.
CREATE TABLE events (
    key  INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL,
    at   INTEGER NOT NULL,
    hole INTEGER NOT NULL,
    body BLOB,
    file INTEGER
);

-- key is call number << 16 | the how-manieth.
CREATE TABLE deliveries (
    key        INTEGER PRIMARY KEY,
    kind       TEXT,
    how        INTEGER NOT NULL,
    era        TEXT,
    attached   INTEGER NOT NULL,
    first_byte INTEGER NOT NULL,
    ended      INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    events     INTEGER NOT NULL,
    dropped    INTEGER NOT NULL
);

-- For people with a SQL shell.
CREATE VIEW call_list AS
SELECT c.id, c.principal, c.server, c.tool, datetime(c.started / 1e6, 'unixepoch') AS started,
    CASE e.outcome WHEN 1 THEN 'completed' WHEN 2 THEN 'failed' WHEN 3 THEN 'cancelled' WHEN 4 THEN 'timed_out'
        WHEN 5 THEN 'denied' WHEN 6 THEN 'interrupted' ELSE 'running' END AS state,
    (e.ended - c.started) / 1e6 AS seconds, e.tool_error, e.code, e.ended_by, e.end_limit, e.end_text
FROM calls c LEFT JOIN ends e ON e.n = c.n;
CREATE VIEW event_list AS
SELECT c.id, 1 AS seq, 'accepted' AS kind, datetime(c.accepted / 1e6, 'unixepoch') AS at, NULL AS body, NULL AS file
FROM calls c WHERE c.accepted IS NOT NULL
UNION ALL
SELECT c.id, e.key & 268435455,
    CASE e.kind WHEN 1 THEN 'accepted' WHEN 2 THEN 'dispatched' WHEN 4 THEN 'progress' WHEN 5 THEN 'message' WHEN 6 THEN 'note'
        WHEN 7 THEN 'cancel_requested' WHEN 8 THEN 'late_result' WHEN 9 THEN 'end' END,
    datetime(e.at / 1e6, 'unixepoch'), e.body, CASE WHEN e.file IS NOT NULL THEN c.n || '-' || (e.key & 268435455) END
FROM calls c JOIN events e ON e.key BETWEEN c.n << 28 AND (c.n << 28) + 268435455;
CREATE VIEW delivery_list AS
SELECT c.id, d.kind,
    CASE d.how WHEN 1 THEN 'delivered' WHEN 2 THEN 'aborted_downstream' WHEN 3 THEN 'handed_off' WHEN 4 THEN 'replayed'
        WHEN 5 THEN 'slow' WHEN 6 THEN 'shutdown' END AS how,
    d.era, datetime(d.attached / 1e6, 'unixepoch') AS attached, d.first_byte / 1e3 AS first_byte_ms,
    (d.ended - d.attached) / 1e6 AS seconds, d.bytes, d.events, d.dropped
FROM calls c JOIN deliveries d ON d.key BETWEEN c.n << 16 AND (c.n << 16) + 65535;

PRAGMA user_version = 1;

-- +goose Down
DROP VIEW delivery_list;
DROP VIEW event_list;
DROP VIEW call_list;
DROP TABLE deliveries;
DROP TABLE events;
DROP TABLE ends;
DROP TABLE ids;
DROP TABLE calls;
DROP TABLE owner;
PRAGMA user_version = 0;
