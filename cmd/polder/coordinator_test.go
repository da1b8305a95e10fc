package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"polder/internal/listen"
	"polder/internal/testcert"
	"polder/soft"
)

func TestCoordinatorServesHeapsAndMetrics(t *testing.T) {
	dir := t.TempDir()
	socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "ready")
	ctx, cancel := context.WithCancel(t.Context())
	cmd := newCoordinator()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{"--socket", socket, "--admin", "127.0.0.1:0", "--ready-file", file, "--interval", "20ms", "--grace", "20ms", "--max", "256MiB"})
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	addrs := map[string]string{}
	until(t, "it is ready", func() bool {
		b, err := os.ReadFile(file)
		return err == nil && json.Unmarshal(b, &addrs) == nil
	})
	h, err := soft.Open(soft.Config{Budget: soft.MinBudget, Coordinator: socket, Name: "a service"})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	until(t, "the heap is in the metrics with more memory", func() bool {
		r, err := client.Get("http://" + addrs["admin"] + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		return err == nil && strings.Contains(string(b), `name="a service"`) && h.Budget() > 100<<20
	})
}

func TestCoordinatorRefusesWhatCannotBe(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--weight", "web=2"}, "want name:NAME=WEIGHT"},
		{[]string{"--max-clients", "0"}, "max-clients"},
		{[]string{"--admin", "here"}, "HOST:PORT"},
		{[]string{"--admin", "0.0.0.0:0"}, "--insecure"},
		{[]string{"--max", "1MiB"}, "at least 16 MiB"},
		{[]string{"--max-weight", "-1"}, "weight"},
		{[]string{"surplus"}, "surplus"},
	} {
		cmd := newCoordinator()
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(append(c.args, "--socket", filepath.Join(t.TempDir(), "s")))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want something about %s", c.args, err, c.want)
		}
	}
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(60 * time.Second); !f(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func TestTheGreetingSaysHowTheAdministrativeAddressIsServed(t *testing.T) {
	a := testcert.NewAuthority(t, "administrators")
	var files listen.Files
	files.Cert, files.Key = a.Issue(t, "coordinator")
	files.CA[listen.Admin] = a.File
	certs, err := listen.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	for want, security := range map[string]listen.Security{
		"  admin   http://127.0.0.1:7074/ ":  {},
		"  admin   https://127.0.0.1:7074/ ": {Certificates: certs},
	} {
		var b strings.Builder
		if err := greetCoordinator(&b, map[string]string{"admin": defaultCoordinatorAdmin, "socket": "s"}, security); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), want) {
			t.Errorf("got %q, want it to say %q", b.String(), want)
		}
	}
}
