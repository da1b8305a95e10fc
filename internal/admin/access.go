package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
	"sync/atomic"
)

// MinToken is the length in bytes of the shortest acceptable token. Wrong guesses are not counted.
const MinToken = 16

// Token is what a request has to show if it shows no certificate, in the header
// "Authorization: Bearer TOKEN". Any number of goroutines may use it.
type Token struct {
	sum atomic.Pointer[[sha256.Size]byte]
}

// NewToken returns a token.
func NewToken(text string) *Token {
	t := new(Token)
	t.Replace(text)
	return t
}

// Replace makes text the token, and reports whether it was another one before.
func (t *Token) Replace(text string) bool {
	sum := sha256.Sum256([]byte(text))
	was := t.sum.Swap(&sum)
	return was == nil || *was != sum
}

// shown reports whether r shows the token. How long it takes depends on nothing secret.
func (t *Token) shown(r *http.Request) bool {
	text, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	sum := sha256.Sum256([]byte(text))
	return ok && subtle.ConstantTimeCompare(sum[:], t.sum.Load()[:]) == 1
}

// allowed reports whether r may see everything. TLS has already checked a certificate that is shown.
func (c *Config) allowed(r *http.Request) bool {
	switch {
	case c.Token == nil && !c.Certificates:
		return true
	case c.Certificates && r.TLS != nil && len(r.TLS.VerifiedChains) > 0:
		return true
	}
	return c.Token != nil && c.Token.shown(r)
}
