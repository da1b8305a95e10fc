// Package baseline has the ways of managing remote memory that the papers compare theirs with. Benchmarks,
// simulations and attacks run them. No flag offers them, since each is slower or less safe than what package pool
// chooses by itself.
//
//   - [RPCMW1]: messages, and windows of type 1 (RPC-MW of section 2.2.2 of the OneSidedMW paper).
//   - [FineMR]: messages, and a registration for every chunk (section 2.2.1).
//   - [StaticMR]: messages, and coarse chunks that are registered in advance (section 2.2.1).
//   - [ODRP]: every access goes through a chain that translates its address (section 2.2.3).
//
// All of them are values without state, which any number of goroutines may use.
package baseline

import "polder/pool/manager"

// Managers are all managers of this package.
var Managers = []manager.Manager{RPCMW1{}, FineMR{}, StaticMR{}, ODRP{}}
