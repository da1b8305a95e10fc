//go:build ibverbs

#include "shim.h"

#include <errno.h>
#include <string.h>

struct ibv_device **polder_devices(int *n) { return ibv_get_device_list(n); }

int polder_query_port(struct ibv_context *c, uint8_t port, struct polder_port *out)
{
	struct ibv_port_attr a;
	int err = ibv_query_port(c, port, &a);
	if (err)
		return err;
	memset(out, 0, sizeof(*out));
	out->state = a.state;
	out->mtu = a.active_mtu;
	out->ethernet = a.link_layer == IBV_LINK_LAYER_ETHERNET;
	out->lid = a.lid;
	return 0;
}

int polder_query_gids(struct ibv_context *c, uint8_t port, struct polder_gid *out)
{
	struct ibv_gid_entry e[256];
	ssize_t n = ibv_query_gid_table(c, e, 256, 0);
	int k = 0;
	for (ssize_t i = 0; i < n && k < POLDER_GIDS; i++) {
		if (e[i].port_num != port)
			continue;
		memcpy(out[k].gid, e[i].gid.raw, 16);
		out[k].index = e[i].gid_index;
		out[k].type = e[i].gid_type;
		k++;
	}
	return n < 0 ? (int)n : k;
}

struct ibv_mr *polder_reg_mr(struct ibv_pd *pd, uintptr_t addr, size_t n, int access)
{
	return ibv_reg_mr(pd, (void *)addr, n, access);
}

struct ibv_mw *polder_alloc_mw(struct ibv_pd *pd, int type)
{
	return ibv_alloc_mw(pd, type == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
}

struct ibv_qp *polder_create_qp(struct ibv_pd *pd, struct ibv_cq *send, struct ibv_cq *recv,
				uint32_t send_depth, uint32_t recv_depth, uint32_t sges, uint32_t *max_inline)
{
	struct ibv_qp_init_attr a = {
		.send_cq = send,
		.recv_cq = recv,
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = send_depth,
			.max_recv_wr = recv_depth,
			.max_send_sge = sges,
			.max_recv_sge = sges,
			.max_inline_data = *max_inline,
		},
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &a);
	if (!qp && *max_inline) {
		a.cap.max_inline_data = *max_inline = 0;
		qp = ibv_create_qp(pd, &a);
	}
	return qp;
}

int polder_to_init(struct ibv_qp *qp, uint8_t port)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = port,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
				   IBV_ACCESS_REMOTE_ATOMIC,
	};
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int polder_to_rts(struct ibv_qp *qp, const struct polder_path *p)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = p->mtu,
		.dest_qp_num = p->qpn,
		.rq_psn = p->dest_psn,
		.max_dest_rd_atomic = p->dest_rd_atomic,
		.min_rnr_timer = 1, // 10 us
		.ah_attr = {.dlid = p->lid, .port_num = p->port, .is_global = p->global},
	};
	if (p->global) {
		memcpy(a.ah_attr.grh.dgid.raw, p->gid, 16);
		a.ah_attr.grh.sgid_index = p->gid_index;
		a.ah_attr.grh.hop_limit = 64;
	}
	int err = ibv_modify_qp(qp, &a,
				IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (err)
		return err;
	struct ibv_qp_attr s = {
		.qp_state = IBV_QPS_RTS,
		.timeout = p->timeout,
		.retry_cnt = p->retries,
		.rnr_retry = 6,
		.sq_psn = p->psn,
		.max_rd_atomic = p->rd_atomic,
	};
	return ibv_modify_qp(qp, &s,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC);
}

int polder_to_error(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	return ibv_modify_qp(qp, &a, IBV_QP_STATE);
}

int polder_state(struct ibv_qp *qp, int *state)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	int err = ibv_query_qp(qp, &a, IBV_QP_STATE, &i);
	*state = a.qp_state;
	return err;
}

static int access_flags(uint8_t a)
{
	return (a & 1 ? IBV_ACCESS_LOCAL_WRITE : 0) | (a & 2 ? IBV_ACCESS_REMOTE_READ : 0) |
	       (a & 4 ? IBV_ACCESS_REMOTE_WRITE : 0) | (a & 8 ? IBV_ACCESS_REMOTE_ATOMIC : 0);
}

static int bind1(struct ibv_qp *qp, struct polder_wr *w)
{
	struct ibv_mw_bind b = {
		.wr_id = w->id,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = {
			.mr = w->swap ? (struct ibv_mr *)w->mr : NULL,
			.addr = w->swap ? w->remote : 0,
			.length = w->swap,
			.mw_access_flags = access_flags(w->access),
		},
	};
	return ibv_bind_mw(qp, (struct ibv_mw *)w->mw, &b);
}

