package operator

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"polder/internal/config"
)

// Access is what a tool shows at daemons' administrative addresses.
type Access struct {
	cert, key, ca, token string
}

// Add adds the flags.
func (a *Access) Add(fs *pflag.FlagSet) {
	fs.StringVar(&a.ca, "tls-ca", "", "authority that has signed the daemons' certificates, a PEM `file`; with it, TLS is used")
	fs.StringVar(&a.cert, "tls-cert", "", "certificate to show, of the authority that the daemons call --tls-admin-ca, a PEM `file`")
	fs.StringVar(&a.key, "tls-key", "", "its private key, a PEM `file`")
	fs.StringVar(&a.token, "admin-token-file", "", "show the token in this `file` of mode 0600")
}

// Load reads the files. The configuration is nil without TLS.
func (a *Access) Load() (_ *tls.Config, token string, err error) {
	if token, err = config.ReadSecret("admin-token-file", a.token); err != nil {
		return nil, "", err
	}
	if (a.cert == "") != (a.key == "") || a.cert != "" && a.ca == "" {
		return nil, "", errors.New("cannot use TLS: expected --tls-cert and --tls-key together, and with --tls-ca")
	}
	if a.ca == "" {
		return nil, token, nil
	}
	pem, err := os.ReadFile(a.ca)
	if err != nil {
		return nil, "", fmt.Errorf("cannot use --tls-ca: %w", err)
	}
	t := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool()}
	if !t.RootCAs.AppendCertsFromPEM(pem) {
		return nil, "", fmt.Errorf("cannot use --tls-ca %s: expected certificates in PEM", a.ca)
	}
	if a.cert != "" {
		pair, err := tls.LoadX509KeyPair(a.cert, a.key)
		if err != nil {
			return nil, "", fmt.Errorf("cannot use --tls-cert %s with --tls-key %s: %w", a.cert, a.key, err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, token, nil
}
