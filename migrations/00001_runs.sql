-- Names are unqualified: the migrator sets search_path to the configured
-- schema, and functions keep it (SET search_path FROM CURRENT).

-- +goose Up
CREATE TABLE failure_codes (
    code       text PRIMARY KEY CHECK (code ~ '^[a-z][a-z0-9_]*$'),
    parent     text REFERENCES failure_codes (code),
    policy     text NOT NULL,
    meaning    text NOT NULL,
    retired_at timestamptz
);
COMMENT ON TABLE failure_codes IS 'Every reason a run can fail for. Kept equal to the program''s table; rows are never deleted.';

CREATE TABLE executors (
    id         uuid PRIMARY KEY,
    machine    text NOT NULL CHECK (machine <> ''),
    hostname   text NOT NULL,
    version    text NOT NULL,
    pid        integer NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    beat_at    timestamptz NOT NULL DEFAULT now(),
    session    boolean NOT NULL DEFAULT false, -- it holds an advisory lock on a session of its own, whose loss says that it died
    stopped_at timestamptz, -- it left by itself and works on nothing
    lost_at    timestamptz  -- it was judged dead: it may never work again under this id
);

CREATE TABLE runs (
    id                  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    status              text NOT NULL DEFAULT 'queued'
                        CHECK (status IN ('queued', 'running', 'backing_off', 'succeeded', 'failed', 'cancelled')),
    spec                jsonb NOT NULL CHECK (jsonb_typeof(spec) = 'object'),
    idempotency_key     text UNIQUE CHECK (idempotency_key ~ '\S' AND char_length(idempotency_key) <= 255),
    queue               text NOT NULL DEFAULT 'default', -- where it was enqueued; its job may wait in a machine's own queue
    job_id              bigint UNIQUE NOT NULL, -- the river_job that may deliver the run; no foreign key, River prunes its rows
    epoch               bigint NOT NULL DEFAULT 0 CHECK (epoch >= 0), -- grows at each claim; fences every write of a worker
    executor_id         uuid REFERENCES executors (id),               -- who works on it; null while it is handed over
    claimed_at          timestamptz,                                  -- of the last claim
    round               integer NOT NULL DEFAULT 1 CHECK (round >= 1), -- grows at each reopening; retry budgets count within it
    crashes             integer NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    failure_code        text REFERENCES failure_codes (code) CHECK (failure_code <> ''),
    failure_message     text CHECK (failure_message <> ''),
    failed_step         text CHECK (failed_step <> ''),
    retry_at            timestamptz,
    cancel_requested_at timestamptz,
    created_at          timestamptz NOT NULL DEFAULT now(),
    started_at          timestamptz,
    finished_at         timestamptz,

    CONSTRAINT failed_has_code       CHECK ((status = 'failed') = (failure_code IS NOT NULL)),
    CONSTRAINT failed_has_message    CHECK ((status = 'failed') = (failure_message IS NOT NULL)),
    CONSTRAINT failed_step_of_failed CHECK (failed_step IS NULL OR status = 'failed'),
    CONSTRAINT terminal_is_finished  CHECK ((status IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
    CONSTRAINT backing_off_has_retry CHECK ((status = 'backing_off') = (retry_at IS NOT NULL)),
    CONSTRAINT owned_is_running      CHECK (executor_id IS NULL OR status = 'running'),
    CONSTRAINT running_has_started   CHECK (status <> 'running' OR (started_at IS NOT NULL AND epoch > 0)),
    CONSTRAINT cancelled_was_asked   CHECK (status <> 'cancelled' OR cancel_requested_at IS NOT NULL)
);
CREATE INDEX runs_unfinished     ON runs (status, created_at) WHERE status IN ('queued', 'running', 'backing_off');
CREATE INDEX runs_created_at     ON runs (created_at DESC, id);
CREATE INDEX runs_failure_code   ON runs (failure_code, finished_at) WHERE status = 'failed';
CREATE INDEX runs_executor_id    ON runs (executor_id) WHERE executor_id IS NOT NULL;

-- machine_queue is the queue that only the executors of a machine work on.
CREATE FUNCTION machine_queue(machine text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT 'machine-' || left(md5(machine), 16) $$;

-- home_queue is where a run's job waits: the queue of the machine that alone
-- can reach its host, else the run's own.
-- +goose StatementBegin
CREATE FUNCTION home_queue(run_id uuid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN coalesce(
        (SELECT machine_queue(machine) FROM sandbox_hosts
         WHERE sandbox_hosts.run_id = home_queue.run_id AND state = 'active' AND machine <> '' LIMIT 1),
        (SELECT queue FROM runs WHERE runs.id = home_queue.run_id));
END $$;
-- +goose StatementEnd

-- Which installation this is: providers mark their hosts with it.
CREATE TABLE installation (
    id  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    one boolean NOT NULL DEFAULT true UNIQUE CHECK (one)
);
INSERT INTO installation DEFAULT VALUES;

-- When the services that one executor at a time provides were last provided.
CREATE TABLE housekeeping (
    name    text PRIMARY KEY,
    done_at timestamptz NOT NULL
);

CREATE TABLE run_steps (
    run_id      uuid NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    name        text NOT NULL CHECK (name ~ '^[A-Za-z0-9_.-]{1,64}$'),
    position    integer NOT NULL CHECK (position >= 0),
    status      text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'succeeded', 'failed', 'cancelled')),
    result      jsonb,
    started_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    PRIMARY KEY (run_id, name),
    UNIQUE (run_id, position),
    CONSTRAINT ended_is_finished    CHECK ((status = 'running') = (finished_at IS NULL)),
    CONSTRAINT result_of_succeeded  CHECK (result IS NULL OR status = 'succeeded')
);

CREATE TABLE sandbox_hosts (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id      uuid NOT NULL, -- no foreign key: deleting a run must not make us forget its host
    key         text NOT NULL CHECK (key ~ '^[A-Za-z0-9_.:-]{1,255}$'),
    provider    text NOT NULL CHECK (provider <> ''),
    host_id     text CHECK (host_id <> ''),
    machine     text NOT NULL DEFAULT '',
    state       text NOT NULL DEFAULT 'creating' CHECK (state IN ('creating', 'active', 'releasing', 'released')),
    epoch       bigint NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz,
    released_at timestamptz,
    CONSTRAINT active_has_id         CHECK (state <> 'active' OR host_id IS NOT NULL),
    CONSTRAINT released_has_time     CHECK ((state = 'released') = (released_at IS NOT NULL))
);
CREATE UNIQUE INDEX sandbox_hosts_live_key ON sandbox_hosts (key) WHERE state <> 'released';
CREATE INDEX sandbox_hosts_run ON sandbox_hosts (run_id) WHERE state <> 'released';

CREATE TABLE run_attempts (
    run_id       uuid NOT NULL,
    step         text NOT NULL,
    member       text NOT NULL DEFAULT '', -- of a composite step
    n            integer NOT NULL CHECK (n >= 1),
    round        integer NOT NULL,
    epoch        bigint NOT NULL, -- of the claim that last worked on it
    executor_id  uuid NOT NULL REFERENCES executors (id),
    started_at   timestamptz NOT NULL DEFAULT now(),
    ended_at     timestamptz,
    outcome      text CHECK (outcome IN ('succeeded', 'failed', 'cancelled', 'interrupted')),
    failure_code text REFERENCES failure_codes (code) CHECK (failure_code <> ''),
    causes       jsonb, -- the chain of errors, outermost first: [{"code", "message"}]
    exit_code    integer,
    exit_signal  text CHECK (exit_signal <> ''),
    retry_at     timestamptz,
    PRIMARY KEY (run_id, step, member, n),
    FOREIGN KEY (run_id, step) REFERENCES run_steps (run_id, name) ON DELETE CASCADE,
    CONSTRAINT ended_has_outcome CHECK ((ended_at IS NULL) = (outcome IS NULL)),
    CONSTRAINT failed_has_code   CHECK ((outcome IS NOT DISTINCT FROM 'failed') = (failure_code IS NOT NULL)),
    CONSTRAINT failed_has_causes CHECK ((failure_code IS NULL) = (causes IS NULL)),
    CONSTRAINT retry_of_failed   CHECK (retry_at IS NULL OR outcome = 'failed')
);
CREATE UNIQUE INDEX run_attempts_open ON run_attempts (run_id, step, member) WHERE ended_at IS NULL;

CREATE TABLE run_launches (
    run_id      uuid NOT NULL,
    step        text NOT NULL,
    member      text NOT NULL DEFAULT '',
    n           integer NOT NULL CHECK (n >= 1),
    host        bigint NOT NULL REFERENCES sandbox_hosts (id),
    recorded_at timestamptz NOT NULL DEFAULT now(), -- before it was made
    started_at  timestamptz,                        -- by the host's clock
    ended_at    timestamptz,                        -- when it was seen to have ended, or its host to be gone
    exit_code   integer,
    exit_signal text CHECK (exit_signal <> ''),
    PRIMARY KEY (run_id, step, member, n),
    FOREIGN KEY (run_id, step) REFERENCES run_steps (run_id, name) ON DELETE CASCADE,
    CONSTRAINT exit_of_ended CHECK (ended_at IS NOT NULL OR (exit_code IS NULL AND exit_signal IS NULL)),
    CONSTRAINT signal_has_code CHECK (exit_signal IS NULL OR exit_code IS NOT NULL)
);
-- The next launch of a step waits for the end of the one before it.
CREATE UNIQUE INDEX run_launches_open ON run_launches (run_id, step, member) WHERE ended_at IS NULL;

CREATE TABLE run_streams (
    run_id uuid NOT NULL,
    step   text NOT NULL,
    member text NOT NULL DEFAULT '',
    launch integer NOT NULL,
    stream text NOT NULL CHECK (stream IN ('stdout', 'stderr')),
    length bigint NOT NULL DEFAULT 0 CHECK (length >= 0), -- bytes followed so far: where the next follower begins
    epoch  bigint NOT NULL,
    PRIMARY KEY (run_id, step, member, launch, stream),
    FOREIGN KEY (run_id, step, member, launch) REFERENCES run_launches (run_id, step, member, n) ON DELETE CASCADE
);

CREATE TABLE run_output (
    seq    bigint GENERATED ALWAYS AS IDENTITY,
    run_id uuid NOT NULL,
    step   text NOT NULL,
    member text NOT NULL DEFAULT '',
    launch integer NOT NULL,
    stream text NOT NULL,
    pos    bigint NOT NULL CHECK (pos >= 0), -- of the first byte in its stream
    at     timestamptz NOT NULL DEFAULT now(),
    data   bytea NOT NULL CHECK (length(data) > 0),
    PRIMARY KEY (run_id, seq),
    UNIQUE (run_id, step, member, launch, stream, pos),
    FOREIGN KEY (run_id, step, member, launch, stream) REFERENCES run_streams (run_id, step, member, launch, stream) ON DELETE CASCADE
);
ALTER TABLE run_output ALTER COLUMN data SET COMPRESSION pglz;

CREATE TABLE run_events (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id uuid NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    at     timestamptz NOT NULL DEFAULT now(),
    kind   text NOT NULL CHECK (kind IN ('queued', 'running', 'backing_off', 'succeeded', 'failed', 'cancelled',
                                         'claimed', 'handed_over', 'cancel_requested')),
    data   jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX run_events_run ON run_events (run_id, id);

-- Whoever moves a run, the move is in its events.
-- +goose StatementBegin
CREATE FUNCTION record_run_event() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'INSERT' OR NEW.status <> OLD.status THEN
        INSERT INTO run_events (run_id, kind, data)
        VALUES (NEW.id, NEW.status, jsonb_strip_nulls(jsonb_build_object(
            'epoch', NULLIF(NEW.epoch, 0), 'executor_id', NEW.executor_id, 'failure_code', NEW.failure_code,
            'failed_step', NEW.failed_step, 'retry_at', NEW.retry_at)));
    ELSIF NEW.executor_id IS DISTINCT FROM OLD.executor_id OR NEW.epoch <> OLD.epoch THEN
        INSERT INTO run_events (run_id, kind, data)
        VALUES (NEW.id, CASE WHEN NEW.executor_id IS NULL THEN 'handed_over' ELSE 'claimed' END,
                jsonb_strip_nulls(jsonb_build_object('epoch', NEW.epoch, 'executor_id', NEW.executor_id, 'crashes', NULLIF(NEW.crashes, 0))));
    END IF;
    IF TG_OP = 'UPDATE' AND OLD.cancel_requested_at IS NULL AND NEW.cancel_requested_at IS NOT NULL THEN
        INSERT INTO run_events (run_id, kind) VALUES (NEW.id, 'cancel_requested');
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER record_run_event AFTER INSERT OR UPDATE ON runs FOR EACH ROW EXECUTE FUNCTION record_run_event();

-- fence fails unless the executor still works on the run under this epoch, and
-- keeps it so until the transaction ends.
-- +goose StatementBegin
CREATE FUNCTION fence(run_id uuid, epoch bigint) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM FROM runs WHERE runs.id = fence.run_id AND runs.epoch = fence.epoch AND runs.executor_id IS NOT NULL FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'run % is no longer worked on under epoch %', run_id, epoch USING ERRCODE = 'EXF01';
    END IF;
END $$;
-- +goose StatementEnd

-- refuse_if_cancelled keeps a run whose end was asked for from waiting.
-- +goose StatementBegin
CREATE FUNCTION refuse_if_cancelled(run_id uuid) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM FROM runs WHERE runs.id = refuse_if_cancelled.run_id AND runs.cancel_requested_at IS NOT NULL;
    IF FOUND THEN
        RAISE EXCEPTION 'run % is to be cancelled', run_id USING ERRCODE = 'EXF02';
    END IF;
END $$;
-- +goose StatementEnd

CREATE VIEW run_failures AS
SELECT runs.id, runs.spec ->> 'name' AS name, runs.failure_code, failure_codes.parent AS family,
       runs.failed_step, runs.failure_message, runs.created_at, runs.started_at, runs.finished_at,
       (SELECT count(*) FROM run_attempts WHERE run_attempts.run_id = runs.id) AS attempts
FROM runs JOIN failure_codes ON failure_codes.code = runs.failure_code
WHERE runs.status = 'failed';
COMMENT ON VIEW run_failures IS 'One row for each failed run: what failed, where and why.';

-- enqueue_run enqueues a run in the caller's transaction and returns its id.
-- It refuses what is no spec at all; the executor checks the rest before the
-- first step and ends a run it cannot execute with invalid_spec. A repeated
-- idempotency_key returns the run it named first, whatever became of it; with
-- another spec it is refused.
-- +goose StatementBegin
CREATE FUNCTION enqueue_run(
    spec            jsonb,
    idempotency_key text        DEFAULT NULL,
    queue           text        DEFAULT 'default',
    priority        integer     DEFAULT 1,
    scheduled_at    timestamptz DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    run    uuid := gen_random_uuid();
    job    bigint;
    before runs%ROWTYPE;
    start  timestamptz := coalesce(scheduled_at, now());
BEGIN
    IF spec IS NULL OR jsonb_typeof(spec) <> 'object' THEN
        RAISE EXCEPTION 'spec: expected a JSON object' USING ERRCODE = 'invalid_parameter_value';
    ELSIF jsonb_typeof(spec -> 'steps') IS DISTINCT FROM 'array' OR jsonb_array_length(spec -> 'steps') = 0 THEN
        RAISE EXCEPTION 'spec.steps: expected a non-empty array' USING ERRCODE = 'invalid_parameter_value';
    ELSIF idempotency_key !~ '\S' OR char_length(idempotency_key) > 255 THEN
        RAISE EXCEPTION 'idempotency_key: expected 1 to 255 characters, not all blank' USING ERRCODE = 'invalid_parameter_value';
    ELSIF queue IS NULL OR queue !~ '^[a-z0-9]+([_-][a-z0-9]+)*$' OR char_length(queue) > 64 THEN
        RAISE EXCEPTION 'queue: expected 1 to 64 lower-case letters and digits, parted by single "_" or "-"' USING ERRCODE = 'invalid_parameter_value';
    ELSIF priority IS NULL OR priority NOT BETWEEN 1 AND 4 THEN
        RAISE EXCEPTION 'priority: expected 1 (first) to 4' USING ERRCODE = 'invalid_parameter_value';
    END IF;

    job := nextval('river_job_id_seq');
    INSERT INTO runs AS r (id, spec, idempotency_key, queue, job_id) VALUES (run, spec, idempotency_key, queue, job)
    ON CONFLICT ON CONSTRAINT runs_idempotency_key_key DO NOTHING;
    IF NOT FOUND THEN
        SELECT * INTO STRICT before FROM runs WHERE runs.idempotency_key = enqueue_run.idempotency_key;
        IF before.spec <> spec THEN
            RAISE EXCEPTION 'idempotency_key: it names run % already, which has another spec', before.id USING ERRCODE = 'unique_violation';
        END IF;
        RETURN before.id;
    END IF;

    -- One attempt: an error discards the job, and every retry is a snooze.
    INSERT INTO river_job (id, kind, args, max_attempts, queue, priority, state, scheduled_at, metadata)
    VALUES (job, 'run', jsonb_build_object('run_id', run), 1, queue, priority,
            CASE WHEN start > now() THEN 'scheduled' ELSE 'available' END::river_job_state, start, '{}');
    IF start <= now() THEN
        PERFORM pg_notify(current_schema() || '.river_insert', json_build_object('queue', queue)::text);
    END IF;
    RETURN run;
END $$;
-- +goose StatementEnd

-- cancel_run asks for the end of a run and returns its status afterwards. A run
-- that nothing works on, and that left no process behind, is cancelled at
-- once; otherwise its worker stops the process first. A finished run stays as
-- it is. An unknown id is NULL.
-- +goose StatementBegin
CREATE FUNCTION cancel_run(run_id uuid) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    run runs%ROWTYPE;
    job_queue text;
BEGIN
    SELECT * INTO run FROM runs WHERE runs.id = cancel_run.run_id FOR UPDATE;
    IF NOT FOUND OR run.finished_at IS NOT NULL THEN
        RETURN run.status;
    END IF;
    UPDATE runs SET cancel_requested_at = coalesce(cancel_requested_at, now()) WHERE runs.id = run.id;

    IF run.executor_id IS NULL AND NOT EXISTS (
        SELECT FROM run_launches WHERE run_launches.run_id = run.id AND run_launches.ended_at IS NULL
    ) THEN
        UPDATE runs SET status = 'cancelled', finished_at = now(), retry_at = NULL WHERE runs.id = run.id;
        UPDATE run_attempts SET outcome = 'cancelled', ended_at = now() WHERE run_attempts.run_id = run.id AND ended_at IS NULL;
        UPDATE run_steps SET status = 'cancelled', finished_at = now() WHERE run_steps.run_id = run.id AND run_steps.status = 'running';
        UPDATE river_job SET state = 'cancelled', finalized_at = now()
        WHERE river_job.id = run.job_id AND river_job.finalized_at IS NULL;
        RETURN 'cancelled';
    END IF;

    -- What River's own cancel writes, so that its page says the same and its
    -- notification reaches the worker at once.
    UPDATE river_job
    SET metadata = metadata || jsonb_build_object('cancel_attempted_at', now()),
        state = CASE WHEN state IN ('scheduled', 'retryable', 'pending') THEN 'available' ELSE state END,
        scheduled_at = CASE WHEN state = 'running' THEN scheduled_at ELSE least(scheduled_at, now()) END
    WHERE river_job.id = run.job_id AND river_job.finalized_at IS NULL
    RETURNING queue INTO job_queue;
    IF FOUND THEN
        PERFORM pg_notify(current_schema() || '.river_control',
                          json_build_object('action', 'cancel', 'job_id', run.job_id, 'queue', job_queue)::text);
        PERFORM pg_notify(current_schema() || '.river_insert', json_build_object('queue', job_queue)::text);
    END IF;
    RETURN run.status;
END $$;
-- +goose StatementEnd

-- Both run as their owner: a backend needs EXECUTE on them and no table.
REVOKE EXECUTE ON FUNCTION enqueue_run(jsonb, text, text, integer, timestamptz) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION cancel_run(uuid) FROM PUBLIC;

-- +goose Down
DROP FUNCTION cancel_run(uuid);
DROP FUNCTION enqueue_run(jsonb, text, text, integer, timestamptz);
DROP VIEW run_failures;
DROP FUNCTION refuse_if_cancelled(uuid);
DROP FUNCTION fence(uuid, bigint);
DROP TABLE run_events, run_output, run_streams, run_launches, run_attempts, sandbox_hosts, run_steps, runs, executors, failure_codes;
DROP TABLE housekeeping, installation;
DROP FUNCTION home_queue(uuid);
DROP FUNCTION machine_queue(text);
DROP FUNCTION record_run_event();
