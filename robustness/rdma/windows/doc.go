// Package windows shows on a real implementation of verbs what memory windows
// protect from and what they do not: the weakness of type 1 that section 2.3 of
// the OneSidedMW paper describes, and that type 2B does not have it. Its tests
// are built with the tag ibverbs and use the device POLDER_RDMA_DEVICE.
package windows
