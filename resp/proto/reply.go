package proto

import "strconv"

// AppendInt appends an integer reply.
func AppendInt(dst []byte, v int64) []byte {
	if v >= 0 && v <= 9 {
		return append(dst, ':', byte('0'+v), '\r', '\n')
	}
	return appendHeader(dst, ':', v)
}

// AppendBulk appends a bulk string reply.
func AppendBulk[T string | []byte](dst []byte, b T) []byte {
	dst = appendHeader(dst, '$', int64(len(b)))
	dst = append(dst, b...)
	return append(dst, '\r', '\n')
}

// AppendVerbatim appends text: a verbatim string in RESP3, a bulk string in
// RESP2.
func AppendVerbatim(dst []byte, version int, text string) []byte {
	if version < 3 {
		return AppendBulk(dst, text)
	}
	dst = appendHeader(dst, '=', int64(len(text)+4))
	dst = append(dst, "txt:"...)
	dst = append(dst, text...)
	return append(dst, '\r', '\n')
}

// AppendStatus appends a status reply. Text must be one line.
func AppendStatus(dst []byte, text string) []byte {
	dst = append(dst, '+')
	dst = append(dst, text...)
	return append(dst, '\r', '\n')
}

// AppendError appends an error reply; line breaks in text become spaces. Text
// starts with the error's code.
func AppendError(dst []byte, text string) []byte {
	dst = append(dst, '-')
	for i := range len(text) {
		dst = append(dst, printable(text[i]))
	}
	return append(dst, '\r', '\n')
}

// AppendArray appends the head of an array of n replies.
func AppendArray(dst []byte, n int) []byte { return appendHeader(dst, '*', int64(n)) }

// AppendPush appends the head of a message that a client has not asked for, of n elements: a push, but an array in
// version 2.
func AppendPush(dst []byte, version, n int) []byte {
	if version == 3 {
		return appendHeader(dst, '>', int64(n))
	}
	return AppendArray(dst, n)
}

// AppendMap appends the head of a map of n pairs, in RESP2 an array of twice
// as many.
func AppendMap(dst []byte, version, n int) []byte {
	if version < 3 {
		return appendHeader(dst, '*', int64(n)*2)
	}
	return appendHeader(dst, '%', int64(n))
}

// AppendSet appends the head of a set of n replies, in RESP2 an array.
func AppendSet(dst []byte, version, n int) []byte {
	if version < 3 {
		return appendHeader(dst, '*', int64(n))
	}
	return appendHeader(dst, '~', int64(n))
}

// AppendNull appends the null reply in place of a bulk string.
func AppendNull(dst []byte, version int) []byte {
	if version < 3 {
		return append(dst, "$-1\r\n"...)
	}
	return append(dst, "_\r\n"...)
}

// AppendNullArray appends the null reply in place of an array.
func AppendNullArray(dst []byte, version int) []byte {
	if version < 3 {
		return append(dst, "*-1\r\n"...)
	}
	return append(dst, "_\r\n"...)
}

func appendHeader(dst []byte, kind byte, n int64) []byte {
	dst = append(dst, kind)
	dst = strconv.AppendInt(dst, n, 10)
	return append(dst, '\r', '\n')
}

// BulkHeaderLen is the number of bytes in front of a bulk string of n bytes.
func BulkHeaderLen(n int) int {
	digits := 1
	for n >= 10 {
		n /= 10
		digits++
	}
	return digits + 3
}

// PutBulkHeader writes the header of a bulk string of n bytes to the first
// BulkHeaderLen(n) bytes of dst.
func PutBulkHeader(dst []byte, n int) { appendHeader(dst[:0], '$', int64(n)) }

// AppendCommand appends a command as clients send it.
func AppendCommand[T string | []byte](dst []byte, args ...T) []byte {
	dst = AppendArray(dst, len(args))
	for _, a := range args {
		dst = AppendBulk(dst, a)
	}
	return dst
}
