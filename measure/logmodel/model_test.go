package logmodel

import (
	"os"
	"slices"
	"strings"
	"testing"

	"polder/internal/invariants"
)

// most is how many states are visited of one model, at most: all of them, in the bounds below; but with -race, which has nothing to find in
// one goroutine, some.
var most = 20_000_000

func init() {
	if invariants.Enabled {
		most = 200_000
	}
}

// A scenario is a model within bounds, whole or with a rule that is broken.
type scenario struct {
	name    string
	explore func(broken string) finding
	soak    bool // it is explored only with TEST_SOAK
}

var scenarios = []scenario{
	{"checkpoint: a server dies, and an answer is lost", func(broken string) finding {
		return explore(checkpoints{broken: broken, records: 2, crashes: 1, lost: 1}.model(), most)
	}, false},
	{"checkpoint: a server that lives is superseded", func(broken string) finding {
		return explore(checkpoints{broken: broken, records: 1, takeovers: 1, lost: 1}.model(), most)
	}, false},
	{"checkpoint: a server that lives is superseded, more of it", func(broken string) finding {
		return explore(checkpoints{broken: broken, records: 2, takeovers: 1}.model(), most)
	}, true},
	{"checkpoint: a server is superseded, and one dies", func(broken string) finding {
		return explore(checkpoints{broken: broken, records: 1, takeovers: 1, crashes: 1, lost: 1}.model(), most)
	}, true},
	{"cleaning: copies are replayed", func(broken string) finding {
		return explore(cleaning{broken: broken, ops: 3, crashes: 1, moves: 2}.model(), most)
	}, false},
	{"cleaning: what a checkpoint refers to is held", func(broken string) finding {
		return explore(cleaning{broken: broken, held: true, ops: 3, crashes: 1, moves: 2}.model(), most)
	}, false},
	{"handover: moves, and a server that dies", func(broken string) finding {
		return explore(handover{broken: broken, writes: 2, crashes: 1, moves: 2}.model(), most)
	}, false},
	{"handover: the map takes out a server that lives", func(broken string) finding {
		return explore(handover{broken: broken, writes: 2, moves: 1, taken: 2}.model(), most)
	}, false},
	{"handover: all of that, and more of it", func(broken string) finding {
		return explore(handover{broken: broken, writes: 2, crashes: 1, moves: 1, taken: 1, restarts: 1}.model(), most)
	}, true},
	{"handover: a node restarts", func(broken string) finding {
		return explore(handover{broken: broken, writes: 2, taken: 1, restarts: 1}.model(), most)
	}, false},
	{"copies: at least one", func(broken string) finding {
		return explore(copying{broken: broken, least: 1, writes: 1, crashes: 1, leaves: 1, wipes: 1}.model(), most)
	}, false},
	{"copies: at least one, more of it", func(broken string) finding {
		return explore(copying{broken: broken, least: 1, writes: 1, crashes: 1, leaves: 2, wipes: 1}.model(), most)
	}, true},
	{"copies: at least two", func(broken string) finding {
		return explore(copying{broken: broken, least: 2, writes: 1, crashes: 0, leaves: 2, wipes: 1}.model(), most)
	}, false},
}

