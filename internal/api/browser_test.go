package api_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

const chromium = "/usr/bin/chromium"

// browser is one tab of a headless Chromium with a profile of its own. A page
// that loads anything from elsewhere, or makes the browser complain, fails the
// test.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	if _, err := os.Stat(chromium); err != nil {
		t.Fatalf("River UI is tested in a real browser: %v", err)
	}
	flags := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.WindowSize(1280, 900), chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	allocated, release := chromedp.NewExecAllocator(context.Background(), flags...)
	t.Cleanup(release)
	ctx, closed := chromedp.NewContext(allocated)
	t.Cleanup(closed)

	b := &browser{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, b.hear); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, complaint := range slices.Compact(b.complaints) {
			t.Error(complaint)
		}
	})
	return b
}

func (b *browser) hear(event any) {
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(e.Request.URL); err != nil || (u.Scheme != "data" && u.Hostname() != "127.0.0.1") {
			b.complain("the page asks for %s", e.Request.URL)
		}
	case *runtime.EventExceptionThrown:
		b.complain("the page fails: %+v", e.ExceptionDetails)
	case *log.EventEntryAdded:
		// Not of the network: a job that was handed on has another id, and the
		// page asks for the old one.
		if e.Entry.Level == "error" && e.Entry.Source != "network" {
			b.complain("the browser complains: %+v", *e.Entry)
		}
	}
}

func (b *browser) complain(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complaints = append(b.complaints, fmt.Sprintf(format, args...))
}

func (b *browser) do(what string, action chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	if err := chromedp.Do(ctx, action); err != nil {
		text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.body.innerText`))
		b.t.Fatalf("%s: %v\nthe page says:\n%s", what, err, text)
	}
}

func (b *browser) open(address string) {
	b.t.Helper()
	b.do("open "+address, chromedp.Navigate(address))
}

// see waits until an element can be seen.
func (b *browser) see(selector string) {
	b.t.Helper()
	b.do("see "+selector, chromedp.WaitVisible(chromedp.CSS(selector)))
}

// has reports whether the page has such an element now.
func (b *browser) has(selector string) bool {
	b.t.Helper()
	found, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](fmt.Sprintf(`document.querySelector(%q) !== null`, selector)))
	if err != nil {
		b.t.Fatal(err)
	}
	return found
}

// read waits until the page shows the text, whatever blanks stand in it.
func (b *browser) read(text string) {
	b.t.Helper()
	b.do("read "+text, chromedp.Poll[chromedp.Void](fmt.Sprintf(`document.body.innerText.replace(/\s+/g, " ").includes(%q)`, text)))
}

// press clicks a button by its text, once it can be pressed.
func (b *browser) press(text string) {
	b.t.Helper()
	button := fmt.Sprintf(`//button[not(@disabled) and normalize-space()=%q]`, text)
	b.do("press "+text, chromedp.Click(chromedp.Search(button), chromedp.NodeVisible))
}
