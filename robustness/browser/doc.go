// Package browser tests the page of the administrative address in a real browser:
// Debian's chromium, without a window. "make test-console" runs it, with the build
// tag browser, and installs chromium if it is missing: 124 MB that "make test" does
// without.
package browser
