package sshconn

// DialFailed is a dial that failed, and BrokenBy an operation whose connection
// ended.
func DialFailed(phase Phase, cause error) error { return &DialError{Phase: phase, cause: cause} }
func BrokenBy(cause error) error                { return &BrokenError{cause} }
