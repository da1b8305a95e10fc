package tcp

import "polder/verbs/internal/endpoint"

// Config says how to listen and dial. The zero value is right for loopback.
type Config = endpoint.Config
