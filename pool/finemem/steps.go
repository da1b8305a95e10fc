package finemem

import "polder/internal/failpoint"

// The moments at which a crash would hurt. Each is named after the operation on the fabric that it comes before.
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

// StepComplete comes when the operations of a batch have been carried out, before anything that they returned has
// been looked at. A test may then carry them out again, as an RNIC does that has not seen an answer. No crash is
// tested there: it would be the same as one at the next step.
const StepComplete = "finemem.complete"

// Steps lists all the other steps. The last ones are the memory node's, named after the changes of its words that
// they come before.
var Steps = []string{
	StepReadHeaders, StepAllocCommit, StepAllocKeys, StepFreeSwap, StepFreeCommit, StepFreeRing, StepFreeLook, StepFreeBell,
	StepFlushRead, StepFlushCheck, StepFlush, StepOpenSection, StepOpenSpan, StepCloseSpan,
	StepCloseSection, StepRepairSpan, StepRepairSection, StepHint, StepBeat,
	"recover.flush", "recover.swap", "recover.free", "recover.hint",
	"rebind.unbind", "rebind.zero", "rebind.bind", "rebind.publish", "rebind.hint", "rebind.close-span", "rebind.close-section",
}

// step calls Config.Step. An error of it ends the allocator, as a crash would.
func (a *Allocator) step(name string) error {
	failpoint.Hit(name)
	if a.cfg.Step != nil {
		return a.cfg.Step(name)
	}
	return nil
}
