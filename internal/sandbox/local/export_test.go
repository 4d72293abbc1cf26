package local

// Left counts the live processes of every host below root.
func Left(root string) (int, error) {
	left, err := newHunt(root, nil).look()
	return len(left), err
}

var (
	Fault     = fault
	ExecFault = execFault
)
