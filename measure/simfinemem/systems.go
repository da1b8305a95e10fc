package simfinemem

import (
	"time"

	"polder/pool/finemem"
)

// Names of systems that others are compared with.
const (
	paperName  = "FineMem"
	spreadName = "FineMem, spread"
	scanName   = "array scan"
	rpcName    = "RPC"
)

// systems are what is compared.
var systems = []system{
	{name: paperName, oneSided: true, way: queued, published: publishedFineMem, build: fine(finemem.Paper, false)},
	{name: spreadName, oneSided: true, ours: true, way: queued, build: fine(finemem.Spread, true)},
	{name: "FineMem, spread, lanes", oneSided: true, ours: true, way: lanes, build: fine(finemem.Spread, false)},
	{name: scanName, oneSided: true, published: publishedScan, build: scanning},
	{name: rpcName, build: func(r *rig, _ load, threads, _ int, _ *counts) ([]allocator, error) {
		return calling(r, threads, func(int) time.Duration { return r.costs.RPC })
	}},
	{name: "RPC + registration", build: func(r *rig, _ load, threads, _ int, _ *counts) ([]allocator, error) {
		return calling(r, threads, func(class int) time.Duration {
			return r.costs.RPC + r.costs.Register + r.costs.RegisterPage<<class
		})
	}},
}
