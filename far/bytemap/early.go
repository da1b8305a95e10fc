//go:build settle

package bytemap

// init makes every test of maps a test of leaves, too.
func init() { SettleEarly = true }
