/*
 * Round trips of one-sided operations on libibverbs, as plainly as C can make
 * them: what Polder is measured against. Two queue pairs of one device are
 * connected to each other, and requests go from the first to the second's
 * memory.
 *
 *	roundtrip DEVICE OP SIZE DEPTH COUNT WAIT POST
 *
 * OP is read, write or swap; SIZE the bytes of an operation (8 for swap); DEPTH
 * how many are outstanding; COUNT how many are measured, after a tenth as many
 * for warming up. WAIT is "poll" (spin on the completion queue) or "sleep" (arm
 * it and block in ibv_get_cq_event). POST is "each" (a call for every request) or
 * "batch" (one for all that have completed together). Prints the median and the 99th percentile
 * of the time from post to completion in nanoseconds, and the nanoseconds that
 * all took.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_DEPTH = 256, MAX_SIZE = 1 << 16 };

struct end {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct ibv_comp_channel *channel;
	struct ibv_mr *mr;
	char *memory;
};

static void die(const char *what)
{
	fprintf(stderr, "roundtrip: cannot %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static struct ibv_context *open_device(const char *name)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);

	if (!list)
		die("list devices");
	for (int i = 0; i < n; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name)) {
			struct ibv_context *c = ibv_open_device(list[i]);

			if (!c)
				die("open the device");
			return c;
		}
	fprintf(stderr, "roundtrip: there is no device %s\n", name);
	exit(1);
}

static void make(struct end *e, struct ibv_context *c, struct ibv_pd *pd, size_t bytes, int depth)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
		     IBV_ACCESS_REMOTE_ATOMIC;

	if (posix_memalign((void **)&e->memory, 4096, bytes))
		die("allocate memory");
	memset(e->memory, 0, bytes);
	e->mr = ibv_reg_mr(pd, e->memory, bytes, access);
	if (!e->mr)
		die("register memory");
	e->channel = ibv_create_comp_channel(c);
	if (!e->channel)
		die("create an event channel");
	e->cq = ibv_create_cq(c, 2 * depth, NULL, e->channel, 0);
	if (!e->cq)
		die("create a completion queue");

	struct ibv_qp_init_attr init = {
		.send_cq = e->cq,
		.recv_cq = e->cq,
		.cap = { .max_send_wr = (uint32_t)depth, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	e->qp = ibv_create_qp(pd, &init);
	if (!e->qp)
		die("create a queue pair");
}

/* gid_index is the entry for RoCE v2 over IPv4, or the first. */
static int gid_index(struct ibv_context *c, int entries, union ibv_gid *gid)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	for (int i = 0; i < entries; i++)
		if (!ibv_query_gid(c, 1, i, gid) && !memcmp(gid->raw, mapped, sizeof(mapped)))
			return i;
	if (ibv_query_gid(c, 1, 0, gid))
		die("query the port's addresses");
	return 0;
}

