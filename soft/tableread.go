package soft

// peek returns a key's value and the word that names it, without counting the
// access.
func (t *table) peek(hash uint64, key []byte) (word, []byte, bool) {
	for {
		sh := t.shard(hash)
		sh.mu.Lock()
		m, ok := t.find(sh, hash, key)
		sh.mu.Unlock()
		if !ok {
			return 0, nil, false
		}
		e, ok := t.entryOf(m)
		if !ok {
			continue // gone since: look again
		}
		if e.flags&flagAbsent != 0 || e.expiry != 0 && e.expiry <= t.clock().UnixNano() {
			return 0, nil, false
		}
		if e.flags&flagLarge != 0 {
			v, ok := t.h.larges.append(nil, idOf(e.val))
			return m.w, v, ok
		}
		return m.w, e.val, true
	}
}

// entryOf copies what an object holds, after its key.
func (t *table) entryOf(m match) (e entry, ok bool) {
	b, ok := t.objectOf(m)
	if !ok {
		return e, false
	}
	e = entry{cost: m.hd.cost, flags: m.hd.flags}
	if m.hd.flags&flagExpiry != 0 {
		e.expiry = int64(idOf(b))
	}
	e.val = b[m.hd.prefix()+uint32(m.hd.klen):]
	return e, true
}

// objectOf copies an object's payload.
func (t *table) objectOf(m match) ([]byte, bool) {
	h := t.h
	seg, off := m.w.segment(), m.w.offset()
	if !m.hd.fits(off) {
		return nil, false
	}
	b := append([]byte(nil), h.base.bytes(seg, off+headerSize, m.hd.size)...)
	loadFence()
	return b, m.w.alive(h.ctl.Generation(seg))
}

type keyValue struct{ key, val []byte }

// snapshot copies the entries of one shard that are there and have not
// expired.
func (t *table) snapshot(s int) (list []keyValue) {
	var found []match
	sh := &t.shards[s]
	sh.mu.Lock()
	bs := *sh.buckets.Load()
	for i := range bs {
		for k := range bs[i] {
			w := word(bs[i][k].Load())
			if hd, ok := t.h.headerOf(w); ok {
				found = append(found, match{&bs[i][k], w, hd})
			}
		}
	}
	sh.mu.Unlock()
	now := t.clock().UnixNano()
	for _, m := range found {
		b, ok := t.objectOf(m)
		if !ok || m.hd.flags&flagAbsent != 0 || m.hd.flags&flagExpiry != 0 && int64(idOf(b)) <= now {
			continue
		}
		p := m.hd.prefix()
		kv := keyValue{key: b[p : p+uint32(m.hd.klen)], val: b[p+uint32(m.hd.klen):]}
		if m.hd.flags&flagLarge != 0 {
			if kv.val, ok = t.h.larges.append(nil, idOf(kv.val)); !ok {
				continue
			}
		}
		list = append(list, kv)
	}
	return list
}
