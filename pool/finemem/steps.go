package finemem

import "polder/internal/failpoint"

// The moments at which a crash would hurt: each comes before the operation on the
// fabric, or the change to the node's words, that it is named for. The last are the
// memory node's.
const (
	StepReadHeaders   = "finemem.read-headers"
	StepAllocCommit   = "finemem.alloc-commit"
	StepAllocKeys     = "finemem.alloc-keys"
	StepFreeSwap      = "finemem.free-swap"
	StepFreeCommit    = "finemem.free-commit"
	StepFreeRing      = "finemem.free-ring"
	StepFreeLook      = "finemem.free-look"
	StepFreeBell      = "finemem.free-bell"
	StepFlushRead     = "finemem.flush-read"
	StepFlushCheck    = "finemem.flush-check"
	StepFlush         = "finemem.flush"
	StepOpenSection   = "finemem.open-section"
	StepOpenSpan      = "finemem.open-span"
	StepCloseSpan     = "finemem.close-span"
	StepCloseSection  = "finemem.close-section"
	StepRepairSpan    = "finemem.repair-span"
	StepRepairSection = "finemem.repair-section"
	StepHint          = "finemem.hint"
	StepBeat          = "finemem.beat"
)

// StepComplete comes when the operations of a batch have been carried out and
// nothing that they brought has been looked at. A test may deliver them again, as an
// RNIC does that has not seen the answer. Nobody crashes there: it would be as
// before the next step.
const StepComplete = "finemem.complete"

// Steps lists all of the others.
var Steps = []string{
	StepReadHeaders, StepAllocCommit, StepAllocKeys, StepFreeSwap, StepFreeCommit, StepFreeRing, StepFreeLook, StepFreeBell,
	StepFlushRead, StepFlushCheck, StepFlush, StepOpenSection, StepOpenSpan, StepCloseSpan,
	StepCloseSection, StepRepairSpan, StepRepairSection, StepHint, StepBeat,
	"recover.flush", "recover.swap", "recover.free", "recover.hint",
	"rebind.unbind", "rebind.zero", "rebind.bind", "rebind.publish", "rebind.hint", "rebind.close-span", "rebind.close-section",
}

// step comes to a moment. An error ends the allocator, as a crash would.
func (a *Allocator) step(name string) error {
	failpoint.Hit(name)
	if a.cfg.Step != nil {
		return a.cfg.Step(name)
	}
	return nil
}
