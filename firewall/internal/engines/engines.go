// Package engines has only tests: mesh's table beside container engines from Debian's packages, which run for
// real in a network namespace of the test's own. They use the images of testbus/hosts without booting them.
package engines
