package resp

import "time"

const (
	// besides is about what a command costs beside the time in which it is carried out: to read it and to send its reply, which commands that come together share.
	besides = 5 * time.Microsecond
	// mostSpent is how much of its time a command counts at most: what takes longer is often that the process, or the machine, stood still.
	mostSpent = 20 * time.Millisecond
)

// Spent is how much time the server has spent on commands about the keys of a partition since AddPartition; 0 if the partition is not here. A command counts from when
// the one before it ended, and with what it takes to read it and to send its reply; one that has waited for far memory, during which others went on, with that alone.
func (srv *Server) Spent(number int) time.Duration {
	at := srv.parts[number].Load()
	if at == nil {
		return 0
	}
	return time.Duration(at.spent.Load())
}

// spend counts a command, or an attempt that has to be repeated when something was fetched.
func (p *part) spend(took time.Duration, waits bool) {
	if waits {
		took = 0
	}
	p.spent.Add(int64(min(took, mostSpent) + besides))
}
