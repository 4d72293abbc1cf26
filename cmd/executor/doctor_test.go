package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"executor/internal/runs/runstest"
	"executor/internal/sandbox/drukbox/drukboxtest"
)

// What doctor says of a provider, and that it leaves nothing there.

// life is the checks of a provider that is not local.
var life = []string{"provider", "reach", "provision", "exec", "start", "re-attach", "release"}

// doctored is a provider that doctor is asked about.
type doctored struct {
	place
	env  []string
	left func() []string // what is at the provider
}

func newDoctored(t *testing.T, env ...string) *doctored {
	p := newPlace(t)
	return &doctored{place: p, env: append([]string{"DATABASE_URL=" + runstest.URL(t)}, env...)}
}

// want asks doctor, and wants the life of a host to go well until a check that
// fails with a code, and the release after it if there is one. Without a code
// all is well.
func (d *doctored) want(t *testing.T, code, failed string, env ...string) {
	t.Helper()
	before := d.left()
	said := d.runIn("", append(slices.Clone(d.env), env...), "doctor", "--json")
	status := exitOK
	if code != "" {
		status = exitTrouble
	}
	said.want(t, status)
	var told diagnosis
	if err := json.Unmarshal([]byte(said.stdout), &told); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range told.Checks[2:] { // of the provider
		names = append(names, c.Name)
		if c.OK != (c.Name != failed) || c.Code != "" && c.OK || c.Name == failed && c.Code != code || c.Millis <= 0 {
			t.Errorf("%+v", c)
		}
	}
	through := life
	if failed != "" {
		through = life[:slices.Index(life, failed)+1]
	}
	if names = slices.DeleteFunc(names, func(name string) bool { return name == "release" && failed != "" }); !slices.Equal(names, through) {
		t.Errorf("the checks are %v, want %v:\n%s", names, through, said.stdout)
	}
	if after := d.left(); !slices.Equal(after, before) {
		t.Errorf("left at the provider: %v; there were %v", after, before)
	}
	files, _ := filepath.Glob(filepath.Join(d.dir, "*"))
	if len(files) > 0 {
		t.Errorf("left in the data directory: %v", files)
	}
}

// wantTold is want of what people read.
func (d *doctored) wantTold(t *testing.T, text string, env ...string) {
	t.Helper()
	said := d.runIn("", append(slices.Clone(d.env), env...), "doctor")
	said.want(t, exitTrouble)
	if !strings.Contains(said.stdout, "FAIL") || !strings.Contains(said.stdout, text) {
		t.Errorf("it does not say %q:\n%s", text, said.stdout)
	}
}

// nobody is an address that refuses.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestDoctorOfDocker(t *testing.T) {
	t.Parallel()
	daemon, err := dockerHost()
	if err != nil && os.Getenv("CI") != "" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip(err)
	}
	d := newDoctored(t, "EXECUTOR_PROVIDERS=docker", "EXECUTOR_DOCKER_HOST="+daemon,
		"EXECUTOR_DOCKER_IMAGE="+dockerImage, "EXECUTOR_DOCKER_PULL=never")
	d.left = func() []string {
		out, err := exec.Command("docker", "--host", daemon, "ps", "--all", "--quiet", "--filter", "label=executor.installation=doctor").Output()
		if err != nil {
			t.Fatal("docker ps:", err)
		}
		return strings.Fields(string(out))
	}
	d.want(t, "", "")
	d.want(t, "sandbox_unavailable", "reach", "EXECUTOR_DOCKER_HOST=tcp://"+nobody(t))
	d.want(t, "sandbox_unavailable", "reach", "EXECUTOR_DOCKER_HOST=unix://"+filepath.Join(d.dir, "none"))
	d.want(t, "sandbox_image", "provision", "EXECUTOR_DOCKER_IMAGE=executor-test:none")
	d.wantTold(t, "sandbox_image: ", "EXECUTOR_DOCKER_IMAGE=executor-test:none")
	d.want(t, "sandbox_invalid", "provision", "EXECUTOR_DOCKER_RUNTIME=none")
}

func TestDoctorOfDrukbox(t *testing.T) {
	t.Parallel()
	plane := drukboxtest.New(t, drukboxtest.Options{})
	d := newDoctored(t, "EXECUTOR_PROVIDERS=drukbox", "EXECUTOR_DRUKBOX_URL="+plane.URL, "EXECUTOR_DRUKBOX_TOKEN="+drukboxtest.Token)
	d.left = func() (ids []string) {
		for _, row := range plane.Rows() {
			ids = append(ids, row.ID)
		}
		return ids
	}
	d.want(t, "", "")
	d.want(t, "sandbox_unavailable", "reach", "EXECUTOR_DRUKBOX_URL=http://"+nobody(t))
	d.want(t, "sandbox_denied", "reach", "EXECUTOR_DRUKBOX_TOKEN=drkb_wrong")
	d.wantTold(t, "sandbox_denied: ", "EXECUTOR_DRUKBOX_TOKEN=drkb_wrong")
	d.want(t, "sandbox_invalid", "provision", "EXECUTOR_DRUKBOX_BACKEND=none")
	plane.FailCreate("no machine is to be had")
	d.want(t, "sandbox_provisioning", "provision")

	// Once a host is made, its address is one that refuses, or the answer is
	// lost.
	made := make(chan func(), 1)
	plane.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method != http.MethodPost || r.URL.Path != "/hosts" {
			return false
		}
		answer := httptest.NewRecorder()
		next.ServeHTTP(answer, r)
		select {
		case do := <-made:
			do()
		default:
		}
		w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
		return true
	})
	made <- func() {
		var port int
		_, _ = fmt.Sscanf(nobody(t), "127.0.0.1:%d", &port)
		plane.Move(t, plane.Rows()[0].ID, port)
	}
	d.want(t, "sandbox_provisioning", "provision")
	made <- func() { panic(http.ErrAbortHandler) }
	d.want(t, "sandbox_provisioning", "provision")
	if n := plane.Made(); n != 3 {
		t.Errorf("%d hosts were made, want 3", n)
	}
}
