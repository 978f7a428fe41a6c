-- The cluster's tables. Times are milliseconds, names and texts are bytes.

-- A source's last version (without its region byte), source-side tallies and next group id.
-- Whoever holds the row decides for that source and kind. Excluded: an edge that excludes some of
-- this source's edges was put once, from or to it; where it is 0 there is none.
CREATE TABLE head (
  tenant INT UNSIGNED NOT NULL,
  kind SMALLINT UNSIGNED NOT NULL,
  source BIGINT UNSIGNED NOT NULL,
  version BIGINT UNSIGNED NOT NULL,
  outgoing BIGINT NOT NULL DEFAULT 0,
  pending_outgoing BIGINT NOT NULL DEFAULT 0,
  next_group INT UNSIGNED NOT NULL DEFAULT 1,
  excluded TINYINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant, kind, source)
);

-- The truth about edges. A removed edge leaves a tombstone (state 2).
CREATE TABLE outgoing (
  tenant INT UNSIGNED NOT NULL,
  kind SMALLINT UNSIGNED NOT NULL,
  source BIGINT UNSIGNED NOT NULL,
  target BIGINT UNSIGNED NOT NULL,
  version BIGINT UNSIGNED NOT NULL,
  state TINYINT UNSIGNED NOT NULL,
  since BIGINT UNSIGNED NOT NULL,
  group_id INT UNSIGNED NULL,
  owner BIGINT UNSIGNED NULL,
  data VARBINARY(128) NULL,
  expires_at BIGINT UNSIGNED NULL,
  cause VARCHAR(32) NULL,
  PRIMARY KEY (tenant, kind, source, target),
  KEY by_time (tenant, kind, source, state, since, target)
);

-- The same edges by target, kept by the appliers: what target-side lists and tallies need.
CREATE TABLE incoming (
  tenant INT UNSIGNED NOT NULL,
  kind SMALLINT UNSIGNED NOT NULL,
  target BIGINT UNSIGNED NOT NULL,
  source BIGINT UNSIGNED NOT NULL,
  version BIGINT UNSIGNED NOT NULL,
  state TINYINT UNSIGNED NOT NULL,
  since BIGINT UNSIGNED NOT NULL,
  owner BIGINT UNSIGNED NULL,
  PRIMARY KEY (tenant, kind, target, source),
  KEY by_time (tenant, kind, target, state, since, source)
);

-- Target-side tallies. Slot 0 has a target's own numbers, which one partition writes; an owner's
-- come from many partitions, so each has a slot of its own (partition + 1), and they add up.
CREATE TABLE tally (
  tenant INT UNSIGNED NOT NULL,
  node_type SMALLINT UNSIGNED NOT NULL,
  node BIGINT UNSIGNED NOT NULL,
  kind SMALLINT UNSIGNED NOT NULL,
  slot SMALLINT UNSIGNED NOT NULL,
  incoming BIGINT NOT NULL DEFAULT 0,
  pending_incoming BIGINT NOT NULL DEFAULT 0,
  owned BIGINT NOT NULL DEFAULT 0,
  revision BIGINT UNSIGNED NOT NULL DEFAULT 1,
  PRIMARY KEY (tenant, node_type, node, kind, slot)
);

-- Pure counters: the value is the sum of the slots.
CREATE TABLE counter (
  tenant INT UNSIGNED NOT NULL,
  kind SMALLINT UNSIGNED NOT NULL,
  node BIGINT UNSIGNED NOT NULL,
  slot SMALLINT UNSIGNED NOT NULL,
  value BIGINT NOT NULL,
  PRIMARY KEY (tenant, kind, node, slot)
);

CREATE TABLE `groups` (
  tenant INT UNSIGNED NOT NULL,
  kind SMALLINT UNSIGNED NOT NULL,
  source BIGINT UNSIGNED NOT NULL,
  id INT UNSIGNED NOT NULL,
  name VARBINARY(256) NOT NULL,
  size BIGINT NOT NULL,
  PRIMARY KEY (tenant, kind, source, id)
);

CREATE TABLE nodes (
  tenant INT UNSIGNED NOT NULL,
  node_type SMALLINT UNSIGNED NOT NULL,
  id BIGINT UNSIGNED NOT NULL,
  private TINYINT UNSIGNED NOT NULL,
  erased_by BIGINT UNSIGNED NULL,
  PRIMARY KEY (tenant, node_type, id)
);

CREATE TABLE node_types (
  tenant INT UNSIGNED NOT NULL,
  id SMALLINT UNSIGNED NOT NULL,
  name VARBINARY(32) NOT NULL,
  PRIMARY KEY (tenant, id)
);

-- A kind as the model encodes it.
CREATE TABLE kinds (
  tenant INT UNSIGNED NOT NULL,
  id SMALLINT UNSIGNED NOT NULL,
  name VARBINARY(32) NOT NULL,
  definition VARBINARY(1024) NOT NULL,
  PRIMARY KEY (tenant, id)
);

-- Edges that expire, by time; the shard (of the source) keeps inserts from meeting at one place.
CREATE TABLE expiry (
  shard TINYINT UNSIGNED NOT NULL,
  expires_at BIGINT UNSIGNED NOT NULL,
  tenant INT UNSIGNED NOT NULL,
  kind SMALLINT UNSIGNED NOT NULL,
  source BIGINT UNSIGNED NOT NULL,
  target BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (shard, expires_at, tenant, kind, source, target)
);

