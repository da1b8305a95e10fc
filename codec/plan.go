package codec

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// op is a step of encoding a value: it encodes what lies at an offset in the value.
type op struct {
	kind opKind
	off  uintptr
	n    int          // of opBytes: how many; of opArray: elements
	size uintptr      // of an element, in memory
	elem []op         // of opArray and opSlice
	min  int          // of opSlice: the least bytes of an element's encoding
	typ  reflect.Type // of opSlice
}

type opKind uint8

const (
	opBytes      opKind = iota // as they are
	opText                     // a string: its length, its bytes
	opPlainSlice               // its length, the bytes of its elements
	opSlice                    // its length, its elements
	opArray                    // its elements
	opTime                     // its length, what time.Time.AppendBinary says
)

// sizeOf is how many bytes the steps encode, -1 if that differs.
func sizeOf(ops []op) int {
	size := 0
	for i := range ops {
		switch o := &ops[i]; o.kind {
		case opBytes:
			size += o.n
		case opArray:
			elem := sizeOf(o.elem)
			if elem < 0 {
				return -1
			}
			size += o.n * elem
		default:
			return -1
		}
	}
	return size
}

// leastOf is how many bytes the steps encode at least.
func leastOf(ops []op) int {
	least := 0
	for i := range ops {
		switch o := &ops[i]; o.kind {
		case opBytes:
			least += o.n
		case opArray:
			least += o.n * leastOf(o.elem)
		default:
			least++ // a length
		}
	}
	return least
}

// planner finds out how a type is stored.
type planner struct {
	key   bool           // equal values have equal encodings
	above []reflect.Type // the types that enclose the one that is looked at
}

// plan appends the steps for a value of type t at off to ops. Errors call the value path.
func (p *planner) plan(t reflect.Type, path string, off uintptr, ops []op) ([]op, error) {
	for _, up := range p.above {
		if up == t {
			return nil, fmt.Errorf("%s is a %v within a %v, which may have no end; give a Codec", path, t, t)
		}
	}
	p.above = append(p.above, t)
	defer func() { p.above = p.above[:len(p.above)-1] }()
	switch kind := t.Kind(); {
	case p.key && (kind == reflect.Float32 || kind == reflect.Float64 || kind == reflect.Complex64 || kind == reflect.Complex128):
		return nil, fmt.Errorf("%s is a %v, which is no key: NaN is not equal to itself, and 0 equals -0; convert it to an integer by math.Float64bits, or give a Codec", path, t)
	case kind == reflect.String:
		return append(ops, op{kind: opText, off: off}), nil
	case t == reflect.TypeFor[time.Time]() && !p.key:
		return append(ops, op{kind: opTime, off: off}), nil
	case kind == reflect.Slice:
		return p.slice(t, path, off, ops)
	case kind == reflect.Array:
		return p.array(t, path, off, ops)
	case kind == reflect.Struct:
		return p.fields(t, path, off, ops)
	case isNumber(kind):
		return asTheyAre(ops, off, t.Size()), nil
	}
	what := fmt.Sprintf("%s is of type %v, which", path, t)
	if len(p.above) == 1 { // the path is the type
		what = t.String()
	}
	return nil, fmt.Errorf("%s holds a Go pointer that the garbage collector would not see; give a Codec", what)
}

func (p *planner) slice(t reflect.Type, path string, off uintptr, ops []op) ([]op, error) {
	elem, err := p.plan(t.Elem(), path+"[]", 0, nil)
	if err != nil {
		return nil, err
	}
	size := t.Elem().Size()
	if Pointerless(t.Elem()) == nil {
		return append(ops, op{kind: opPlainSlice, off: off, size: size}), nil
	}
	return append(ops, op{kind: opSlice, off: off, size: size, elem: elem, min: leastOf(elem), typ: t}), nil
}

func (p *planner) array(t reflect.Type, path string, off uintptr, ops []op) ([]op, error) {
	if t.Len() == 0 {
		return ops, nil
	}
	elem, err := p.plan(t.Elem(), path+"[]", 0, nil)
	if err != nil {
		return nil, err
	}
	size := t.Elem().Size()
	if isWhole(elem, size) {
		return asTheyAre(ops, off, t.Size()), nil
	}
	return append(ops, op{kind: opArray, off: off, n: t.Len(), size: size, elem: elem}), nil
}

func (p *planner) fields(t reflect.Type, path string, off uintptr, ops []op) ([]op, error) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Name == "_" && p.key {
			continue
		}
		var err error
		if ops, err = p.plan(f.Type, path+"."+f.Name, off+f.Offset, ops); err != nil {
			return nil, err
		}
	}
	return ops, nil
}

// asTheyAre appends the step for size bytes at off.
func asTheyAre(ops []op, off, size uintptr) []op {
	if n := len(ops); n > 0 && ops[n-1].kind == opBytes && ops[n-1].off+uintptr(ops[n-1].n) == off {
		ops[n-1].n += int(size)
		return ops
	}
	return append(ops, op{kind: opBytes, off: off, n: int(size)})
}

// isWhole reports whether the steps store all bytes of a value as they are.
func isWhole(ops []op, size uintptr) bool {
	return len(ops) == 1 && ops[0].kind == opBytes && ops[0].n == int(size)
}

func isNumber(k reflect.Kind) bool { return k >= reflect.Bool && k <= reflect.Complex128 }

// Pointerless returns an error that names the first Go pointer in a type, nil if there is
// none.
func Pointerless(t reflect.Type) error {
	path, what := findPointer(t, "")
	switch {
	case what == nil:
		return nil
	case path == "":
		return fmt.Errorf("%v is a Go pointer, or holds one, which the garbage collector would not see", t)
	}
	return fmt.Errorf("field %s of %v is a %v, which holds a Go pointer that the garbage collector would not see", path, t, what)
}

// findPointer returns the path of a field that is a Go pointer, and its type,
// nil if there is none.
func findPointer(t reflect.Type, path string) (string, reflect.Type) {
	switch kind := t.Kind(); {
	case isNumber(kind):
		return "", nil
	case kind == reflect.Array:
		if t.Len() == 0 {
			return "", nil
		}
		return findPointer(t.Elem(), path+"[]")
	case kind == reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			name := f.Name
			if path != "" {
				name = path + "." + name
			}
			if p, what := findPointer(f.Type, name); what != nil {
				return p, what
			}
		}
		return "", nil
	}
	return path, t
}

// Layout says how a value of type t, which holds no Go pointers, is laid out: by the names and the types of its
// fields, in order, so that types with other fields have other layouts. For each type within t, special may return
// another name to be used, or an error if there is no layout.
func Layout(t reflect.Type, special func(t reflect.Type) (string, error)) (string, error) {
	if name, err := special(t); name != "" || err != nil {
		return name, err
	}
	switch t.Kind() {
	case reflect.Array:
		elem, err := Layout(t.Elem(), special)
		return fmt.Sprintf("[%d]%s", t.Len(), elem), err
	case reflect.Struct:
	default:
		return t.Kind().String(), nil
	}
	fields := make([]string, t.NumField())
	for i := range fields {
		f := t.Field(i)
		l, err := Layout(f.Type, special)
		if err != nil {
			return "", fmt.Errorf("field %s of %v: %w", f.Name, t, err)
		}
		fields[i] = f.Name + " " + l
	}
	return "struct{" + strings.Join(fields, "; ") + "}", nil
}

var errLong = errors.New("a length is more than follows")
