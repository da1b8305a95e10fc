//go:build settle

package far

// settleEarly: words of all maps are settled as soon as a table of a page is full, so that every
// test of maps is one of leaves.
const settleEarly = true
