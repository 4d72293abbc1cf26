package local

import "path/filepath"

// Left counts the live processes of every host below root.
func Left(root string) (int, error) {
	left, err := newHunt(root, nil).look()
	return len(left), err
}

// InHost counts the live processes of a host.
func (p *Provider) InHost(id string) (int, error) { return Left(filepath.Join(p.root, id)) }

// GroupFault is the fault of a cgroup's operation.
func GroupFault(op string, err error) error { return classify(op, err, byErrnoOfGroup) }

var (
	Fault     = fault
	ExecFault = execFault

	ByErrno        = byErrno
	ByErrnoOfExec  = byErrnoOfExec
	ByErrnoOfGroup = byErrnoOfGroup
)