static void fill(struct ibv_send_wr *o, struct polder_wr *w)
{
	memset(o, 0, sizeof(*o));
	o->wr_id = w->id;
	o->sg_list = w->sge;
	o->num_sge = w->sges;
	o->send_flags = (w->flags & POLDER_SIGNALED ? IBV_SEND_SIGNALED : 0) |
			(w->flags & POLDER_FENCE ? IBV_SEND_FENCE : 0) |
			(w->flags & POLDER_INLINE ? IBV_SEND_INLINE : 0);
	switch (w->op) {
	case POLDER_SEND:
		o->opcode = IBV_WR_SEND;
		break;
	case POLDER_READ:
	case POLDER_WRITE:
		o->opcode = w->op == POLDER_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
		o->wr.rdma.remote_addr = w->remote;
		o->wr.rdma.rkey = w->rkey;
		break;
	case POLDER_CMP_SWAP:
	case POLDER_FETCH_ADD:
		o->opcode = w->op == POLDER_CMP_SWAP ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
		o->wr.atomic.remote_addr = w->remote;
		o->wr.atomic.rkey = w->rkey;
		o->wr.atomic.compare_add = w->op == POLDER_CMP_SWAP ? w->compare : w->swap;
		o->wr.atomic.swap = w->op == POLDER_CMP_SWAP ? w->swap : 0;
		break;
	case POLDER_BIND2:
		o->opcode = IBV_WR_BIND_MW;
		o->bind_mw.mw = (struct ibv_mw *)w->mw;
		o->bind_mw.rkey = w->rkey;
		o->bind_mw.bind_info.mr = (struct ibv_mr *)w->mr;
		o->bind_mw.bind_info.addr = w->remote;
		o->bind_mw.bind_info.length = w->swap;
		o->bind_mw.bind_info.mw_access_flags = access_flags(w->access);
		break;
	case POLDER_LOCAL_INV:
		o->opcode = IBV_WR_LOCAL_INV;
		o->invalidate_rkey = w->rkey;
		break;
	}
}

// ring posts scratch[from:to] with one doorbell and counts what was taken.
static int ring(struct ibv_qp *qp, struct ibv_send_wr *scratch, struct polder_wr *w, int from, int to, int *posted)
{
	struct ibv_send_wr *bad = NULL;
	if (from == to)
		return 0;
	scratch[to - 1].next = NULL;
	int err = ibv_post_send(qp, &scratch[from], &bad);
	*posted = err ? (bad ? (int)(bad - scratch) : from) : to;
	// Providers take a window's present key from here when it is bound next.
	for (int i = from; i < *posted; i++)
		if (w[i].op == POLDER_BIND2)
			((struct ibv_mw *)w[i].mw)->rkey = w[i].rkey;
	return err;
}

// names says whether a request in w[from:to] binds mw.
static int names(struct polder_wr *w, int from, int to, uintptr_t mw)
{
	for (int i = from; i < to; i++)
		if (w[i].op == POLDER_BIND2 && w[i].mw == mw)
			return 1;
	return 0;
}

// polder_post_send posts a batch: one doorbell, or one more for every window of
// type 1, which has a call of its own, or that is bound twice. It sets posted to
// how many requests were taken.
int polder_post_send(uintptr_t qp_, uintptr_t scratch_, struct polder_wr *w, int n, int *posted)
{
	struct ibv_qp *qp = (struct ibv_qp *)qp_;
	struct ibv_send_wr *scratch = (struct ibv_send_wr *)scratch_;
	int from = 0, err;
	*posted = 0;
	for (int i = 0; i < n; i++) {
		if (w[i].op == POLDER_BIND1) {
			if ((err = ring(qp, scratch, w, from, i, posted)) || (err = bind1(qp, &w[i])))
				return err;
			*posted = from = i + 1;
			continue;
		}
		if (w[i].op == POLDER_BIND2 && names(w, from, i, w[i].mw)) {
			if ((err = ring(qp, scratch, w, from, i, posted)))
				return err;
			from = i;
		}
		fill(&scratch[i], &w[i]);
		scratch[i].next = &scratch[i + 1];
	}
	return ring(qp, scratch, w, from, n, posted);
}

int polder_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *scratch, struct polder_rr *w, int n, int *posted)
{
	struct ibv_recv_wr *bad = NULL;
	for (int i = 0; i < n; i++) {
		scratch[i].wr_id = w[i].id;
		scratch[i].sg_list = w[i].sge;
		scratch[i].num_sge = w[i].sges;
		scratch[i].next = i + 1 < n ? &scratch[i + 1] : NULL;
	}
	int err = ibv_post_recv(qp, scratch, &bad);
	*posted = err ? (bad ? (int)(bad - scratch) : 0) : n;
	return err;
}

// polder_poll polls up to tries times, until something has come. To look again
// costs a fraction of what the way here from Go does.
int polder_poll(uintptr_t cq, struct polder_wc *out, int n, int tries)
{
	struct ibv_wc wc[POLDER_POLL];
	int most = n < POLDER_POLL ? n : POLDER_POLL;
	while (!(n = ibv_poll_cq((struct ibv_cq *)cq, most, wc)) && --tries > 0)
		;
	for (int i = 0; i < n; i++) {
		out[i].id = wc[i].wr_id;
		out[i].length = wc[i].byte_len;
		out[i].status = wc[i].status;
		out[i].vendor = wc[i].vendor_err;
	}
	return n;
}

struct ibv_cq *polder_create_cq(struct ibv_context *c, int depth, struct ibv_comp_channel *ch)
{
	return ibv_create_cq(c, depth, NULL, ch, 0);
}

int polder_arm(struct ibv_cq *cq) { return ibv_req_notify_cq(cq, 0); }

// polder_cq_event takes one event from a channel that does not block, and
// acknowledges it. It returns 0 for an event, EAGAIN, or another error.
int polder_cq_event(struct ibv_comp_channel *ch, struct ibv_cq *cq)
{
	struct ibv_cq *got;
	void *context;
	if (ibv_get_cq_event(ch, &got, &context))
		return errno ? errno : EIO;
	ibv_ack_cq_events(got, 1);
	return 0;
}

// polder_async_event takes an asynchronous event. The object, a queue pair or a
// completion queue, may be destroyed when this returns: it is only a name.
int polder_async_event(struct ibv_context *c, int *type, void **object)
{
	struct ibv_async_event e;
	if (ibv_get_async_event(c, &e))
		return errno ? errno : EIO;
	*type = e.event_type;
	*object = e.event_type == IBV_EVENT_CQ_ERR ? (void *)e.element.cq : (void *)e.element.qp;
	ibv_ack_async_event(&e);
	return 0;
}
