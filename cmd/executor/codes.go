package main

import (
	"executor/internal/faults"
)

type codesCmd struct {
	JSON bool `name:"json" help:"One JSON document."`
}

// Help is kong's.
func (codesCmd) Help() string {
	return `A failed run always carries one of these as failure_code. A family stands for all of its codes in a spec's retry.include and retry.exclude.`
}

// code is one row for programs.
type code struct {
	Code    string `json:"code"`
	Family  string `json:"family,omitempty"`
	Policy  string `json:"policy"`
	Meaning string `json:"meaning"`
}

// Run is kong's.
func (c *codesCmd) Run(a *app) error {
	var list []code
	t := table{header: []string{"CODE", "FAMILY", "POLICY", "MEANING"}}
	for _, k := range faults.Kinds() {
		row := code{Code: k.Code(), Policy: k.Policy().String(), Meaning: k.Doc()}
		name := cell{row.Code, a.p.bold}
		if k.Parent() != nil {
			row.Family = k.Parent().Code()
			name.colour = nil
		}
		list = append(list, row)
		t.add(name, plain(orDash(row.Family)), plain(row.Policy), plain(row.Meaning))
	}
	if c.JSON {
		return a.printJSON(list)
	}
	t.print(a.out, a.p)
	return nil
}
