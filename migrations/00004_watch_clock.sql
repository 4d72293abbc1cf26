-- For how long an executor was silent while somebody looked: a clock that runs
-- while passes are made, and stands still while nobody reaches Postgres.
-- housekeeping.since is not read any more; executors of before still write it.

-- +goose Up
ALTER TABLE housekeeping ADD COLUMN watched interval NOT NULL DEFAULT '0'; -- of the row that looks for dead executors: the clock, as of done_at
ALTER TABLE executors ADD COLUMN beat_watched interval NOT NULL DEFAULT '0'; -- what it showed at the last beat

-- +goose Down
ALTER TABLE executors DROP COLUMN beat_watched;
ALTER TABLE housekeeping DROP COLUMN watched;
