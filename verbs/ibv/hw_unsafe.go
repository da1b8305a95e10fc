//go:build ibverbs

package ibv

/*
#cgo LDFLAGS: -libverbs
#cgo noescape polder_post_send
#cgo nocallback polder_post_send
#cgo noescape polder_post_recv
#cgo nocallback polder_post_recv
#cgo noescape polder_poll
#cgo nocallback polder_poll
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"polder/verbs"
)

// This file is all that touches libibverbs: thin wrappers that give errors
// their names and keep C's types out of the other files. Its functions hold no
// lock and keep no state.

type (
	hwContext = *C.struct_ibv_context
	hwPD      = *C.struct_ibv_pd
	hwMR      = *C.struct_ibv_mr
	hwMW      = *C.struct_ibv_mw
	hwChannel = *C.struct_ibv_comp_channel
	hwWC      = C.struct_polder_wc
	hwWR      = C.struct_polder_wr
	hwRR      = C.struct_polder_rr
	hwSGE     = C.struct_ibv_sge
)

const (
	maxSGE    = C.POLDER_MAX_SGE
	pollBatch = C.POLDER_POLL

	hwSend     = C.POLDER_SEND
	hwRead     = C.POLDER_READ
	hwWrite    = C.POLDER_WRITE
	hwCmpSwap  = C.POLDER_CMP_SWAP
	hwFetchAdd = C.POLDER_FETCH_ADD
	hwBind1    = C.POLDER_BIND1
	hwBind2    = C.POLDER_BIND2
	hwLocalInv = C.POLDER_LOCAL_INV

	hwSignaled = C.POLDER_SIGNALED
	hwFence    = C.POLDER_FENCE
	hwInline   = C.POLDER_INLINE
)

// hwHandle is an object of libibverbs' in a request.
func hwHandle[T any](p *T) C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(p))) }

// hwWord is a number as C has it, and so are hwKey, hwUint and hwByte.
func hwWord(v uint64) C.uint64_t            { return C.uint64_t(v) }
func hwKey(k verbs.RKey) C.uint32_t         { return C.uint32_t(k) }
func hwUint(v int) C.uint32_t               { return C.uint32_t(v) }
func hwByte[T ~int | ~uint8](v T) C.uint8_t { return C.uint8_t(v) }

func setSGE(to *hwSGE, e *verbs.SGE) {
	*to = hwSGE{addr: C.uint64_t(e.Addr), length: C.uint32_t(e.Length), lkey: C.uint32_t(e.LKey)}
}

// errno makes an error of what a verb returned or left in errno.
func errno(what string, code C.int) error {
	if code < 0 {
		code = -code
	}
	return fmt.Errorf("%s: %w", what, syscall.Errno(code))
}

// hwDevices calls f with every device of this host, until f returns false.
func hwDevices(f func(name string, dev *C.struct_ibv_device) bool) error {
	var n C.int
	list, err := C.polder_devices(&n)
	if list == nil {
		return fmt.Errorf("cannot list the RDMA devices: %w", err)
	}
	defer C.ibv_free_device_list(list)
	for _, dev := range unsafe.Slice(list, int(n)) {
		if !f(C.GoString(C.ibv_get_device_name(dev)), dev) {
			break
		}
	}
	return nil
}

// hwOpen opens the device of that name; it is nil if there is none.
func hwOpen(name string) (ctx hwContext, found []string, err error) {
	err = hwDevices(func(n string, dev *C.struct_ibv_device) bool {
		found = append(found, n)
		if n != name {
			return true
		}
		var openErr error
		if ctx, openErr = C.ibv_open_device(dev); ctx == nil {
			err = fmt.Errorf("ibv_open_device: %w", openErr)
		}
		return false
	})
	return ctx, found, err
}

// hwNames appends the names of all devices.
func hwNames(names *[]string) error {
	return hwDevices(func(n string, _ *C.struct_ibv_device) bool {
		*names = append(*names, n)
		return true
	})
}

func hwClose(c hwContext) error {
	if r := C.ibv_close_device(c); r != 0 {
		return errno("ibv_close_device", r)
	}
	return nil
}

func hwAsyncFD(c hwContext) int { return int(c.async_fd) }

// hwAttr is a device's own account of itself.
type hwAttr struct {
	firmware          string
	vendor, part      uint32
	maxQP, maxQPWR    int
	maxSGE            int
	maxCQ, maxCQE     int
	maxMR, maxMW      int
	maxMRSize         uint64
	maxRdAtom         int // as responder, per queue pair
	maxInitRdAtom     int // as requester
	atomics           int // enum ibv_atomic_cap
	window1, window2B bool
	ports             int
}

func hwQueryDevice(c hwContext) (hwAttr, error) {
	var a C.struct_ibv_device_attr
	if r := C.ibv_query_device(c, &a); r != 0 {
		return hwAttr{}, errno("ibv_query_device", r)
	}
	flags := uint(a.device_cap_flags)
	return hwAttr{
		firmware: C.GoString(&a.fw_ver[0]),
		vendor:   uint32(a.vendor_id), part: uint32(a.vendor_part_id),
		maxQP: int(a.max_qp), maxQPWR: int(a.max_qp_wr), maxSGE: int(a.max_sge),
		maxCQ: int(a.max_cq), maxCQE: int(a.max_cqe), maxMR: int(a.max_mr), maxMW: int(a.max_mw),
		maxMRSize: uint64(a.max_mr_size),
		maxRdAtom: int(a.max_qp_rd_atom), maxInitRdAtom: int(a.max_qp_init_rd_atom),
		atomics:  int(a.atomic_cap),
		window1:  flags&C.IBV_DEVICE_MEM_WINDOW != 0,
		window2B: flags&C.IBV_DEVICE_MEM_WINDOW_TYPE_2B != 0,
		ports:    int(a.phys_port_cnt),
	}, nil
}

const (
	atomicsNone   = C.IBV_ATOMIC_NONE
	atomicsGlobal = C.IBV_ATOMIC_GLOB
	portActive    = C.IBV_PORT_ACTIVE
	gidRoCE2      = 2
)

// hwPort is a port's state.
type hwPort struct {
	state, mtu int
	ethernet   bool
	lid        uint16
}

func hwQueryPort(c hwContext, port int) (hwPort, error) {
	var p C.struct_polder_port
	if r := C.polder_query_port(c, C.uint8_t(port), &p); r != 0 {
		return hwPort{}, errno("ibv_query_port", r)
	}
	return hwPort{state: int(p.state), mtu: int(p.mtu), ethernet: p.ethernet != 0, lid: uint16(p.lid)}, nil
}

// hwGID is an entry of a port's address table.
type hwGID struct {
	gid   [16]byte
	index int
	roce2 bool
}

func hwQueryGIDs(c hwContext, port int) ([]hwGID, error) {
	var e [C.POLDER_GIDS]C.struct_polder_gid
	n := C.polder_query_gids(c, C.uint8_t(port), &e[0])
	if n < 0 {
		return nil, errno("ibv_query_gid_table", n)
	}
	list := make([]hwGID, n)
	for i := range list {
		list[i] = hwGID{index: int(e[i].index), roce2: e[i]._type == gidRoCE2}
		for k := range list[i].gid {
			list[i].gid[k] = byte(e[i].gid[k])
		}
	}
	return list, nil
}

func hwAllocPD(c hwContext) (hwPD, error) {
	pd, err := C.ibv_alloc_pd(c)
	if pd == nil {
		return nil, fmt.Errorf("ibv_alloc_pd: %w", err)
	}
	return pd, nil
}

func hwDeallocPD(pd hwPD) error {
	if r := C.ibv_dealloc_pd(pd); r != 0 {
		return errno("ibv_dealloc_pd", r)
	}
	return nil
}

// hwRegMR registers buf, which the caller keeps until it is deregistered. What
// the Go runtime allocates does not move.
func hwRegMR(pd hwPD, buf []byte, access int) (hwMR, error) {
	addr := uintptr(unsafe.Pointer(unsafe.SliceData(buf)))
	mr, err := C.polder_reg_mr(pd, C.uintptr_t(addr), C.size_t(len(buf)), C.int(access))
	runtime.KeepAlive(buf)
	if mr == nil {
		return nil, fmt.Errorf("ibv_reg_mr: %w", err)
	}
	return mr, nil
}

// hwAccess translates verbs.Access, whose bits have an order of their own.
func hwAccess(a verbs.Access) int {
	bits := [...]int{C.IBV_ACCESS_LOCAL_WRITE, C.IBV_ACCESS_REMOTE_READ, C.IBV_ACCESS_REMOTE_WRITE,
		C.IBV_ACCESS_REMOTE_ATOMIC, C.IBV_ACCESS_MW_BIND}
	flags := 0
	for i, bit := range bits {
		if a&(1<<i) != 0 {
			flags |= bit
		}
	}
	return flags
}

func hwKeys(mr hwMR) (lkey, rkey uint32) { return uint32(mr.lkey), uint32(mr.rkey) }

func bufAddr(buf []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))) }

func hwDeregMR(mr hwMR) error {
	if r := C.ibv_dereg_mr(mr); r != 0 {
		return errno("ibv_dereg_mr", r)
	}
	return nil
}

func hwAllocMW(pd hwPD, typ int) (hwMW, error) {
	mw, err := C.polder_alloc_mw(pd, C.int(typ))
	if mw == nil {
		return nil, fmt.Errorf("ibv_alloc_mw: %w", err)
	}
	return mw, nil
}

func hwMWKey(mw hwMW) uint32 { return uint32(mw.rkey) }

func hwSetMWKey(mw hwMW, key uint32) { mw.rkey = C.uint32_t(key) }

func hwDeallocMW(mw hwMW) error {
	if r := C.ibv_dealloc_mw(mw); r != 0 {
		return errno("ibv_dealloc_mw", r)
	}
	return nil
}

// hwCQ is a completion queue and the channel that its events come by.
type hwCQ struct {
	cq      *C.struct_ibv_cq
	channel hwChannel
}

func hwCreateCQ(c hwContext, depth int) (hwCQ, error) {
	ch, err := C.ibv_create_comp_channel(c)
	if ch == nil {
		return hwCQ{}, fmt.Errorf("ibv_create_comp_channel: %w", err)
	}
	cq, err := C.polder_create_cq(c, C.int(depth), ch)
	if cq == nil {
		C.ibv_destroy_comp_channel(ch)
		return hwCQ{}, fmt.Errorf("ibv_create_cq: %w", err)
	}
	return hwCQ{cq: cq, channel: ch}, nil
}

func (q hwCQ) fd() int { return int(q.channel.fd) }

func (q hwCQ) same(object unsafe.Pointer) bool { return unsafe.Pointer(q.cq) == object }

// poll moves completions into wcs, which has room for pollBatch at most. If
// there are none it looks again, up to so many times.
//
// Hot path.
func (q hwCQ) poll(wcs []hwWC, tries int) int {
	return int(C.polder_poll(hwHandle(q.cq), unsafe.SliceData(wcs), C.int(len(wcs)), C.int(tries)))
}

// arm asks for an event at the next completion.
func (q hwCQ) arm() error {
	if r := C.polder_arm(q.cq); r != 0 {
		return errno("ibv_req_notify_cq", r)
	}
	return nil
}

// event takes one event, or reports EAGAIN.
func (q hwCQ) event() error {
	if r := C.polder_cq_event(q.channel, q.cq); r != 0 {
		return syscall.Errno(r)
	}
	return nil
}

func (q hwCQ) destroy() error {
	if r := C.ibv_destroy_cq(q.cq); r != 0 {
		return errno("ibv_destroy_cq", r)
	}
	if r := C.ibv_destroy_comp_channel(q.channel); r != 0 {
		return errno("ibv_destroy_comp_channel", r)
	}
	return nil
}

// hwQP is a queue pair and where its work requests are put together.
type hwQP struct {
	qp       *C.struct_ibv_qp
	send     *C.struct_ibv_send_wr
	recv     *C.struct_ibv_recv_wr
	inline   int // most bytes of a request's data that travel in the request
	maxBatch int // work requests that send has room for
}

func hwCreateQP(pd hwPD, send, recv hwCQ, sendDepth, recvDepth, inline int) (hwQP, error) {
	in := C.uint32_t(inline)
	qp, err := C.polder_create_qp(pd, send.cq, recv.cq, C.uint32_t(sendDepth), C.uint32_t(recvDepth), maxSGE, &in)
	if qp == nil {
		return hwQP{}, fmt.Errorf("ibv_create_qp: %w", err)
	}
	return hwQP{
		qp: qp, inline: int(in), maxBatch: sendDepth,
		send: (*C.struct_ibv_send_wr)(C.calloc(C.size_t(sendDepth), C.sizeof_struct_ibv_send_wr)),
		recv: (*C.struct_ibv_recv_wr)(C.calloc(C.size_t(recvDepth), C.sizeof_struct_ibv_recv_wr)),
	}, nil
}

func (q hwQP) num() uint32 { return uint32(q.qp.qp_num) }

func (q hwQP) same(object unsafe.Pointer) bool { return unsafe.Pointer(q.qp) == object }

func (q hwQP) toInit(port int) error {
	if r := C.polder_to_init(q.qp, C.uint8_t(port)); r != 0 {
		return errno("ibv_modify_qp to INIT", r)
	}
	return nil
}

// hwPath is what a queue pair must know of its peer and the way there.
type hwPath struct {
	gid                 [16]byte
	gidIndex, port, mtu int
	global              bool // with a GID; LID else
	lid                 uint16
	qpn, psn, peerPSN   uint32
	rdAtom, peerRdAtom  int // READs and atomics outstanding, as requester and as responder
	timeout, retries    int
}

func (q hwQP) toRTS(p hwPath) error {
	c := C.struct_polder_path{
		gid_index: C.uint8_t(p.gidIndex), port: C.uint8_t(p.port), mtu: C.uint8_t(p.mtu),
		rd_atomic: C.uint8_t(p.rdAtom), dest_rd_atomic: C.uint8_t(p.peerRdAtom),
		timeout: C.uint8_t(p.timeout), retries: C.uint8_t(p.retries),
		lid: C.uint16_t(p.lid), qpn: C.uint32_t(p.qpn), psn: C.uint32_t(p.psn), dest_psn: C.uint32_t(p.peerPSN),
	}
	if p.global {
		c.global = 1
	}
	for i, b := range p.gid {
		c.gid[i] = C.uint8_t(b)
	}
	if r := C.polder_to_rts(q.qp, &c); r != 0 {
		return errno("ibv_modify_qp to RTS", r)
	}
	return nil
}

func (q hwQP) toError() error {
	if r := C.polder_to_error(q.qp); r != 0 {
		return errno("ibv_modify_qp to ERR", r)
	}
	return nil
}

// failed reports whether the device has taken the queue pair to the error
// state by itself.
func (q hwQP) failed() bool {
	var state C.int
	return C.polder_state(q.qp, &state) == 0 && (state == C.IBV_QPS_ERR || state == C.IBV_QPS_SQE)
}

// postSend posts a batch with one doorbell and returns how many requests the
// device has taken.
//
// Hot path.
func (q hwQP) postSend(wrs []hwWR) (int, error) {
	var posted C.int
	r := C.polder_post_send(hwHandle(q.qp), hwHandle(q.send), unsafe.SliceData(wrs), C.int(len(wrs)), &posted)
	if r != 0 {
		return int(posted), errno("ibv_post_send", r)
	}
	return int(posted), nil
}

// postRecv is postSend for receives.
func (q hwQP) postRecv(wrs []hwRR) (int, error) {
	var posted C.int
	r := C.polder_post_recv(q.qp, q.recv, unsafe.SliceData(wrs), C.int(len(wrs)), &posted)
	if r != 0 {
		return int(posted), errno("ibv_post_recv", r)
	}
	return int(posted), nil
}

func (q hwQP) destroy() error {
	r := C.ibv_destroy_qp(q.qp)
	C.free(unsafe.Pointer(q.send))
	C.free(unsafe.Pointer(q.recv))
	if r != 0 {
		return errno("ibv_destroy_qp", r)
	}
	return nil
}

// hwEvent is an asynchronous event of a device.
type hwEvent int

const (
	hwCQErr       hwEvent = C.IBV_EVENT_CQ_ERR
	hwQPFatal     hwEvent = C.IBV_EVENT_QP_FATAL
	hwQPReqErr    hwEvent = C.IBV_EVENT_QP_REQ_ERR
	hwQPAccessErr hwEvent = C.IBV_EVENT_QP_ACCESS_ERR
	hwDeviceFatal hwEvent = C.IBV_EVENT_DEVICE_FATAL
)

// hwNextEvent takes an event, or reports EAGAIN. The object is a queue pair's or
// completion queue's, to be compared and not to be looked into.
func hwNextEvent(c hwContext) (hwEvent, unsafe.Pointer, error) {
	var typ C.int
	var object unsafe.Pointer
	if r := C.polder_async_event(c, &typ, &object); r != 0 {
		return 0, nil, syscall.Errno(r)
	}
	return hwEvent(typ), object, nil
}

// hwStatus translates enum ibv_wc_status.
func hwStatus(s uint16) verbs.Status {
	if int(s) < len(hwStatuses) {
		return hwStatuses[s]
	}
	return verbs.StatusFatalErr
}

// hwStatuses has StatusFatalErr, not success, for what it does not know.
var hwStatuses = func() (t [C.IBV_WC_TM_RNDV_INCOMPLETE + 1]verbs.Status) {
	for i := range t {
		t[i] = verbs.StatusFatalErr
	}
	for from, to := range map[int]verbs.Status{
		C.IBV_WC_SUCCESS:            verbs.StatusSuccess,
		C.IBV_WC_LOC_LEN_ERR:        verbs.StatusLocLenErr,
		C.IBV_WC_LOC_QP_OP_ERR:      verbs.StatusLocQPOpErr,
		C.IBV_WC_LOC_PROT_ERR:       verbs.StatusLocProtErr,
		C.IBV_WC_WR_FLUSH_ERR:       verbs.StatusWRFlushErr,
		C.IBV_WC_MW_BIND_ERR:        verbs.StatusMWBindErr,
		C.IBV_WC_LOC_ACCESS_ERR:     verbs.StatusLocAccessErr,
		C.IBV_WC_REM_INV_REQ_ERR:    verbs.StatusRemInvReqErr,
		C.IBV_WC_REM_INV_RD_REQ_ERR: verbs.StatusRemInvReqErr,
		C.IBV_WC_REM_ACCESS_ERR:     verbs.StatusRemAccessErr,
		C.IBV_WC_REM_OP_ERR:         verbs.StatusRemOpErr,
		C.IBV_WC_REM_ABORT_ERR:      verbs.StatusRemOpErr,
		C.IBV_WC_RETRY_EXC_ERR:      verbs.StatusRetryExcErr,
		C.IBV_WC_RESP_TIMEOUT_ERR:   verbs.StatusRetryExcErr,
		C.IBV_WC_RNR_RETRY_EXC_ERR:  verbs.StatusRNRRetryExcErr,
	} {
		t[from] = to
	}
	return t
}()
