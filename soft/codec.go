package soft

import "polder/codec"

// A Codec makes values byte strings and back that have no other way to be stored: see the
// package codec.
type Codec[T any] = codec.Codec[T]