-- The mark says which batch took the key first; the answers are as the model encodes them.
CREATE TABLE idempotency (
  tenant INT UNSIGNED NOT NULL,
  name VARBINARY(64) NOT NULL,
  mark BIGINT UNSIGNED NOT NULL,
  at BIGINT UNSIGNED NOT NULL,
  answers MEDIUMBLOB NULL,
  PRIMARY KEY (tenant, name),
  KEY by_time (at)
);

-- A place has the rejected lines that are kept with it.
CREATE TABLE imports (
  tenant INT UNSIGNED NOT NULL,
  id VARBINARY(64) NOT NULL,
  place MEDIUMBLOB NOT NULL,
  PRIMARY KEY (tenant, id)
);

-- Records on their way to the log: one row per transaction, packed (cluster/outbox.rs), with how many
-- they are. The version is the lowest of them; the id is random. A barrier's row has its id as both.
CREATE TABLE outbox (
  shard TINYINT UNSIGNED NOT NULL,
  version BIGINT UNSIGNED NOT NULL,
  id BIGINT UNSIGNED NOT NULL,
  barrier BIGINT UNSIGNED NULL,
  records INT UNSIGNED NOT NULL,
  value MEDIUMBLOB NOT NULL,
  PRIMARY KEY (shard, version, id)
);

-- The next offset that a partition's applier takes; locked first in each of its transactions. It is
-- one of the topic with this id, and comes after the record with this mark, hashes both: 0 where that
-- is not known. The watermark is a changefeed's: all changes up to that commit timestamp have been applied.
CREATE TABLE applied (
  topic VARBINARY(249) NOT NULL,
  part INT UNSIGNED NOT NULL,
  next BIGINT UNSIGNED NOT NULL,
  topic_id BIGINT UNSIGNED NOT NULL DEFAULT 0,
  mark INT UNSIGNED NOT NULL DEFAULT 0,
  watermark BIGINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (topic, part)
);

-- What the broker said to have for good: whoever reads the record at this position of the topic with
-- this id must find the one with this mark, hashes both. A relay notes the first and the last that it
-- sent to each partition in the transaction that deletes the records between them from the outbox; a
-- later last one takes the place of the one with the same number. So what the log lost since is known
-- to be missing.
CREATE TABLE acknowledged (
  topic VARBINARY(249) NOT NULL,
  part INT UNSIGNED NOT NULL,
  writer BIGINT UNSIGNED NOT NULL,
  position BIGINT UNSIGNED NOT NULL,
  topic_id BIGINT UNSIGNED NOT NULL,
  mark INT UNSIGNED NOT NULL,
  PRIMARY KEY (topic, part, writer)
);

-- How far a barrier has come in each partition: for which shards of the outbox, as bits, all that
-- stood there before it has been applied. One row more, of no partition, says that it was raised.
CREATE TABLE barriers (
  id BIGINT UNSIGNED NOT NULL,
  part INT UNSIGNED NOT NULL,
  shards BIGINT UNSIGNED NOT NULL,
  passed_at BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (id, part)
);

-- Who does what alone, until when; the fence grows with each new owner.
CREATE TABLE leases (
  name VARBINARY(64) NOT NULL,
  owner BIGINT UNSIGNED NOT NULL,
  until_ms BIGINT UNSIGNED NOT NULL,
  fence BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (name)
);

-- Records that never could be applied, with why. Which record it was is said as in `applied`: its
-- position, the id of the topic and its own mark. The columns of an edge are null where unreadable;
-- published says whether the dead-letter topic has it.
CREATE TABLE dead_letters (
  id BIGINT UNSIGNED NOT NULL,
  topic VARBINARY(249) NOT NULL,
  part INT UNSIGNED NOT NULL,
  position BIGINT UNSIGNED NOT NULL,
  topic_id BIGINT UNSIGNED NOT NULL,
  mark INT UNSIGNED NOT NULL,
  tenant INT UNSIGNED NULL,
  kind SMALLINT UNSIGNED NULL,
  source BIGINT UNSIGNED NULL,
  target BIGINT UNSIGNED NULL,
  at BIGINT UNSIGNED NOT NULL,
  cause VARBINARY(1024) NOT NULL,
  value MEDIUMBLOB NOT NULL,
  published TINYINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (id),
  UNIQUE KEY by_place (topic, part, position, topic_id, mark),
  KEY by_published (published, id)
);

-- Jobs as the model encodes them.
CREATE TABLE jobs (
  tenant INT UNSIGNED NOT NULL,
  id BIGINT UNSIGNED NOT NULL,
  finished TINYINT UNSIGNED NOT NULL,
  job VARBINARY(1024) NOT NULL,
  PRIMARY KEY (tenant, id),
  KEY by_state (finished, tenant, id)
);

-- Facts of the whole cluster: version_floor, partitions, identity, catalog (a revision that each
-- change of a kind or node type raises; locked first by whoever changes one), unmarked (1: a kind
-- came to exclude another when it had edges already, so `head.excluded` does not tell of all).
CREATE TABLE facts (
  name VARBINARY(64) NOT NULL,
  value BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (name)
);

-- What only this cluster knows: the value under `tokens` seals tokens, cursors and event ids.
CREATE TABLE secrets (
  name VARBINARY(64) NOT NULL,
  value VARBINARY(64) NOT NULL,
  PRIMARY KEY (name)
);

-- When machines were started, as far as their clocks are believed: a row for each start of one.
CREATE TABLE clocks (
  boot_id VARBINARY(64) NOT NULL,
  began_ms BIGINT NOT NULL,
  seen_ms BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (boot_id)
);
