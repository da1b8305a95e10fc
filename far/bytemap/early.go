//go:build settle

package bytemap

// init makes every test of maps one of leaves.
func init() { SettleEarly = true }
