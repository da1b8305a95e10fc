package odrp

import (
	"bytes"
	"testing"

	"go.uber.org/goleak"

	"polder/internal/arena"
	"polder/memnode/chain"
	"polder/memnode/rebind"
	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/softnic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pagesOf returns the pages of so many chunks of one page each.
func pagesOf(t *testing.T, chunks int) *Pages {
	t.Helper()
	dev, err := inproc.NewFabric().NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	mem, err := arena.Anonymous(chunks*chain.MaxPage, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() })
	mr, err := pd.RegMR(mem.Bytes(), verbs.AccessLocalWrite|verbs.AccessMWBind)
	if err != nil {
		t.Fatal(err)
	}
	binder, err := rebind.NewBinder(dev, pd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { binder.Close() })
	return New(Memory{Dev: dev, PD: pd, MR: mr, Map: mem, Binder: binder, Chunks: chunks, ChunkSize: chain.MaxPage, Budget: chunks})
}

// tableOf returns the table of a client that is connected, and what counts how often its pagers had to stop.
func tableOf(t *testing.T, p *Pages) (*Table, *int) {
	t.Helper()
	table, err := p.NewTable()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	stops := new(int)
	table.Open(func(verbs.AsyncEvent) {}, func() { *stops++ })
	return table, stops
}

func furnish(t *testing.T, table *Table, chunks ...uint32) {
	t.Helper()
	for _, i := range chunks {
		if !table.Furnish(i) {
			t.Fatalf("there are no pages for chunk %d", i)
		}
	}
}

// touch does what a chain does that finds no page behind an address, and writes to the page.
func touch(t *testing.T, table *Table, entry int) {
	t.Helper()
	head := chain.Load(table.queue)
	addr := chain.Swap(table.element(head), 0)
	if addr == 0 {
		t.Fatal("the client's queue of pages is empty")
	}
	chain.Store(table.queue, table.step(head, 8))
	chain.Store(table.entry(entry), addr)
	page := table.p.bytes(table.p.at(addr))
	copy(page, bytes.Repeat([]byte{0xee}, len(page)))
}

// TestPagesBehindAddressesThatAreNotTheClientsAreTakenBack: a client that touches addresses which it was not lent uses
// up its own pages. When the node notices, it stops that client's pagers, and all pages are where they should be.
func TestPagesBehindAddressesThatAreNotTheClientsAreTakenBack(t *testing.T) {
	const chunks = 8
	p := pagesOf(t, chunks)
	mallory, stops := tableOf(t, p)
	other, otherStops := tableOf(t, p)
	furnish(t, mallory, 0, 1)
	furnish(t, other, 2)
	touch(t, other, 2)
	touch(t, mallory, 5)
	touch(t, mallory, 6)
	mallory.Withdraw(0)
	if *stops != 1 || *otherStops != 0 {
		t.Errorf("the pagers stopped %d and the other client's %d times, want 1 and 0", *stops, *otherStops)
	}
	for _, entry := range []int{5, 6} {
		if addr := chain.Load(mallory.entry(entry)); addr != 0 {
			t.Errorf("address %d still has the page at %#x", entry, addr)
		}
	}
	if n := len(mallory.pages); n != 1 {
		t.Errorf("the client has %d pages for one address, want 1", n)
	}
	if page := p.bytes(p.at(chain.Load(other.entry(2)))); page[0] != 0xee {
		t.Error("the other client's page has changed")
	}
	furnish(t, other, 0, 3, 4, 5, 6, 7) // there are as many pages as addresses
	for _, i := range []int{0, 3, 4, 5, 6, 7} {
		head := chain.Load(other.queue)
		page := p.bytes(p.at(chain.Load(other.element(head))))
		if !bytes.Equal(page, make([]byte, len(page))) {
			t.Errorf("a page that is lent again does not read as zero")
		}
		touch(t, other, i)
	}
}

// TestPagesThatNobodyTouchedComeBack: what was furnished and never touched is in the client's queue, and is taken out of it.
func TestPagesThatNobodyTouchedComeBack(t *testing.T) {
	p := pagesOf(t, 4)
	a, stops := tableOf(t, p)
	b, _ := tableOf(t, p)
	furnish(t, a, 0, 1, 2, 3)
	touch(t, a, 3)
	if b.Furnish(0) {
		t.Error("a fifth page was there, of four")
	}
	for i := range uint32(4) {
		a.Withdraw(i)
	}
	if *stops != 0 {
		t.Error("an honest client's pagers have stopped")
	}
	furnish(t, b, 0, 1, 2, 3)
}
