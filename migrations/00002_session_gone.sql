-- Since when the session is gone that an executor held, as the reaper saw it:
-- any executor may judge, and none has to have watched the whole time.

-- +goose Up
ALTER TABLE executors ADD COLUMN session_gone_at timestamptz;

-- +goose Down
ALTER TABLE executors DROP COLUMN session_gone_at;