// rules are the rules of the protocol: what happens where each is broken, and what the explorer is to find then.
var rules = []struct{ scenario, broken, how, wrong string }{
	{"checkpoint: a server dies", "free-old-first", "the old checkpoint is given back before the manifest has the new one", "the checkpoint that the manifest has as its root cannot be read"},
	{"checkpoint: a server dies", "root-before-whole", "a checkpoint becomes the root before all of it is written", "the checkpoint that the manifest has as its root cannot be read"},
	{"checkpoint: a server dies", "doubt-is-yes", "a lost answer to a change of the root is taken for yes", "the checkpoint that the manifest has as its root cannot be read"},
	{"checkpoint: a server dies", "doubt-is-no", "a lost answer to a change of the root is taken for no", "the checkpoint that the manifest has as its root cannot be read"},
	{"checkpoint: a server dies", "doubtful-drop", "segments of the journal are given back though it is not known whether the manifest still lists them", "the manifest lists a segment of the journal that was given back"},
	{"checkpoint: a server dies", "free-journal-first", "segments of the journal are given back before the manifest no longer lists them", "the manifest lists a segment of the journal that was given back"},
	{"checkpoint: a server dies", "position-of-now", "a checkpoint's position is where the journal is when it becomes the root", "a record that was acknowledged is lost"},
	{"checkpoint: a server dies", "drop-all-there-is", "what has come since the checkpoint was begun is dropped with what it has", "a record that was acknowledged is lost"},
	{"checkpoint: a server dies", "begin-before-checkpoint", "what was replayed is dropped before a checkpoint has it", "a record that was acknowledged is lost"},
	{"checkpoint: a server dies", "prune-journal", "who opens the heap gives back what the checkpoint does not name, the journal included", "the manifest lists a segment of the journal that was given back"},
	{"checkpoint: a server dies", "never-prune", "what a server that died had not listed is not given back", "for ever a segment is kept that nobody needs"},
	{"checkpoint: a server dies", "old-root-stays", "the old checkpoint is not given back", "for ever a segment is kept that nobody needs"},
	{"checkpoint: a server that lives", "change-without-compare", "a change of the manifest happens whatever has happened before it", "the manifest lists a segment of the journal that was given back"},
	{"cleaning: copies", "moved-is-set", "a record that has only moved is replayed as if it set the key", "a key that was deleted is back"},
	{"cleaning: copies", "settle-blindly", "the index refers to the cleaner's copy even if the key was deleted meanwhile", "a key that was deleted is read"},
	{"cleaning: copies", "settle-before-it-counts", "the index refers to the cleaner's copy before it counts", "the index refers to a record that was removed"},
	{"cleaning: copies", "checkpoint-before-settling", "a checkpoint is made between the cleaner's copy and the index's referring to it", "the index refers to a record that was removed"},
	{"cleaning: copies", "tombstones-first", "a tombstone is removed though an older record is still replayed", "a key that was deleted is back"},
	{"cleaning: copies", "clean-what-is-replayed", "a record is removed that is newer than the checkpoint", "a change that was acknowledged is lost"},
	{"cleaning: copies", "dead-before-it-counts", "a record is removed because of a change that does not count yet", "the index refers to a record that was removed"},
	{"cleaning: copies", "position-of-now", "a checkpoint's position is where the log is when the manifest has it", "a key that was deleted is back"},
	{"cleaning: what", "free-before-checkpoint", "what was copied is removed though the last checkpoint refers to it", "the index refers to a record that was removed"},
	{"cleaning: what", "free-while-making", "what was copied is removed though the checkpoint that is being made refers to it", "the index refers to a record that was removed"},
	{"handover: moves", "map-is-enough", "who has the partition by the map serves it, without an epoch or a fence", "a write is acknowledged that does not count"},
	{"handover: moves", "read-before-fence", "the next owner reads what a node has before the node is fenced", "a write that was acknowledged or shown is lost"},
	{"handover: moves", "no-lease-wait", "the next owner does not wait for the lease of one that did not close", "an owner answers a read after the next one has answered"},
	{"handover: moves", "give-up-first", "the owner gives the partition up before it has fallen silent", "an owner answers a read after the next one has answered"},
	{"handover: moves", "serve-before-decision", "what was found at nodes is shown before it is decided that it counts", "a write that was acknowledged or shown is lost"},
	{"handover: moves", "one-copy-is-enough", "a write is acknowledged when one of two nodes has it", "a write that was acknowledged or shown is lost"},
	{"handover: moves", "dead-have-to-close", "who is to open a partition waits until its owner has closed, dead or not", "for ever the partition is not served"},
	{"handover: moves", "close-after-next-opens", "the owner closes when the next one has opened, which waits for that", "for ever the partition is not served"},
	{"handover: the map", "give-up-before-lease-ends", "who gives a partition up does not wait for the lease of the owner before it", "an owner answers a read after the next one has answered"},
	{"handover: the map", "decide-without-compare", "what counts is decided whatever has happened to the manifest", "a write is acknowledged that does not count"},
	{"handover: the map", "lost-for-good", "a server that was superseded never opens the partition again", "for ever the partition is not served"},
	{"handover: a node", "node-forgets-fence", "a node that restarts with its memory takes writes of any epoch", "a write is acknowledged that does not count"},
	{"copies: at least two", "late-counts", "a copy that is late counts among those that --min-copies asks for", "a write was acknowledged with fewer copies than there have to be"},
	{"copies: at least two", "fewer-than-least", "a segment is opened with fewer copies than --min-copies", "a write was acknowledged with fewer copies than there have to be"},
	{"copies: at least one", "write-on-with-fewer", "the owner writes on without a copy, and the manifest still lists it", "a write that was acknowledged is lost"},
	{"copies: at least one", "empty-is-a-copy", "a place that lost its memory is taken for one with an empty copy", "a write that was acknowledged is lost"},
	{"copies: at least one", "empty-is-full", "a place that lost its memory counts as if it still had its copy", "for ever a segment has fewer copies than it should"},
	{"copies: at least one", "open-without", "the log is opened though no copy of its open segment can be reached", "a write that was acknowledged is lost"},
	{"copies: at least one", "unsure-counts", "a copy that could not be reached when the log was opened counts as if it had everything", "a write that was acknowledged is lost"},
	{"copies: at least one", "let-go-of-the-absent", "copies that could not be reached when the log was opened are no longer listed", "a write that was acknowledged is lost"},
	{"copies: at least one", "copy-from-unsure", "what lacks copies is copied from one that may lack something", "a write that was acknowledged is lost"},
	{"copies: at least one", "free-before-listed", "the copy that is replaced is given back before the manifest lists the one in its place", "a copy that the manifest lists was given back"},
	{"copies: at least one", "prune-the-unreached", "a place that is back gives back copies that were not reopened, and are listed", "a copy that the manifest lists was given back"},
	{"copies: at least one", "never-again", "where a copy was lost none is ever made", "for ever a segment has fewer copies than it should"},
}

