//go:build !settle

package far

const settleEarly = false
