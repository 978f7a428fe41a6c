//go:build tools

// Package tidb pins TiDB's server and everything it is built of, so that every machine builds
// the same server. Nothing of this package itself is ever built.
package tidb

import _ "github.com/pingcap/tidb/cmd/tidb-server"
