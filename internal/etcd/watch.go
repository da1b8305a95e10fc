package etcd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// maxEvent is the size in bytes of the longest message of a watch that is read.
const maxEvent = 64 << 10

type watchRequest struct {
	Create rangeRequest `json:"create_request"`
}

type watchAnswer struct {
	Result struct {
		header   `json:"header"`
		Created  bool              `json:"created"`
		Canceled bool              `json:"canceled"`
		Reason   string            `json:"cancel_reason"`
		Events   []json.RawMessage `json:"events"`
	} `json:"result"`
	Error json.RawMessage `json:"error"`
}

func (a *watchAnswer) head() *header { return &a.Result.header }

// Watch calls changed when it has begun to watch the keys that begin with prefix, and again when any of them may have
// changed. It returns when ctx ends, or when the watch breaks off; then the error says why. The caller must look up
// what has changed. changed may take its time: whatever happens meanwhile causes one more call.
//
// Watch does not notice an endpoint that stops without closing the connection. Callers that must notice have to look
// up the keys now and then without being told.
func (c *Client) Watch(ctx context.Context, prefix string, changed func()) error {
	var request watchRequest
	request.Create.Key, request.Create.End = []byte(prefix), after(prefix)
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	next := c.next.Load()
	endpoint := c.cfg.Endpoints[int(next)%len(c.cfg.Endpoints)]
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(c.cfg.Timeout, func() { cancel(fmt.Errorf("no answer within %v", c.cfg.Timeout)) })
	defer late.Stop()
	if err := c.watch(ctx, endpoint, body, late, changed); err != nil && context.Cause(ctx) != context.Canceled {
		c.next.CompareAndSwap(next, next+1)
		return fmt.Errorf("cannot watch %s in etcd: %s: %w", prefix, endpoint, why(ctx, err))
	}
	return context.Cause(ctx)
}

func (c *Client) watch(ctx context.Context, endpoint string, body []byte, late *time.Timer, changed func()) error {
	token, err := c.login(ctx, endpoint)
	if err != nil {
		return err
	}
	resp, err := c.post(ctx, endpoint, "watch", token, body, new(atomic.Bool))
	var r *refusal
	if errors.As(err, &r) && r.Code == codeUnauthenticated {
		c.forget()
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	messages := bufio.NewReaderSize(resp.Body, maxEvent)
	for begun := false; ; {
		line, err := messages.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("a message has more than %d bytes", maxEvent)
		}
		if err == io.EOF {
			return errors.New("it has ended the watch")
		}
		if err != nil {
			return err
		}
		var a watchAnswer
		if err := json.Unmarshal(line, &a); err != nil {
			return fmt.Errorf("it does not answer as etcd does: %w", err)
		}
		switch {
		case len(a.Error) > 0:
			return &refusal{Message: string(a.Error)}
		case a.Result.Canceled:
			return &refusal{Message: "canceled: " + a.Result.Reason}
		case !begun && !a.Result.Created:
			return errors.New("it does not answer as etcd does")
		}
		if err := c.check(&a); err != nil {
			return err
		}
		if !begun || len(a.Result.Events) > 0 {
			begun = true
			late.Stop()
			changed()
		}
	}
}
