-- +goose Up

-- The owner of the journal: every process that writes here takes a higher
-- epoch. No running call has a number below low.
CREATE TABLE owner (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    epoch INTEGER NOT NULL,
    low   INTEGER NOT NULL
);
INSERT INTO owner (id, epoch, low) VALUES (1, 0, 1);

-- One row per call, in the order in which they were accepted. Times are
-- microseconds since 1970. outcome 0 is running; columns from ended on are set
-- when the call ends.
CREATE TABLE calls (
    n           INTEGER PRIMARY KEY,
    id          TEXT NOT NULL,
    outcome     INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    started     INTEGER NOT NULL,
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
    arguments   BLOB,
    ended       INTEGER,
    dispatched  INTEGER,
    first_byte  INTEGER,
    seq         INTEGER,
    missing     INTEGER,
    bytes       INTEGER,
    tool_error  INTEGER,
    code        INTEGER,
    ended_by    TEXT,
    end_limit   TEXT,
    end_text    TEXT
);
CREATE UNIQUE INDEX calls_id ON calls (id);

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

-- key is call number << 16 | the how-manieth. Durations are microseconds.
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
CREATE VIEW events_by_call AS
SELECT c.id AS call, e.key & 268435455 AS seq, e.kind, e.at, e.hole, e.body, e.file
FROM calls c JOIN events e ON e.key BETWEEN c.n << 28 AND (c.n << 28) + 268435455;
CREATE VIEW deliveries_by_call AS
SELECT c.id AS call, d.key & 65535 AS number, d.kind, d.how, d.era, d.attached, d.first_byte, d.ended, d.bytes, d.events, d.dropped
FROM calls c JOIN deliveries d ON d.key BETWEEN c.n << 16 AND (c.n << 16) + 65535;

PRAGMA user_version = 1;

-- +goose Down
DROP VIEW deliveries_by_call;
DROP VIEW events_by_call;
DROP TABLE deliveries;
DROP TABLE events;
DROP TABLE calls;
DROP TABLE owner;
PRAGMA user_version = 0;