static void join(struct end *a, struct end *b, struct ibv_context *c)
{
	struct ibv_port_attr port;
	union ibv_gid gid;

	if (ibv_query_port(c, 1, &port))
		die("query the port");
	struct ibv_qp_attr at = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	};
	if (ibv_modify_qp(a->qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("initialise a queue pair");

	at = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = port.active_mtu,
		.dest_qp_num = b->qp->qp_num,
		.max_dest_rd_atomic = 16,
		.min_rnr_timer = 12,
		.ah_attr = { .dlid = port.lid, .port_num = 1, .is_global = 1 },
	};
	at.ah_attr.grh.sgid_index = (uint8_t)gid_index(c, port.gid_tbl_len, &gid);
	at.ah_attr.grh.dgid = gid;
	at.ah_attr.grh.hop_limit = 64;
	if (ibv_modify_qp(a->qp, &at, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("make a queue pair ready to receive");

	at = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 16,
	};
	if (ibv_modify_qp(a->qp, &at, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		die("make a queue pair ready to send");
}

/* batch is requests that are posted together. */
struct batch {
	struct ibv_send_wr wr[MAX_DEPTH];
	struct ibv_sge sge[MAX_DEPTH];
	int n;
};

static void add(struct batch *t, struct end *a, struct end *b, enum ibv_wr_opcode op, uint32_t size, uint64_t slot)
{
	uint64_t off = slot * size;
	struct ibv_sge *sge = &t->sge[t->n];
	struct ibv_send_wr *wr = &t->wr[t->n];

	*sge = (struct ibv_sge){ (uintptr_t)a->memory + off, size, a->mr->lkey };
	*wr = (struct ibv_send_wr){
		.wr_id = slot, .sg_list = sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED,
	};
	if (op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr->wr.atomic.remote_addr = (uintptr_t)b->memory + off;
		wr->wr.atomic.rkey = b->mr->rkey;
	} else {
		wr->wr.rdma.remote_addr = (uintptr_t)b->memory + off;
		wr->wr.rdma.rkey = b->mr->rkey;
	}
	if (t->n > 0)
		t->wr[t->n - 1].next = wr;
	t->n++;
}

static void post(struct batch *t, struct end *a)
{
	struct ibv_send_wr *bad;

	if (!t->n)
		return;
	errno = ibv_post_send(a->qp, t->wr, &bad);
	if (errno)
		die("post requests");
	t->n = 0;
}

/* wait blocks until the completion queue may have something. */
static void wait_for(struct end *a)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(a->channel, &cq, &context))
		die("wait for a completion");
	ibv_ack_cq_events(cq, 1);
	if (ibv_req_notify_cq(a->cq, 0))
		die("arm the completion queue");
}

static int by_size(const void *x, const void *y)
{
	uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;

	return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
	if (argc != 8) {
		fprintf(stderr, "usage: roundtrip DEVICE read|write|swap SIZE DEPTH COUNT poll|sleep each|batch\n");
		return 2;
	}
	enum ibv_wr_opcode op = !strcmp(argv[2], "read") ? IBV_WR_RDMA_READ :
				!strcmp(argv[2], "write") ? IBV_WR_RDMA_WRITE : IBV_WR_ATOMIC_CMP_AND_SWP;
	uint32_t size = (uint32_t)atoi(argv[3]);
	long depth = atol(argv[4]), count = atol(argv[5]), warm = count / 10;
	int sleeps = !strcmp(argv[6], "sleep"), batches = !strcmp(argv[7], "batch");
	static struct batch batch;

	if (size < 1 || size > MAX_SIZE || depth < 1 || depth > MAX_DEPTH || count < depth) {
		fprintf(stderr, "roundtrip: a size, depth or count is out of range\n");
		return 2;
	}
	struct ibv_context *c = open_device(argv[1]);
	struct ibv_pd *pd = ibv_alloc_pd(c);
	struct end a, b;

	if (!pd)
		die("allocate a protection domain");
	make(&a, c, pd, (size_t)depth * size, (int)depth);
	make(&b, c, pd, (size_t)depth * size, (int)depth);
	join(&a, &b, c);
	join(&b, &a, c);
	if (sleeps && ibv_req_notify_cq(a.cq, 0))
		die("arm the completion queue");

	uint64_t *took = calloc((size_t)count, sizeof(*took)), posted[MAX_DEPTH], began = 0;
	long sent = 0, done = 0, total = warm + count;

	if (!took)
		die("allocate memory");
	for (; sent < depth; sent++) {
		posted[sent] = now();
		add(&batch, &a, &b, op, size, (uint64_t)sent);
		if (!batches)
			post(&batch, &a);
	}
	post(&batch, &a);
	while (done < total) {
		struct ibv_wc wc[32];
		int n = ibv_poll_cq(a.cq, 32, wc);

		if (n < 0)
			die("poll the completion queue");
		if (n == 0 && sleeps)
			wait_for(&a);
		for (int i = 0; i < n; i++, done++) {
			uint64_t t = now();

			if (wc[i].status != IBV_WC_SUCCESS) {
				fprintf(stderr, "roundtrip: a request failed: %s\n", ibv_wc_status_str(wc[i].status));
				return 1;
			}
			if (done >= warm)
				took[done - warm] = t - posted[wc[i].wr_id];
			if (done == warm)
				began = t;
			if (sent < total) {
				posted[wc[i].wr_id] = now();
				add(&batch, &a, &b, op, size, wc[i].wr_id);
				if (!batches)
					post(&batch, &a);
				sent++;
			}
		}
		post(&batch, &a);
	}
	uint64_t all = now() - began;

	qsort(took, (size_t)count, sizeof(*took), by_size);
	printf("%llu %llu %llu\n", (unsigned long long)took[count / 2],
	       (unsigned long long)took[count * 99 / 100], (unsigned long long)all);
	return 0;
}
