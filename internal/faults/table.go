package faults

import (
	"fmt"
	"time"
)

// The table: every kind of failure there is. Parents stand before their
// children.
var (
	Sandbox             = family("sandbox", transient(60, 300), "Everything that goes wrong on the sandbox side.")
	SandboxProvisioning = child(Sandbox, "sandbox_provisioning", nil, "No usable host could be had: create failed or was unavailable, the look-up of an attach was unavailable, or a fresh host could not be reached while it was set up.")
	SandboxUnavailable  = child(Sandbox, "sandbox_unavailable", nil, "The host or its control plane stopped answering in mid-step.")
	SandboxNotFound     = child(Sandbox, "sandbox_not_found", nil, "The host is gone; the next attempt gets a fresh one.")
	SandboxLost         = child(Sandbox, "sandbox_lost", nil, "The process ended without an exit status that can be read.")
	SandboxTimeout      = child(Sandbox, "sandbox_timeout", nil, "A sandbox operation passed its own deadline.")
	SandboxThrottled    = child(Sandbox, "sandbox_throttled", retryAfter(60, 300), "The provider asked us to slow down.")
	SandboxCapacity     = child(Sandbox, "sandbox_capacity", transient(60, 300, 900), "The provider has no room now.")
	SandboxConflict     = child(Sandbox, "sandbox_conflict", never(), "The name or key is taken by something else, or a state change is in progress.")
	SandboxResponse     = child(Sandbox, "sandbox_response", never(), "The provider gave an answer that has no typed meaning, such as a bare 500 or a body that is not its protocol's.")
	SandboxQuota        = child(Sandbox, "sandbox_quota", never(), "The limit of our account at the provider is reached.")
	SandboxDiskFull     = child(Sandbox, "sandbox_disk_full", freshHost(60), "The host's disk is full (ENOSPC, EDQUOT, HTTP 507).")
	SandboxOOM          = child(Sandbox, "sandbox_oom", never(), "The host killed the process for its memory use; proved, not guessed from an exit status of 137.")
	SandboxImage        = child(Sandbox, "sandbox_image", nil, "The host's image cannot be had; never retried where the registry says not found or denied.")
	SandboxDenied       = child(Sandbox, "sandbox_denied", never(), "The provider refused our credentials or permissions.")
	SandboxInvalid      = child(Sandbox, "sandbox_invalid", never(), "The request to the provider is itself wrong.")
	SandboxUnsupported  = child(Sandbox, "sandbox_unsupported", never(), "The provider cannot do what was asked.")

	Agent           = family("agent", never(), "What goes wrong between an agent's CLI and its model.")
	Overloaded      = child(Agent, "overloaded", transient(300, 900), "The model provider answered with a 5xx or 529.")
	ModelConnection = child(Agent, "model_connection", transient(60, 300), "The connection between the CLI and the model was refused, reset, cut or stalled.")
	BadResponse     = child(Agent, "bad_response", transient(60), "The model provider gave an answer that is none: garbage, HTML or nothing.")
	RateLimited     = child(Agent, "rate_limited", quota(), "The model provider answered 429.")
	UsageLimit      = child(Agent, "usage_limit", quota(), "The usage window of the plan or account is used up.")
	FirstByte       = child(Agent, "first_byte", transient(0, 0), "The process lives but printed not one byte within the harness's first-byte deadline.")
	Stalled         = child(Agent, "stalled", transient(60), "No output, and no model request or tool open, for too long.")
	AgentCrashed    = child(Agent, "agent_crashed", transient(60), "The CLI ended without its terminal event, and it was not us who ended it.")
	Runaway         = child(Agent, "runaway", nil, "The CLI loops on a broken stream and spends.")
	Auth            = child(Agent, "auth", nil, "The model provider refused the credential.")
	NotConnected    = child(Agent, "not_connected", nil, "No credential is configured for the model provider.")
	Billing         = child(Agent, "billing", nil, "The account at the model provider cannot pay.")
	InvalidOutput   = child(Agent, "invalid_output", nil, "The agent's answer is blank or does not match the schema.")
	OutputTruncated = child(Agent, "output_truncated", nil, "The agent's answer was cut by the token limit.")
	Refused         = child(Agent, "refused", nil, "The model declined.")
	ContextOverflow = child(Agent, "context_overflow", nil, "The conversation no longer fits the model's context.")
	ModelNotFound   = child(Agent, "model_not_found", nil, "The model does not exist or is not open to this account.")
	InvalidRequest  = child(Agent, "invalid_request", nil, "The model provider says the request is wrong.")
	AgentConfig     = child(Agent, "agent_config", nil, "The CLI refused its configuration or arguments.")
	BudgetExceeded  = child(Agent, "budget_exceeded", nil, "The spending limit that the run set was reached.")
	TurnLimit       = child(Agent, "turn_limit", nil, "The turn limit that the run set was reached.")

	Timeout       = family("timeout", never(), "The time limit of the step or run was reached.")
	CommandFailed = family("command_failed", never(), "The command ended with an exit status other than 0.")
	CommandKilled = family("command_killed", never(), "The command died by a signal that was not ours.")
	ExecutorLost  = final("executor_lost", "Executors died under this run more often than its crash budget allows.")
	Orphaned      = final("orphaned", "The run's job vanished from the queue, or was ended there by something else.")
	InvalidSpec   = final("invalid_spec", "The run's spec cannot be executed as written.")
	Internal      = family("internal", never(), "A bug of the executor: a panic or an error that nothing classified.")
)

var (
	kinds  []*Kind
	byCode = map[string]*Kind{}
)

// Kinds lists every kind, in the order of the table.
func Kinds() []*Kind { return append([]*Kind(nil), kinds...) }

// ByCode finds a kind by its code.
func ByCode(code string) (*Kind, bool) {
	k, ok := byCode[code]
	return k, ok
}

func declare(k *Kind) *Kind {
	if byCode[k.code] != nil {
		panic(fmt.Sprintf("faults: code %q is declared twice", k.code))
	}
	kinds = append(kinds, k)
	byCode[k.code] = k
	return k
}

func family(code string, p *Policy, doc string) *Kind {
	return declare(&Kind{code: code, policy: p, doc: doc})
}

func child(parent *Kind, code string, p *Policy, doc string) *Kind {
	return declare(&Kind{code: code, parent: parent, policy: p, doc: doc})
}

func final(code, doc string) *Kind {
	return declare(&Kind{code: code, policy: never(), final: true, doc: doc})
}

func never() *Policy { return &Policy{Mode: Never} }
func quota() *Policy { return &Policy{Mode: Quota} }

func transient(seconds ...int) *Policy {
	p := &Policy{Mode: Transient}
	for _, s := range seconds {
		p.Delays = append(p.Delays, time.Duration(s)*time.Second)
	}
	return p
}

func retryAfter(seconds ...int) *Policy {
	p := transient(seconds...)
	p.RetryAfter = true
	return p
}

func freshHost(seconds ...int) *Policy {
	p := transient(seconds...)
	p.FreshHost = true
	return p
}
