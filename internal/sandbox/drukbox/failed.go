package drukbox

import (
	"context"
	"errors"
	"time"
)

// A create that ended with PROVISIONING_FAILED leaves a row in state error
// that its answer does not name; the control plane's janitor removes it within
// minutes. It is deleted here only if it is certainly ours:
//
//   - it is in error with the very text of our answer,
//   - it was born while our create was under way, by the control plane's clock,
//   - and nothing else was born then that we do not know: nobody else was
//     creating.
//
// Else it stays, and the log says so.

// clockError widens the time of a create: our idea of the control plane's
// clock is that good.
const clockError = 3 * time.Second

// removeFailed deletes the row that a failed create left, if it was that kind
// of failure and the row is certainly ours. It is a courtesy: it never changes
// what the create is said to have failed with.
func (p *Provider) removeFailed(ctx context.Context, began time.Time, err error) {
	var status *statusError
	if !errors.As(err, &status) || !status.ours || status.code != "PROVISIONING_FAILED" || ctx.Err() != nil {
		return
	}
	log := p.log.With().Str("error_code", status.code).Logger()
	rows, err := p.api.list(ctx)
	if err != nil {
		log.Warn().Err(err).Msg("the row of a failed create stays: hosts cannot be listed")
		return
	}
	id, why := p.certainlyOurs(rows, began, status.detail)
	if id == "" {
		log.Warn().Str("why", why).Msg("the row of a failed create stays for the control plane's janitor")
		return
	}
	if err := p.Delete(ctx, id); err != nil {
		log.Warn().Err(err).Str("host_id", id).Msg("the row of a failed create stays for the control plane's janitor")
		return
	}
	log.Info().Str("host_id", id).Msg("the row of a failed create was deleted")
}

func (p *Provider) certainlyOurs(rows []row, began time.Time, detail string) (id, why string) {
	from, to := began.Add(-clockError), p.api.now().Add(clockError)
	for _, r := range rows {
		if r.CreatedAt == nil || r.CreatedAt.Before(from) || r.CreatedAt.After(to) || p.keys.owner(r.ID) != "" {
			continue
		}
		if r.Status != stateError || r.LastError != detail || id != "" {
			return "", "somebody else was making a host at the same time"
		}
		id = r.ID
	}
	if id == "" {
		return "", "no row fits"
	}
	return id, ""
}