// TestTheProtocolHolds in every state of every scenario.
func TestTheProtocolHolds(t *testing.T) {
	total := 0
	for _, sc := range scenarios {
		if sc.soak && os.Getenv("TEST_SOAK") == "" {
			continue
		}
		f := sc.explore("")
		total += f.states
		t.Logf("%s: %d states, up to %d steps", sc.name, f.states, f.depth)
		if f.wrong != "" {
			t.Errorf("%s: %s:%s", sc.name, f.wrong, trace(f))
		} else if !f.whole && !invariants.Enabled {
			t.Errorf("%s: there are more than %d states", sc.name, most)
		}
	}
	t.Logf("%d states in all", total)
}

// TestEachRuleIsNeeded: where one is broken, something goes wrong that the explorer finds. With -v, it prints how.
func TestEachRuleIsNeeded(t *testing.T) {
	for _, r := range rules {
		if invariants.Enabled && strings.HasPrefix(r.wrong, "for ever") {
			continue // all states have to be visited
		}
		part, _, _ := strings.Cut(r.scenario, ":")
		t.Run(part+"/"+r.broken, func(t *testing.T) {
			i := slices.IndexFunc(scenarios, func(sc scenario) bool { return strings.HasPrefix(sc.name, r.scenario) })
			f := scenarios[i].explore(r.broken)
			t.Logf("%s: %s, found in %d states:%s", r.how, f.wrong, f.states, trace(f))
			if f.wrong != r.wrong {
				t.Errorf("%s: found %q in %d states, want %q", r.how, f.wrong, f.states, r.wrong)
			}
		})
	}
}

// trace is how it came to what was found, a step a line.
func trace(f finding) string {
	if len(f.trace) == 0 {
		return " at once"
	}
	return "\n    " + strings.Join(f.trace, "\n    ")
}
