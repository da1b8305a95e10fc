package ibv

import (
	"time"

	"polder/verbs/internal/endpoint"
)

// Config says how to listen and dial. The zero value is right for loopback;
// KeepAlive is DefaultKeepAlive if it is 0.
type Config = endpoint.Config

// DefaultKeepAlive is how often a silent peer is pinged. A peer whose host has died is noticed after three to five
// times as long, or sooner by queue pairs with requests under way to it. It may be short, since no data travels on
// the connection that could hold up an answer.
const DefaultKeepAlive = 2 * time.Second
