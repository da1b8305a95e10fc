package far

import "polder/far/heap"

// listNodes is the nodes of a list, by number. All but the first few lie in parts, which count in the heap's budget
// as an index does. Node 0 is the list's root, and always exists. The list's lock must be held.
type listNodes struct {
	tr    *tracker
	few   [fewNodes]listNode
	parts []*[nodePart]listNode
	next  int32 // the last node that was ever used
	spare int32 // the first of the nodes that are free again, which are linked by listNode.next; 0 for none
}

// listNode is a node. Its elements lie in a row: count of them, from place first of the node's object on.
type listNode struct {
	word         uint64 // number of the word of the node's object
	prev, next   int32
	first, count int32
}

const (
	fewNodes      = 4
	nodePart      = 128
	nodePartBytes = nodePart*24 + 8 // with the pointer to the part
	// nodeCost is how much of a scope's local memory a new node uses up.
	nodeCost = (nodePartBytes + nodePart - 1) / nodePart
)

func (ns *listNodes) at(i int32) *listNode {
	if i < fewNodes {
		return &ns.few[i]
	}
	i -= fewNodes
	return &ns.parts[i/nodePart][i%nodePart]
}

// take returns a node that is not in use. who says on whose behalf local memory is taken. take fails as
// heap.Logs.GrowIndex does.
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

// give marks node i as not in use.
func (ns *listNodes) give(i int32) {
	*ns.at(i) = listNode{next: ns.spare}
	ns.spare = i
}

// clear marks all nodes as not in use, and gives their memory back.
func (ns *listNodes) clear() {
	n := int64(len(ns.parts))
	ns.tr.h.core.Logs.ShrinkIndex(heap.Nodes, n*nodePartBytes)
	ns.tr.nodeParts.Add(-n)
	*ns = listNodes{tr: ns.tr}
}
