package rdb

import (
	"fmt"
)

// Values that are neither strings nor hashes are read only to find where they end.

// skipStrings skips n strings.
func (r *Reader) skipStrings(n uint64) error {
	for ; n > 0; n-- {
		size, encoded, err := r.lengthOr()
		switch {
		case err != nil:
			return err
		case !encoded:
		case size <= encInt32:
			size = 1 << size
		case size == encLZF:
			if size, _, err = r.lzfLengths(); err != nil {
				return err
			}
		default:
			return malformed(fmt.Sprintf("a string has the encoding %d, which is unknown", size))
		}
		if err := r.skip(size); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reader) skipLengths(n int) error {
	for ; n > 0; n-- {
		if _, err := r.length(); err != nil {
			return err
		}
	}
	return nil
}

// each reads a length and calls skip as often as it says.
func (r *Reader) each(skip func() error) error {
	n, err := r.length()
	for ; n > 0 && err == nil; n-- {
		err = skip()
	}
	return err
}

func (r *Reader) skipValue(typ byte) error {
	one := func() error { return r.skipStrings(1) }
	switch typ {
	case typeList, typeSet, typeQuicklist:
		return r.each(one)
	case typeHash:
		return r.each(func() error { return r.skipStrings(2) })
	case typeQuicklist2:
		return r.each(func() error {
			if err := r.skipLengths(1); err != nil {
				return err
			}
			return one()
		})
	case typeZSet2:
		return r.each(func() error {
			if err := one(); err != nil {
				return err
			}
			return r.skip(8)
		})
	case typeZSet:
		return r.each(r.skipScore)
	case typeHashTTL:
		if err := r.skip(8); err != nil {
			return err
		}
		fallthrough
	case typeHashTTL1:
		return r.each(func() error {
			if err := r.skipLengths(1); err != nil {
				return err
			}
			return r.skipStrings(2)
		})
	case typeHashListpackT:
		if err := r.skip(8); err != nil {
			return err
		}
	case typeStream, typeStream2, typeStream3:
		return r.skipStream(typ)
	case typeModule:
		return fmt.Errorf("key %.64q is of a module, in a form whose end only that knows", r.key.Name)
	case typeModule2:
		return r.skipModule(false)
	}
	return one()
}

// skipScore skips a member and its score, which is text.
func (r *Reader) skipScore() error {
	if err := r.skipStrings(1); err != nil {
		return err
	}
	n, err := r.byte()
	if err != nil || n > 252 { // 253 is not a number; 254 and 255 are infinities
		return err
	}
	return r.skip(uint64(n))
}

// skipStream skips a stream: its entries, what describes it, and its groups.
func (r *Reader) skipStream(typ byte) error {
	const id = 16
	if err := r.each(func() error { return r.skipStrings(2) }); err != nil {
		return err
	}
	about, group := 3, 2 // how many lengths describe the stream, and how many a group
	if typ != typeStream {
		about, group = 8, 3
	}
	if err := r.skipLengths(about); err != nil {
		return err
	}
	consumer := uint64(8) // bytes of times
	if typ == typeStream3 {
		consumer = 16
	}
	return r.each(func() error {
		if err := r.skipStrings(1); err != nil {
			return err
		}
		if err := r.skipLengths(group); err != nil {
			return err
		}
		if err := r.each(func() error {
			if err := r.skip(id + 8); err != nil {
				return err
			}
			return r.skipLengths(1)
		}); err != nil {
			return err
		}
		return r.each(func() error {
			if err := r.skipStrings(1); err != nil {
				return err
			}
			if err := r.skip(consumer); err != nil {
				return err
			}
			return r.each(func() error { return r.skip(id) })
		})
	})
}

// skipModule skips what a module has written. With aux, that is about no key, and a number that says when the module
// wrote it comes first.
func (r *Reader) skipModule(aux bool) error {
	lengths := 1
	if aux {
		lengths = 3
	}
	if err := r.skipLengths(lengths); err != nil {
		return err
	}
	for {
		op, err := r.length()
		if err != nil {
			return err
		}
		switch op {
		case 0:
			return nil
		case 1, 2:
			err = r.skipLengths(1)
		case 3:
			err = r.skip(4)
		case 4:
			err = r.skip(8)
		case 5:
			err = r.skipStrings(1)
		default:
			return malformed(fmt.Sprintf("a module has written a %d", op))
		}
		if err != nil {
			return err
		}
	}
}
