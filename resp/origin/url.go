package origin

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// URL says where an origin is, and as which user the cache logs in there.
type URL struct {
	Network  string // tcp or unix
	Address  string // HOST:PORT, or a path
	TLS      bool
	User     string // "" for the default user
	Password string // "" if the user needs none
	DB       int    // the database that is cached
}

// forms says what a URL may look like.
const forms = "redis://HOST:PORT, rediss://HOST:PORT (TLS) or unix:///PATH, with USER:PASSWORD@ before the host and /DATABASE behind it (unix: ?db=DATABASE)"

// ParseURL reads a URL as Redis's own clients do. Its errors do not repeat the text,
// which may hold a password.
func ParseURL(text string) (URL, error) {
	p, err := url.Parse(text)
	if err != nil || p.Opaque != "" || p.Fragment != "" {
		return URL{}, errors.New("cannot read it as a URL; expected " + forms)
	}
	u := URL{Network: "tcp", Address: p.Host, User: p.User.Username()}
	u.Password, _ = p.User.Password()
	db := strings.TrimPrefix(p.Path, "/")
	switch p.Scheme {
	case "redis", "rediss":
		u.TLS = p.Scheme == "rediss"
		port := p.Port()
		if port == "" {
			port = "6379"
		}
		if n, err := strconv.Atoi(port); p.Hostname() == "" || err != nil || n < 1 || n > 65535 || p.RawQuery != "" {
			return URL{}, errors.New("cannot tell host and port; expected " + forms)
		}
		u.Address = net.JoinHostPort(p.Hostname(), port)
	case "unix":
		q := p.Query()
		db = q.Get("db")
		if q.Del("db"); p.Host != "" || p.Path == "" || len(q) > 0 {
			return URL{}, errors.New("cannot tell the socket's path; expected " + forms)
		}
		u.Network, u.Address = "unix", p.Path
	default:
		return URL{}, errors.New("expected " + forms)
	}
	if db != "" {
		if u.DB, err = strconv.Atoi(db); err != nil || u.DB < 0 {
			return URL{}, errors.New("cannot tell the database, which is a number; expected " + forms)
		}
	}
	return u, nil
}

// String returns the URL without the password.
func (u URL) String() string {
	at := ""
	if u.User != "" {
		at = url.User(u.User).String() + "@"
	}
	switch {
	case u.Network == "unix":
		text := "unix://" + at + u.Address
		if u.DB != 0 {
			text += fmt.Sprintf("?db=%d", u.DB)
		}
		return text
	case u.DB != 0:
		return fmt.Sprintf("%s://%s%s/%d", u.scheme(), at, u.Address, u.DB)
	}
	return u.scheme() + "://" + at + u.Address
}

func (u URL) scheme() string {
	if u.TLS {
		return "rediss"
	}
	return "redis"
}

// guarded reports whether the link authenticates.
func (u URL) guarded() bool { return u.User != "" || u.Password != "" }

// user returns the user as which the link is logged in at the origin.
func (u URL) user() string {
	if u.User == "" {
		return "default"
	}
	return u.User
}
