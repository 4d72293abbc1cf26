package docker

import (
	"time"

	"github.com/moby/moby/api/types/jsonstream"
	"github.com/rs/zerolog"
)

// progressEvery is how often a pull says how far it is.
const progressEvery = 5 * time.Second

// progress is how far a pull is.
type progress struct {
	status string // what the daemon is at, in its words
	layers map[string]*transfer
}

// transfer is bytes of a layer that came, of those that will. When the daemon
// unpacks what it has, it counts anew; that does not count here.
type transfer struct{ done, of int64 }

func (p *progress) see(message jsonstream.Message) {
	if message.Status != "" {
		p.status = message.Status
	}
	if message.ID == "" || message.Progress == nil || message.Progress.Total <= 0 {
		return
	}
	if p.layers == nil {
		p.layers = map[string]*transfer{}
	}
	layer := p.layers[message.ID]
	if layer == nil {
		layer = &transfer{}
		p.layers[message.ID] = layer
	}
	layer.done = max(layer.done, message.Progress.Current)
	layer.of = message.Progress.Total
}

// MarshalZerologObject implements zerolog.LogObjectMarshaler.
func (p *progress) MarshalZerologObject(e *zerolog.Event) {
	var sum transfer
	for _, layer := range p.layers {
		sum.done += layer.done
		sum.of += layer.of
	}
	e.Str("status", p.status).Int("layers", len(p.layers)).Int64("bytes", sum.done).Int64("of", sum.of)
}
