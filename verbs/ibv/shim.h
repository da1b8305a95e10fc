// What the Go side needs of libibverbs: the inlines and macros of its header as
// functions, and one flat, pointer-free shape for requests and completions, so
// that a batch crosses from Go to C in one call.
#ifndef POLDER_IBV_SHIM_H
#define POLDER_IBV_SHIM_H

#include <infiniband/verbs.h>
#include <stdint.h>

enum { POLDER_MAX_SGE = 4, POLDER_POLL = 64, POLDER_GIDS = 64 };

enum polder_op {
	POLDER_SEND,
	POLDER_READ,
	POLDER_WRITE,
	POLDER_CMP_SWAP,
	POLDER_FETCH_ADD,
	POLDER_BIND1, // by ibv_bind_mw: the provider chooses the key
	POLDER_BIND2,
	POLDER_LOCAL_INV,
};

enum { POLDER_SIGNALED = 1, POLDER_FENCE = 2, POLDER_INLINE = 4 };

struct polder_wr {
	uint64_t id;
	uint64_t remote; // BIND: the range's start
	uint64_t compare;
	uint64_t swap; // FETCH_ADD: the addend; BIND: the range's length
	uintptr_t mw, mr; // an ibv_mw and an ibv_mr: Go need not look for pointers
	uint32_t rkey; // BIND2: the new one
	uint8_t op, flags, sges, access;
	struct ibv_sge sge[POLDER_MAX_SGE];
};

struct polder_rr {
	uint64_t id;
	uint32_t sges;
	uint32_t unused;
	struct ibv_sge sge[POLDER_MAX_SGE];
};

struct polder_wc {
	uint64_t id;
	uint32_t length;
	uint16_t status, vendor;
};

struct polder_port {
	int state, mtu, ethernet;
	uint16_t lid;
};

struct polder_gid {
	uint8_t gid[16];
	uint32_t index, type; // type: enum ibv_gid_type; 2 is RoCE v2
};

struct polder_path {
	uint8_t gid[16];
	uint8_t gid_index, global, port, mtu;
	uint8_t rd_atomic, dest_rd_atomic, timeout, retries;
	uint16_t lid;
	uint32_t qpn, psn, dest_psn;
};

struct ibv_device **polder_devices(int *n);
int polder_query_port(struct ibv_context *c, uint8_t port, struct polder_port *out);
int polder_query_gids(struct ibv_context *c, uint8_t port, struct polder_gid *out);

struct ibv_mr *polder_reg_mr(struct ibv_pd *pd, uintptr_t addr, size_t n, int access);
struct ibv_mw *polder_alloc_mw(struct ibv_pd *pd, int type);

struct ibv_qp *polder_create_qp(struct ibv_pd *pd, struct ibv_cq *send, struct ibv_cq *recv,
				uint32_t send_depth, uint32_t recv_depth, uint32_t sges, uint32_t *max_inline);
int polder_to_init(struct ibv_qp *qp, uint8_t port);
int polder_to_rts(struct ibv_qp *qp, const struct polder_path *p);
int polder_to_error(struct ibv_qp *qp);
int polder_state(struct ibv_qp *qp, int *state);

int polder_post_send(uintptr_t qp, uintptr_t scratch, struct polder_wr *w, int n, int *posted);
int polder_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *scratch, struct polder_rr *w, int n, int *posted);
int polder_poll(uintptr_t cq, struct polder_wc *out, int n, int tries);

struct ibv_cq *polder_create_cq(struct ibv_context *c, int depth, struct ibv_comp_channel *ch);
int polder_arm(struct ibv_cq *cq);
int polder_cq_event(struct ibv_comp_channel *ch, struct ibv_cq *cq);
int polder_async_event(struct ibv_context *c, int *type, void **object);

#endif
