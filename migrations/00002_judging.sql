-- What executors are judged by stands in the database: any of them may judge,
-- and none has to have watched the whole time.

-- +goose Up
ALTER TABLE executors ADD COLUMN session_gone_at timestamptz; -- since when its session is gone, as a pass saw it
ALTER TABLE housekeeping ADD COLUMN since timestamptz NOT NULL DEFAULT now(); -- since when it is done without a gap

-- +goose Down
ALTER TABLE housekeeping DROP COLUMN since;
ALTER TABLE executors DROP COLUMN session_gone_at;
