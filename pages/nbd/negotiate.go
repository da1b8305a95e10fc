package nbd

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

// session is what a client has chosen.
type session struct {
	structured bool // replies have structure
	meta       bool // the client has asked for base:allocation in block status
}

// errAbort: the client went in good order.
var errAbort = errors.New("the client has chosen nothing")

// negotiation is a connection before the first request.
type negotiation struct {
	s      *Server
	nc     net.Conn
	said   int // bytes that the client has sent
	flags  uint32
	secure bool
	session
}

// negotiate lets a client choose its options. It returns the connection to use from then on: nc, or TLS over it.
func (s *Server) negotiate(nc net.Conn) (net.Conn, session, error) {
	n := &negotiation{s: s, nc: nc, secure: s.cfg.TLS == nil}
	be := binary.BigEndian
	hello := be.AppendUint64(nil, helloMagic)
	hello = be.AppendUint64(hello, optionMagic)
	if _, err := nc.Write(be.AppendUint16(hello, fixedNewstyle|noZeroes)); err != nil {
		return nil, session{}, err
	}
	b, err := n.read(4)
	if err != nil {
		return nil, session{}, err
	}
	if n.flags = be.Uint32(b); n.flags&^(fixedNewstyle|noZeroes) != 0 || n.flags&fixedNewstyle == 0 {
		return nil, session{}, fmt.Errorf("its flags are %#x: it does not speak NBD's fixed newstyle", n.flags)
	}
	for {
		done, err := n.option()
		if err != nil {
			return nil, session{}, err
		}
		if done {
			return n.nc, n.session, nil
		}
	}
}

// read reads exactly count bytes: what follows them may have to be read through TLS.
func (n *negotiation) read(count int) ([]byte, error) {
	if n.said += count; n.said > maxSaid {
		return nil, errors.New("it sends more than 16 KiB without choosing an export")
	}
	b := make([]byte, count)
	_, err := io.ReadFull(n.nc, b)
	return b, err
}

// option answers an option, and reports whether it was the last.
func (n *negotiation) option() (done bool, err error) {
	be := binary.BigEndian
	b, err := n.read(16)
	if err != nil {
		return false, err
	}
	if be.Uint64(b) != optionMagic {
		return false, errors.New("what it sends is not NBD")
	}
	option, length := be.Uint32(b[8:]), be.Uint32(b[12:])
	if length > maxOption {
		return false, fmt.Errorf("option %d has %d bytes", option, length)
	}
	data, err := n.read(int(length))
	if err != nil {
		return false, err
	}
	switch {
	case option == optAbort:
		_ = n.answer(option, ackOption, nil) // the client may have gone already
		return false, errAbort
	case option == optStartTLS:
		return false, n.startTLS(data)
	case !n.secure && option == optExportName:
		return false, errors.New("it does not use TLS")
	case !n.secure:
		return false, n.refuse(option, errTLS, "TLS is demanded here")
	}
	switch option {
	case optExportName:
		return n.exportName(string(data))
	case optList:
		if length != 0 {
			return false, n.refuse(option, errInvalid, "a list is asked for without data")
		}
		name := n.s.cfg.Name
		if err := n.answer(option, ackServer, append(be.AppendUint32(nil, uint32(len(name))), name...)); err != nil {
			return false, err
		}
		return false, n.answer(option, ackOption, nil)
	case optInfo, optGo:
		return n.info(option, data)
	case optStructuredReply:
		if length != 0 {
			return false, n.refuse(option, errInvalid, "structured replies are asked for without data")
		}
		n.structured = true
		return false, n.answer(option, ackOption, nil)
	case optListMeta, optSetMeta:
		return false, n.metaContexts(option, data)
	}
	return false, n.refuse(option, errUnsup, "there is no such option here")
}

func (n *negotiation) answer(option, kind uint32, data []byte) error {
	be := binary.BigEndian
	b := be.AppendUint64(nil, answerMagic)
	b = be.AppendUint32(b, option)
	b = be.AppendUint32(b, kind)
	b = be.AppendUint32(b, uint32(len(data)))
	_, err := n.nc.Write(append(b, data...))
	return err
}

func (n *negotiation) refuse(option, kind uint32, why string) error {
	return n.answer(option, kind, []byte(why))
}

