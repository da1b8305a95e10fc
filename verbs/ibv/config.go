package ibv

import "polder/verbs/internal/endpoint"

// Config says how to listen and dial. The zero value is right for loopback.
type Config = endpoint.Config

// Scheme is what addresses of nodes on an RDMA fabric begin with.
const Scheme = "rdma://"
