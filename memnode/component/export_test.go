package component

import "testing"

// LimitReplies has tenants of the test's nodes have so few buffers for replies.
func LimitReplies(t *testing.T, n int) {
	before := replyBuffers
	replyBuffers = n
	t.Cleanup(func() { replyBuffers = before })
}