func (n *negotiation) startTLS(data []byte) error {
	switch {
	case len(data) != 0:
		return n.refuse(optStartTLS, errInvalid, "TLS is asked for without data")
	case n.s.cfg.TLS == nil:
		return n.refuse(optStartTLS, errPolicy, "there is no certificate here")
	case n.secure:
		return n.refuse(optStartTLS, errInvalid, "there is TLS already")
	}
	if err := n.answer(optStartTLS, ackOption, nil); err != nil {
		return err
	}
	c := tls.Server(n.nc, n.s.cfg.TLS)
	if err := c.HandshakeContext(context.Background()); err != nil { // the connection has a deadline
		return err
	}
	// What was said without TLS may have been somebody else's words.
	n.nc, n.secure, n.session = c, true, session{}
	return nil
}

// export reports whether name is that of the export.
func (n *negotiation) export(name string) bool { return name == "" || name == n.s.cfg.Name }

func (n *negotiation) exportName(name string) (bool, error) {
	if !n.export(name) {
		return false, fmt.Errorf("it wants export %q: there is %q", name, n.s.cfg.Name)
	}
	b := binary.BigEndian.AppendUint64(nil, uint64(n.s.cfg.Volume.Size()))
	b = binary.BigEndian.AppendUint16(b, n.s.flags())
	if n.flags&noZeroes == 0 {
		b = append(b, make([]byte, 124)...)
	}
	_, err := n.nc.Write(b)
	return true, err
}

// info answers NBD_OPT_INFO and NBD_OPT_GO.
func (n *negotiation) info(option uint32, data []byte) (bool, error) {
	be := binary.BigEndian
	name, rest, ok := cutString(data)
	if !ok || len(rest) < 2 || len(rest) != 2+2*int(be.Uint16(rest)) {
		return false, n.refuse(option, errInvalid, "its lengths do not fit each other")
	}
	if !n.export(name) {
		return false, n.refuse(option, errUnknown, "there is no such export: the only one is "+n.s.cfg.Name)
	}
	b := be.AppendUint16(nil, infoExport)
	b = be.AppendUint64(b, uint64(n.s.cfg.Volume.Size()))
	if err := n.answer(option, ackInfo, be.AppendUint16(b, n.s.flags())); err != nil {
		return false, err
	}
	b = be.AppendUint16(nil, infoBlock)
	b = be.AppendUint32(b, 1)
	b = be.AppendUint32(b, preferred)
	if err := n.answer(option, ackInfo, be.AppendUint32(b, maxRequest)); err != nil {
		return false, err
	}
	for rest = rest[2:]; len(rest) > 0; rest = rest[2:] {
		if be.Uint16(rest) == infoName {
			if err := n.answer(option, ackInfo, append(be.AppendUint16(nil, infoName), n.s.cfg.Name...)); err != nil {
				return false, err
			}
		}
	}
	return option == optGo, n.answer(option, ackOption, nil)
}

// metaContexts answers NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT.
func (n *negotiation) metaContexts(option uint32, data []byte) error {
	be := binary.BigEndian
	name, rest, ok := cutString(data)
	if !ok || len(rest) < 4 {
		return n.refuse(option, errInvalid, "its lengths do not fit each other")
	}
	queries := be.Uint32(rest)
	rest = rest[4:]
	found := queries == 0 && option == optListMeta
	for range queries {
		var query string
		if query, rest, ok = cutString(rest); !ok {
			return n.refuse(option, errInvalid, "its lengths do not fit each other")
		}
		found = found || query == metaContext || option == optListMeta && query == strings.SplitAfter(metaContext, ":")[0]
	}
	switch {
	case len(rest) != 0:
		return n.refuse(option, errInvalid, "its lengths do not fit each other")
	case !n.export(name):
		return n.refuse(option, errUnknown, "there is no such export: the only one is "+n.s.cfg.Name)
	case option == optSetMeta && !n.structured:
		return n.refuse(option, errInvalid, "structured replies come first")
	}
	if option == optSetMeta {
		n.meta = found
	}
	if found {
		if err := n.answer(option, ackMeta, append(be.AppendUint32(nil, metaID), metaContext...)); err != nil {
			return err
		}
	}
	return n.answer(option, ackOption, nil)
}

// cutString cuts a string with its length in front of it off b.
func cutString(b []byte) (s string, rest []byte, ok bool) {
	if len(b) < 4 {
		return "", nil, false
	}
	n := binary.BigEndian.Uint32(b)
	if b = b[4:]; uint64(n) > uint64(len(b)) {
		return "", nil, false
	}
	return string(b[:n]), b[n:], true
}
