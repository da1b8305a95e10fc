package far

import "polder/far/heap"

// listNodes is the nodes of a list, by number. All but the first few lie in parts
// that count in the heap's budget, as an index does. Node 0 is the list's root,
// and always there. They need the list's lock.
type listNodes struct {
	tr    *tracker
	few   [fewNodes]listNode
	parts []*[nodePart]listNode
	next  int32 // the nodes from it on were never used, less one
	spare int32 // one that is used no more, and so on by next; 0 for none
}

// listNode is a node. Its elements are count in a row, from first on.
type listNode struct {
	word         uint64 // number of the object's
	prev, next   int32
	first, count int32
}

const (
	fewNodes      = 4
	nodePart      = 128
	nodePartBytes = nodePart*24 + 8 // and the pointer to it
	// nodeCost is what a new node takes of what a scope may take.
	nodeCost = (nodePartBytes + nodePart - 1) / nodePart
)

func (ns *listNodes) at(i int32) *listNode {
	if i < fewNodes {
		return &ns.few[i]
	}
	i -= fewNodes
	return &ns.parts[i/nodePart][i%nodePart]
}

// take returns a node that is not in use, on behalf of who. It fails as
// logs.growIndex does.
func (ns *listNodes) take(who heap.Claim) (int32, error) {
	if i := ns.spare; i != 0 {
		ns.spare = ns.at(i).next
		return i, nil
	}
	if int(ns.next)+1 == fewNodes+len(ns.parts)*nodePart {
		if err := ns.tr.h.core.Logs.GrowIndex(heap.Nodes, nodePartBytes, who); err != nil {
			return 0, err
		}
		ns.tr.nodeParts.Add(1)
		ns.parts = append(ns.parts, new([nodePart]listNode))
	}
	ns.next++
	return ns.next, nil
}

// give takes node i back.
func (ns *listNodes) give(i int32) {
	*ns.at(i) = listNode{next: ns.spare}
	ns.spare = i
}

// clear takes all nodes back, and gives their memory up.
func (ns *listNodes) clear() {
	n := int64(len(ns.parts))
	ns.tr.h.core.Logs.ShrinkIndex(heap.Nodes, n*nodePartBytes)
	ns.tr.nodeParts.Add(-n)
	*ns = listNodes{tr: ns.tr}
}
