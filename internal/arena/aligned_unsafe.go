package arena

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapAligned maps n bytes of fd, which is -1 for anonymous memory, at an
// address that is a multiple of HugePageSize if they can hold a huge page:
// the kernel puts one only where address and offset agree. It returns the
// memory and what to unmap, which is more than that.
func mapAligned(fd, off, n, prot, flags int) (mem, whole []byte, err error) {
	if n < HugePageSize {
		mem, err = unix.Mmap(fd, int64(off), n, prot, flags)
		return mem, mem, err
	}
	whole, err = unix.Mmap(-1, 0, n+HugePageSize, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, nil, err
	}
	skip := HugePageSize - int(uintptr(unsafe.Pointer(unsafe.SliceData(whole)))%HugePageSize)
	skip = (skip + off%HugePageSize) % HugePageSize
	at := unsafe.Pointer(&whole[skip])
	if _, err := unix.MmapPtr(fd, int64(off), at, uintptr(n), prot, flags|unix.MAP_FIXED); err != nil {
		_ = unix.Munmap(whole)
		return nil, nil, err
	}
	return whole[skip : skip+n : skip+n], whole, nil
}

// mapOver maps what is at off of fd over mem, privately.
func mapOver(mem []byte, fd, off int) error {
	_, err := unix.MmapPtr(fd, int64(off), unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return err
}
