package nbd

import "encoding/binary"

// What both sides say before the first request.
const (
	helloMagic  = 0x4e42444d41474943 // "NBDMAGIC"
	optionMagic = 0x49484156454f5054 // "IHAVEOPT"
	answerMagic = 0x0003e889045565a9

	fixedNewstyle = 1 << 0 // of either side's flags
	noZeroes      = 1 << 1

	maxOption = 4096 // bytes of an option's data: a name, and queries
	maxSaid   = 16 << 10
)

// Options.
const (
	optExportName      = 1
	optAbort           = 2
	optList            = 3
	optStartTLS        = 5
	optInfo            = 6
	optGo              = 7
	optStructuredReply = 8
	optListMeta        = 9
	optSetMeta         = 10
)

// Answers to options.
const (
	ackOption   = 1
	ackServer   = 2
	ackInfo     = 3
	ackMeta     = 4
	errUnsup    = 1<<31 + 1
	errPolicy   = 1<<31 + 2
	errInvalid  = 1<<31 + 3
	errTLS      = 1<<31 + 5
	errUnknown  = 1<<31 + 6
	errTooBig   = 1<<31 + 9
	infoExport  = 0
	infoName    = 1
	infoBlock   = 3
	metaContext = "base:allocation"
	metaID      = 1
)

// Flags of the export.
const (
	hasFlags        = 1 << 0
	readOnly        = 1 << 1
	sendFlush       = 1 << 2
	sendFUA         = 1 << 3
	sendTrim        = 1 << 5
	sendWriteZeroes = 1 << 6
	sendDF          = 1 << 7
	canMultiConn    = 1 << 8
	sendCache       = 1 << 10
	sendFastZero    = 1 << 11
)

// Requests.
const (
	requestMagic = 0x25609513
	requestSize  = 28

	cmdRead        = 0
	cmdWrite       = 1
	cmdDisconnect  = 2
	cmdFlush       = 3
	cmdTrim        = 4
	cmdCache       = 5
	cmdWriteZeroes = 6
	cmdBlockStatus = 7

	flagFUA      = 1 << 0
	flagNoHole   = 1 << 1
	flagDF       = 1 << 2
	flagReqOne   = 1 << 3
	flagFastZero = 1 << 4
)

// Replies.
const (
	simpleMagic = 0x67446698
	chunkMagic  = 0x668e33ef

	chunkDone = 1 << 0

	chunkNone   = 0
	chunkData   = 1
	chunkHole   = 2
	chunkStatus = 5
	chunkError  = 1<<15 + 1

	stateHole = 1 << 0 // of an extent
	stateZero = 1 << 1
)

// errno is an error as the protocol has it.
type errno uint32

const (
	ok        errno = 0
	eperm     errno = 1
	eio       errno = 5
	einval    errno = 22
	enospc    errno = 28
	eoverflow errno = 75
	eshutdown errno = 108
)

// request is a request's header.
type request struct {
	flags, kind uint16
	cookie      uint64
	off         uint64
	length      uint32
}

// decodeRequest decodes b, of requestSize bytes, and reports whether it is a request.
func decodeRequest(b []byte) (request, bool) {
	be := binary.BigEndian
	return request{
		flags: be.Uint16(b[4:]), kind: be.Uint16(b[6:]), cookie: be.Uint64(b[8:]), off: be.Uint64(b[16:]), length: be.Uint32(b[24:]),
	}, be.Uint32(b) == requestMagic
}

// simpleReply appends the header of a reply without structure.
func simpleReply(b []byte, cookie uint64, e errno) []byte {
	be := binary.BigEndian
	b = be.AppendUint32(b, simpleMagic)
	b = be.AppendUint32(b, uint32(e))
	return be.AppendUint64(b, cookie)
}

// chunkHeader appends the header of a chunk of a structured reply, which length bytes of data follow.
func chunkHeader(b []byte, cookie uint64, flags, kind uint16, length int) []byte {
	be := binary.BigEndian
	b = be.AppendUint32(b, chunkMagic)
	b = be.AppendUint16(b, flags)
	b = be.AppendUint16(b, kind)
	b = be.AppendUint64(b, cookie)
	return be.AppendUint32(b, uint32(length))
}
