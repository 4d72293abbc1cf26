-- River UI asks for the end of a running job in the job's row; the run's row
-- learns of it only when its worker does.

-- +goose Up
-- refuse_if_cancelled fails where the end of the run was asked for: nothing of
-- it may begin, wait or be handed on any more.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION refuse_if_cancelled(run_id uuid) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM FROM runs LEFT JOIN river_job ON river_job.id = runs.job_id
    WHERE runs.id = refuse_if_cancelled.run_id
      AND (runs.cancel_requested_at IS NOT NULL OR river_job.metadata ? 'cancel_attempted_at');
    IF FOUND THEN
        RAISE EXCEPTION 'run % is to be cancelled', run_id USING ERRCODE = 'EXF02';
    END IF;
END $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION refuse_if_cancelled(run_id uuid) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM FROM runs WHERE runs.id = refuse_if_cancelled.run_id AND runs.cancel_requested_at IS NOT NULL;
    IF FOUND THEN
        RAISE EXCEPTION 'run % is to be cancelled', run_id USING ERRCODE = 'EXF02';
    END IF;
END $$;
-- +goose StatementEnd
