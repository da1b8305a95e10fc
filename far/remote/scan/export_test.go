package scan

// Look carries r out as a scanner does that was told of the places alone.
func Look(r *FindRequest, read func(chunk uint32, off uint64, b []byte) error) ([]byte, error) {
	f := finder{req: *r, places: make([]Place, MaxSegment+1)}
	if err := f.learn(nil); err != nil {
		return nil, err
	}
	return f.find(read, make([]byte, MaxRecord+MaxLeaf), make([]byte, 0, 60<<10))
}
