-- The existence filter in Redis: which generations stand, on which history of which server. One row
-- per place, changed by compare-and-set on its revision (crates/model/src/filter.rs says how).
CREATE TABLE filter_plan (
  place INT UNSIGNED NOT NULL,
  revision BIGINT UNSIGNED NOT NULL,
  plan VARBINARY(2048) NOT NULL,
  PRIMARY KEY (place)
);
